"""Runs that share their matrix products: each gives what it gives alone, whatever they are and however many fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import CPU, F64, perturbed
from torch import nn

from recollect import (
    Basis,
    FullSpace,
    GradientDescent,
    LevenbergMarquardt,
    Projection,
    Reconstruction,
    Status,
    Subspace,
    Victim,
    reconstruct,
)
from recollect import cell as cell_file
from recollect.cell import _shared, pays, reconstruct_cell
from recollect.errors import OptionError
from recollect.solve import minimise
from recollect.span import Endpoints
from recollect.victim import mlp, random_features

SEEDS = [3, 0, 7, 7, 2]
DESCENT = Projection(space=FullSpace(), solver=GradientDescent(iterations=40), dtype=F64)
N = 4


@pytest.fixture
def shapes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What the starts of each run looked like that was made in company; which always pays."""
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(cell_file, "pays", lambda *_: True)

    def spied(solver, span, geometry, run, **options):  # type: ignore[no-untyped-def]
        seen.append(tuple(run.best_Z.shape))
        return minimise(solver, span, geometry, run, **options)

    monkeypatch.setattr(cell_file, "minimise", spied)
    return seen


def victims(count: int = 3, **options: object) -> list[Victim]:
    network = mlp(**{"d": 6, "width": 60, "c": 2, **options})  # type: ignore[arg-type]
    return [perturbed(network, 10 * k, size=2.0**k) for k in range(count)]


def compared(some: list[Victim], attacks: list[Projection], seeds: list[int]) -> tuple[tuple[Reconstruction, ...], ...]:
    """The cell, after each of its runs was compared with the same run alone."""
    found = reconstruct_cell(some, N, attacks, seeds=seeds, device="cpu")
    assert [len(runs) for runs in found] == [len(seeds)] * len(some)
    for victim, attack, runs in zip(some, attacks, found, strict=True):
        for seed, ours in zip(seeds, runs, strict=True):
            own = reconstruct(victim, N, attack, seed=seed, device="cpu")
            torch.testing.assert_close(ours.inputs, own.inputs, rtol=1e-7, atol=1e-7)
            torch.testing.assert_close(ours.trace, own.trace, rtol=1e-8, atol=1e-12)
            torch.testing.assert_close(ours.coefficients, own.coefficients, rtol=1e-5, atol=1e-7)
            assert ours.loss == pytest.approx(own.loss, rel=1e-8)
            assert (ours.status, ours.step_size, ours.rank, ours.span) == (own.status, 20.0, own.rank, own.span)
            assert (ours.equations, ours.unknowns, ours.notes) == (own.equations, own.unknowns, own.notes)
    assert not torch.equal(found[0][0].inputs, found[0][1].inputs)
    return found


@pytest.mark.parametrize("options", [{}, {"depth": 3}, {"bias": True}, {"activation": "tanh", "c": 1}])
def test_victims_and_seeds_share_one_run(options: dict[str, object], shapes: list[tuple[int, ...]]) -> None:
    compared(victims(**options), [DESCENT] * 3, SEEDS)
    assert shapes == [(3, 5, N, 6)]


def test_each_victim_in_a_basis_of_its_own(shapes: list[tuple[int, ...]]) -> None:
    bases = [
        torch.linalg.qr(torch.randn(6, 4, dtype=F64, generator=torch.Generator().manual_seed(k))).Q for k in (1, 2)
    ]
    found = compared(victims(2), [replace(DESCENT, space=Basis(U=U)) for U in bases], SEEDS)
    assert shapes == [(2, 5, N, 4)]
    for U, runs in zip(bases, found, strict=True):
        assert float((runs[0].inputs - runs[0].inputs @ U @ U.T).abs().max()) < 1e-9


@pytest.mark.parametrize("endpoints", [Endpoints.INITIAL, Endpoints.BOTH])
def test_at_other_endpoints(endpoints: Endpoints, shapes: list[tuple[int, ...]]) -> None:
    compared(victims(2, activation="tanh"), [replace(DESCENT, endpoints=endpoints)] * 2, SEEDS[:2])
    assert shapes == [(2, 2, N, 6)]


def test_all_layers_share_the_seeds_of_one_victim(shapes: list[tuple[int, ...]]) -> None:
    compared(victims(2), [replace(DESCENT, parameters="all")] * 2, SEEDS)
    assert shapes == [(5, N, 6)] * 2


@pytest.mark.parametrize(
    "attacks",
    [
        [replace(DESCENT, space=Subspace(rank=4)), replace(DESCENT, space=Subspace(rank=5))],
        [DESCENT, replace(DESCENT, endpoints=Endpoints.INITIAL)],
        [DESCENT, replace(DESCENT, norm=3.0)],
    ],
)
def test_victims_that_are_not_alike_keep_to_themselves(
    attacks: list[Projection], shapes: list[tuple[int, ...]]
) -> None:
    compared(victims(2), attacks, SEEDS[:3])
    assert [len(shape) for shape in shapes] == [3, 3]


def test_as_many_at_once_as_memory_holds(monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]]) -> None:
    monkeypatch.setattr(cell_file, "starts_at_once", lambda *_: 7)
    compared(victims(3), [DESCENT] * 3, SEEDS)
    assert shapes == [(3, 2, N, 6), (3, 2, N, 6), (3, 1, N, 6)]
    shapes.clear()
    monkeypatch.setattr(cell_file, "starts_at_once", lambda *_: 2)
    compared(victims(3), [DESCENT] * 3, SEEDS)
    assert shapes == [(2, N, 6), (2, N, 6), (1, N, 6)] * 3
    shapes.clear()
    monkeypatch.setattr(cell_file, "starts_at_once", lambda *_: 1)
    compared(victims(2), [DESCENT] * 2, SEEDS)
    assert shapes == []


