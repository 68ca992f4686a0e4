"""Sums of objectives: what stays the same when a sum is rewritten, and what is refused.

That each quantity of a sum is what its definition says is tested in `test_contract.py`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from cases import CPU, F64, evidence, generator, perturbed
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect.errors import OptionError
from recollect.geometry import FreeRadius, Geometry, SharedSubspace, Sphere
from recollect.objective import normal as normal_file
from recollect.objective.base import ExactObjective, Fit
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.objective.normal import DenseNormal, ImplicitNormal, Normal, combined
from recollect.objective.sum import SumObjective
from recollect.victim.mlp import mlp
from recollect.victim.victim import Victim

SPHERE = Sphere(2.0)
INEXACT = {"step", "variances"}
few = settings(max_examples=8)  # each example computes everything that there is to compute


def points(n: int, d: int, seed: int) -> Tensor:
    return SPHERE.project(torch.randn(n, d, generator=generator(seed), dtype=F64))


def last_layer(known: Evidence, *, lifted: bool = False) -> LastLayerObjective:
    return LastLayerObjective(known, device=CPU, dtype=F64, lifted=lifted)


def layerwise(known: Evidence, *, lifted: bool = False) -> LayerwiseObjective:
    names = known.network.trained
    return LayerwiseObjective(known, names, device=CPU, dtype=F64, lifted=lifted)


def some(
    seed: int, endpoints: Endpoints = Endpoints.BOTH, *, lifted: bool = True
) -> list[ExactObjective]:
    """Objectives of one architecture, of two victims with different weights."""
    network = mlp(3, 40, 2)
    one, other = (evidence(perturbed(network, seed + k), endpoints) for k in (0, 10))
    return [last_layer(one, lifted=lifted), layerwise(other, lifted=lifted)]


drawn = {
    "seed": st.integers(0, 999),
    "n": st.integers(1, 3),
    "endpoints": st.sampled_from([Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH]),
    "lifted": st.booleans(),
    "dense": st.booleans(),
}


def answers(objective: ExactObjective, Z: Tensor, *, dense: bool) -> dict[str, Tensor]:
    """Everything that does not depend on how many terms a sum is written with."""
    with pytest.MonkeyPatch.context() as patch:
        if not dense:
            patch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
        linear, normal = objective.linearise(Z, SPHERE)
    assert isinstance(normal, DenseNormal if dense else ImplicitNormal)
    fit, new = objective.fit(Z), points(2, Z.shape[1], 99)
    assert fit.gradient is not None
    found = {
        "loss": fit.loss,
        "gradient": fit.gradient,
        "linearised loss": linear.loss,
        "product": normal.product(new[:1].expand_as(Z)),
        "g": normal.gradient,
        "scales": normal.scales,
        "step": normal.step(0.1),
        "variances": normal.variances(),
        "costs": objective.costs(Z),
        "gains": objective.gains(Z)(new).detach(),
    }
    if objective.lifted:
        M, t = objective.sign_system(Z)
        found |= {"MᵀM": M.T @ M, "Mᵀt": M.T @ t}
    return found


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    """Equal up to rounding, relative to the largest entry."""
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        gap, size = (ours[name] - value).abs().max(), value.abs().max()
        assert float(gap) <= tolerance * float(size), name


@few
@given(**drawn)
def test_a_sum_of_one_part_is_that_part(
    seed: int, n: int, endpoints: Endpoints, lifted: bool, dense: bool
) -> None:
    Z = points(n, 3, seed)
    for part in some(seed, endpoints, lifted=lifted):
        for alone in (SumObjective([part]), SumObjective([part], [1.0])):
            same(answers(alone, Z, dense=dense), answers(part, Z, dense=dense), 1e-14)
            torch.testing.assert_close(alone.fit(Z).alpha, part.fit(Z).alpha, rtol=0, atol=0)
            assert alone.equations == part.equations
            assert alone.unknowns(n, 3, SPHERE) == part.unknowns(n, 3, SPHERE)
            assert alone.name == part.name
            assert alone.notes == part.notes
            assert alone.endpoints is part.endpoints
            assert alone.capturable is part.capturable
            assert (alone.flops(n), alone.normal_flops(n)) == (part.flops(n), part.normal_flops(n))


@few
@given(**drawn)
def test_the_same_part_twice_with_half_the_weight_is_that_part_once(
    seed: int, n: int, endpoints: Endpoints, lifted: bool, dense: bool
) -> None:
    Z = points(n, 3, seed)
    for part in some(seed, endpoints, lifted=lifted):
        once = answers(part, Z, dense=dense)
        for weights in (None, (0.5, 0.5)):
            twice = SumObjective([part, part], weights)
            same(answers(twice, Z, dense=dense), once, 1e-13)
            assert twice.equations == 2 * part.equations
            assert twice.flops(n) == 2 * part.flops(n)
            alpha = part.fit(Z).alpha
            torch.testing.assert_close(twice.fit(Z).alpha, torch.cat([alpha, alpha], dim=1))


@few
@given(**drawn, weights=st.tuples(*[st.floats(0.1, 2.0)] * 2))
def test_terms_may_be_reordered_and_grouped(
    seed: int,
    n: int,
    endpoints: Endpoints,
    lifted: bool,
    dense: bool,
    weights: tuple[float, float],
) -> None:
    Z, (one, other), (a, b) = points(n, 3, seed), some(seed, endpoints, lifted=lifted), weights
    whole = answers(SumObjective([one, other], [a, b]), Z, dense=dense)
    reordered = SumObjective([other, one], [b, a])
    grouped = SumObjective([SumObjective([one, other], [a / 2, b / 2])], [2.0])
    for rewritten in (reordered, grouped):
        found = answers(rewritten, Z, dense=dense)
        # Rounding may change after how many iterations conjugate gradients stop.
        same(
            *({k: v for k, v in x.items() if dense or k not in INEXACT} for x in (found, whole)),
            1e-7,
        )


@given(seed=st.integers(0, 999), n=st.integers(1, 3), factor=st.floats(0.1, 10.0))
def test_scaling_all_weights_scales_the_loss_and_leaves_the_steps(
    seed: int, n: int, factor: float
) -> None:
    Z, parts = points(n, 3, seed), some(seed)
    plain, scaled = SumObjective(parts), SumObjective(parts, [factor / 2, factor / 2])
    torch.testing.assert_close(scaled.fit(Z).loss, factor * plain.fit(Z).loss)
    torch.testing.assert_close(scaled.costs(Z), factor * plain.costs(Z))
    steps = [objective.linearise(Z, SPHERE)[1].step(0.1) for objective in (scaled, plain)]
    torch.testing.assert_close(*steps)
    assert 0 <= float(plain.fit(Z).loss) <= 1


@given(seed=st.integers(0, 999), n=st.integers(1, 3), starts=st.integers(1, 3))
def test_several_sets_of_points_are_fitted_as_each_alone(seed: int, n: int, starts: int) -> None:
    objective = SumObjective(some(seed), [0.3, 0.9])
    Z = torch.stack([points(n, 3, seed + k) for k in range(starts)])
    jitter = 1e-6 * torch.arange(starts, dtype=F64)
    together = objective.fit(Z, jitter=jitter)
    assert together.gradient is not None
    for k in range(starts):
        alone = objective.fit(Z[k], jitter=jitter[k])
        torch.testing.assert_close(together.loss[k], alone.loss, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(together.gradient[k], alone.gradient, rtol=1e-5, atol=1e-7)
        size = float(alone.alpha.abs().max())
        torch.testing.assert_close(together.alpha[k], alone.alpha, rtol=1e-5, atol=1e-7 * size)


def with_its_module(seed: int) -> tuple[LayerwiseObjective, LayerwiseObjective]:
    """The same network twice: as an MLP, which forms JᵀJ, and as a module, which cannot."""
    victim = perturbed(mlp(4, 12, 2, activation="tanh"), seed)
    assert victim.theta_0 is not None
    module = nn.Sequential(
        nn.Linear(4, 12, bias=False), nn.Tanh(), nn.Linear(12, 2, bias=False)
    ).double()
    before, after = (
        dict(zip(module.state_dict(), theta.values(), strict=True))
        for theta in (victim.theta_0, victim.theta_f)
    )
    twin = Victim(module, before, after)
    return layerwise(evidence(victim)), layerwise(evidence(twin))


@given(seed=st.integers(0, 99), n=st.integers(1, 3))
def test_a_part_without_a_matrix_leaves_the_sum_without_one(seed: int, n: int) -> None:
    dense, free = with_its_module(seed)
    mixed, Z = SumObjective([dense, free], [0.25, 0.75]), points(n, 4, seed)
    assert dense.dense(n)
    assert not free.dense(n)
    assert not mixed.dense(n)
    _, matrix = dense.linearise(Z, SPHERE)
    fit, normal = mixed.linearise(Z, SPHERE)
    assert isinstance(matrix, DenseNormal)
    assert isinstance(normal, ImplicitNormal)
    v = torch.randn(n, 4, generator=generator(seed + 1), dtype=F64)
    size = float(matrix.N.abs().max())
    torch.testing.assert_close(normal.product(v), matrix.product(v), rtol=1e-6, atol=1e-7 * size)
    torch.testing.assert_close(normal.gradient, matrix.gradient, rtol=1e-6, atol=1e-8)
    assert normal.tolerance == normal_file.forcing(fit.loss)
    normal = replace(normal, tolerance=1e-12)
    loading = 0.1 * float(normal.scales.mean())  # each scales λ by its own mean diagonal
    N = matrix.N + loading * torch.eye(n * 4, dtype=F64)
    step = torch.linalg.solve(N, -matrix.gradient.reshape(-1)).reshape(n, 4)
    torch.testing.assert_close(normal.step(0.1), step, rtol=1e-5, atol=1e-6 * float(step.norm()))


def test_points_that_move_together_keep_their_frame() -> None:
    parts = some(0, lifted=False)
    _, normal = SumObjective(parts).linearise(points(4, 3, 0), SharedSubspace(SPHERE, 2))
    assert isinstance(normal, DenseNormal)
    assert normal.frame is not None


def test_one_failed_solve_fails_the_sum() -> None:
    parts, x = some(0, lifted=False), points(1, 3, 0)
    assert torch.isnan(SumObjective(parts).fit(torch.full_like(x, torch.nan)).loss)
    one, other = parts
    failing, fit = copy.copy(one), one.fit

    def failed(*args: Tensor, **options: bool) -> Fit:
        return replace(fit(*args, **options), loss=torch.tensor(torch.nan, dtype=F64))  # type: ignore[arg-type]

    failing.fit = failed  # type: ignore[method-assign]
    assert torch.isnan(SumObjective([failing, other]).fit(x).loss)


def test_the_name_and_the_notes_tell_what_is_summed() -> None:
    last, every = some(0)
    assert SumObjective([last, every]).name == f"{last.name} + {every.name}"
    assert SumObjective([last, every, last]).name == f"2 × {last.name} + {every.name}"
    assert SumObjective([last, every]).notes == ()


def test_the_sign_system_has_the_equations_of_lifted_parts_alone() -> None:
    lifted, plain = some(0)[0], some(0, lifted=False)[1]
    Z = points(3, 3, 1)
    M, t = lifted.sign_system(Z)
    ours, right = SumObjective([plain, lifted], [0.2, 0.25]).sign_system(Z)
    torch.testing.assert_close(ours, M / 2)
    torch.testing.assert_close(right, t / 2)
    assert SumObjective([plain, lifted]).lifted


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda parts: SumObjective([]), "at least one objective"),
        (lambda parts: SumObjective(parts, [1.0]), "one weight for each of 2 objectives, got 1"),
        (lambda parts: SumObjective(parts, [0.5, -0.5]), "positive weights, got 0.5, -0.5"),
        (lambda parts: SumObjective(parts, [0.5, float("nan")]), "positive weights"),
    ],
)
def test_sums_that_make_no_sense_are_refused(
    make: Callable[[Sequence[ExactObjective]], SumObjective], message: str
) -> None:
    with pytest.raises(OptionError, match=f"expected {message}.*; "):
        make(some(0))


def test_parts_with_points_of_different_dimensions_are_refused() -> None:
    known = evidence(perturbed(mlp(3, 40, 2), 0))
    U = torch.linalg.qr(torch.randn(3, 2, generator=generator(0), dtype=F64)).Q
    parts = [last_layer(known), last_layer(known.restrict(U))]
    with pytest.raises(OptionError, match="got points of 3, 2 coordinates; restrict all evidence"):
        SumObjective(parts)


@pytest.mark.parametrize("geometry", [SPHERE, FreeRadius(2.0)])
def test_normal_equations_of_parts_add(geometry: Geometry) -> None:
    Z, parts = points(3, 3, 0), some(0, lifted=False)
    normals: list[Normal] = [part.linearise(Z, geometry)[1] for part in parts]
    one, other = normals
    assert isinstance(one, DenseNormal)
    assert isinstance(other, DenseNormal)
    normal = combined(normals, (0.25, 0.5), torch.tensor(0.1, dtype=F64))
    assert isinstance(normal, DenseNormal)
    torch.testing.assert_close(normal.N, one.N / 4 + other.N / 2)
    torch.testing.assert_close(normal.barred, one.barred)


def test_a_matrix_free_step_is_as_exact_as_the_loss_of_the_sum_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
    normals = [part.linearise(points(3, 3, 0), SPHERE)[1] for part in some(0, lifted=False)]
    for loss, exactness in ((0.5, 0.3), (1e-8, 1e-2), (0.0, 1e-4)):
        normal = combined(normals, (0.5, 0.5), torch.tensor(loss, dtype=F64))
        assert isinstance(normal, ImplicitNormal)
        assert normal.tolerance == pytest.approx(exactness)