def test_what_has_nothing_to_share_is_run_alone(monkeypatch: pytest.MonkeyPatch, shapes: list[tuple[int, ...]]) -> None:
    lm = Projection(solver=LevenbergMarquardt(iterations=3))
    for attack in (replace(DESCENT, restarts=2), replace(DESCENT, tolerance=1e-3), lm):
        found = reconstruct_cell(victims(1), N, [attack], seeds=[1, 2], device="cpu")
        alone = [reconstruct(victims(1)[0], N, attack, seed=seed, device="cpu") for seed in (1, 2)]
        assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(found[0], alone, strict=True))
    reconstruct_cell(victims(1), N, [DESCENT], seeds=[1], device="cpu")
    module = nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 2)).double()
    theta_f = {name: value.detach().clone() for name, value in module.state_dict().items()}
    theta_0 = {name: value + 0.1 for name, value in theta_f.items()}
    reconstruct_cell([Victim(module, theta_0, theta_f)], N, [DESCENT], seeds=[1, 2], device="cpu")
    monkeypatch.setattr(cell_file, "pays", lambda *_: False)
    compared(victims(2), [DESCENT] * 2, SEEDS)
    assert shapes == []


def test_it_pays_where_launches_take_longer_than_arithmetic() -> None:
    cuda = torch.device("cuda")
    assert pays(CPU, 1e6, 1, 5)
    assert not pays(CPU, 1e6, 3, 5)
    assert not pays(CPU, 2e7, 1, 5)
    assert pays(CPU, 2e7, 1, 2)
    assert pays(cuda, 1e12, 1, 5)
    assert pays(cuda, 1.6e8, 3, 5)  # the paper's synthetic task at width 4000
    assert not pays(cuda, 1e10, 3, 5)


def test_on_a_cpu_the_seeds_of_each_victim_share(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def spied(runs, n, seeds):  # type: ignore[no-untyped-def]
        found = _shared(runs, n, seeds)
        if found is not None:
            seen.append(len(runs))
        return found

    monkeypatch.setattr(cell_file, "_shared", spied)
    compared(victims(3), [DESCENT] * 3, SEEDS)
    assert seen == [1, 1, 1]


def test_in_single_precision_and_with_random_features(shapes: list[tuple[int, ...]]) -> None:
    network = random_features(6, 60, 1, bias=True)
    for some, dtype, close in [
        ([perturbed(network, 10 * k) for k in range(2)], F64, 1e-8),
        (victims(2), torch.float32, 1e-3),
    ]:
        attack = replace(DESCENT, solver=GradientDescent(iterations=4), dtype=dtype)
        found = reconstruct_cell(some, N, [attack] * 2, seeds=[1, 2], device="cpu")
        assert shapes.pop() == (2, 2, N, 6)
        for victim, runs in zip(some, found, strict=True):
            for seed, run in zip((1, 2), runs, strict=True):
                alone = reconstruct(victim, N, attack, seed=seed, device="cpu")
                torch.testing.assert_close(run.inputs, alone.inputs, rtol=close, atol=close)


def test_a_victim_in_trouble_does_not_trouble_the_others(shapes: list[tuple[int, ...]]) -> None:
    """Features beyond the finite numbers: the Gram of the second victim's points cannot be factored."""
    some = victims(3)
    first = some[1].network.layers[0].weight  # type: ignore[attr-defined]
    some[1].theta_f[first] = some[1].theta_f[first] * 1e200
    found = reconstruct_cell(some, N, [DESCENT] * 3, seeds=[1, 2], device="cpu")
    assert shapes == [(3, 2, N, 6)]
    assert [[run.status for run in runs] for runs in found] == [
        [Status.ITERATIONS] * 2,
        [Status.SINGULAR] * 2,
        [Status.ITERATIONS] * 2,
    ]
    for k in (0, 2):
        alone = reconstruct(some[k], N, DESCENT, seed=2, device="cpu")
        torch.testing.assert_close(found[k][1].inputs, alone.inputs, rtol=1e-8, atol=1e-8)


def test_one_that_arrives_does_not_end_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = replace(DESCENT, solver=GradientDescent(iterations=120))
    arrived: list[bool] = []

    def lucky(solver, span, geometry, run, **options):  # type: ignore[no-untyped-def]
        outcomes = minimise(
            solver, span, geometry, replace(run, best_loss=run.best_loss.index_fill(0, ZERO, 0.0)), **options
        )
        arrived.append(outcomes[0].loss == 0)
        return outcomes

    monkeypatch.setattr(cell_file, "minimise", lucky)
    (found,) = reconstruct_cell(victims(1), N, [exact], seeds=[1, 2], device="cpu")
    assert arrived == [True]
    assert [run.status for run in found] == [Status.CONVERGED, Status.ITERATIONS]
    assert len(found[1].trace) == 120


ZERO = torch.tensor([0])


def test_numbers_of_points_that_cannot_be_are_refused() -> None:
    with pytest.raises(OptionError, match="expected --n"):
        reconstruct_cell(victims(1), 0, [DESCENT], seeds=[1, 2], device="cpu")


def test_ctrl_c_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments, **options):  # type: ignore[no-untyped-def]
        return tuple(replace(one, status=Status.INTERRUPTED) for one in minimise(*arguments, **options))

    monkeypatch.setattr(cell_file, "minimise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reconstruct_cell(victims(1), N, [DESCENT], seeds=[1, 2], device="cpu")
