"""Points from the zeros of ΔW_1: exact where units stay closed, none where there are no data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
import torch
from cases import CPU, F64, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect import Exact, FullSpace, Subspace, Victim, load, reconstruct
from recollect.attacks.exact.base import READ_OFF
from recollect.attacks.exact.first_layer import first_layer
from recollect.attacks.exact.unmix import TRUSTED, FirstLayer, Unmixed, Unmixing
from recollect.attacks.problem import Problem
from recollect.geometry import FreeRadius, Slice, Sphere
from recollect.truth.metrics import evaluate
from recollect.victim.mlp import mlp


def planted(
    seed: int, n: int, p: int, *, sliced: bool = False, left_out: float = 0.0
) -> tuple[FirstLayer, Tensor]:
    """W_1, points, and a change whose numbers vanish on closed units, but for a share of them."""
    draw = generator(seed)
    geometry: Slice | Sphere = Sphere(2.0)
    W = torch.randn(p, n, generator=draw, dtype=F64)
    if sliced:
        a = torch.nn.functional.normalize(torch.randn(n, generator=draw, dtype=F64), dim=0)
        geometry = Slice(0.9 * a, 1.0)
    Z = geometry.start(torch.randn(n, n, generator=draw, dtype=F64))
    closed = W @ Z.T < 0
    D = torch.randn(p, n, generator=draw, dtype=F64) * ~closed
    late = closed & (torch.rand(p, n, generator=draw, dtype=F64) < left_out)
    D = D + torch.randn(p, n, generator=draw, dtype=F64) * late
    return FirstLayer(D @ Z, (W,), geometry, n), Z


def from_nothing(first: FirstLayer, n: int, seed: int = 0) -> Unmixed:
    found = Unmixing(first, n).complete(None, generator(seed), starts=40, rounds=6)
    assert found is not None
    return found


def distances(found: Tensor, truth: Tensor) -> Tensor:
    """The relative distance of each found point to the nearest true one."""
    return (torch.cdist(found, truth) / truth.norm(dim=1)).min(dim=1).values


@given(
    n=st.integers(3, 8),
    wide=st.integers(20, 60),
    sliced=st.booleans(),
    left_out=st.sampled_from((0.0, 0.05)),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=25)
def test_points_that_are_trusted_are_right(
    n: int, wide: int, sliced: bool, left_out: float, seed: int
) -> None:
    first, Z = planted(seed, n, wide * n, sliced=sliced, left_out=left_out)
    found = from_nothing(first, n, seed)
    assert (distances(found.Z, Z)[found.trusted] < 1e-6).all()


@pytest.mark.parametrize(
    ("n", "sliced"), [(1, False), (2, False), (5, False), (5, True), (12, False), (12, True)]
)
def test_all_points_come_back_from_nothing(n: int, sliced: bool) -> None:
    complete = 0
    for seed in range(10):
        first, Z = planted(seed, n, 600 if n == 1 else 40 * n + 40, sliced=sliced, left_out=0.03)
        found = from_nothing(first, n, seed)
        complete += bool(found.trusted.all())
        if found.trusted.all():
            assert torch.cdist(Z, found.Z).min(dim=1).values.max() < 1e-6 * Z.norm(dim=1).max()
    assert complete >= 8


@pytest.mark.parametrize("sliced", [False, True])
def test_rough_points_are_enough(sliced: bool) -> None:
    first, Z = planted(3, 8, 400, sliced=sliced, left_out=0.05)
    rough = Z + 0.1 * Z.norm(dim=1, keepdim=True) / math.sqrt(8) * torch.randn(
        Z.shape, generator=generator(1), dtype=F64
    )
    found = Unmixing(first, 8).refine(first.geometry.project(rough))
    assert found.trusted.all()
    assert torch.allclose(found.Z, Z, rtol=0, atol=1e-8)


def test_the_order_of_points_and_units_and_the_scale_of_the_change_do_not_matter() -> None:
    first, Z = planted(4, 6, 300, left_out=0.05)
    start = first.geometry.project(Z + 0.05 * torch.randn(Z.shape, generator=generator(2)).double())
    order, units = torch.randperm(6, generator=generator(0)), torch.randperm(300)
    base = Unmixing(first, 6).refine(start)
    permuted = Unmixing(first, 6).refine(start[order])
    moved = replace(first, change=3.7 * first.change[units], weights=(first.weights[0][units],))
    assert torch.allclose(permuted.Z, base.Z[order], atol=1e-8)
    assert torch.allclose(Unmixing(moved, 6).refine(start).Z, base.Z, atol=1e-8)


def test_noise_in_the_change_shows_in_the_expected_errors() -> None:
    ratios = []
    for seed in range(8):
        first, Z = planted(seed, 6, 300)
        noise = torch.randn(first.change.shape, generator=generator(seed + 50), dtype=F64)
        noisy = replace(first, change=first.change + 1e-4 * noise)
        found = Unmixing(noisy, 6).refine(Z)
        assert found.trusted.all()
        real = (found.Z - Z).norm(dim=1) / Z.norm(dim=1)
        ratios.append(float((real / found.errors).median()))
    assert 0.2 < sum(ratios) / len(ratios) < 3


def shuffled(first: FirstLayer) -> FirstLayer:
    units = torch.randperm(len(first.change), generator=generator(9))
    return replace(first, change=first.change[units])


def noisy(first: FirstLayer) -> FirstLayer:
    drawn = torch.randn(first.change.shape, generator=generator(9), dtype=F64)
    return replace(first, change=drawn)


def other_weights(first: FirstLayer) -> FirstLayer:
    drawn = torch.randn(first.weights[0].shape, generator=generator(9), dtype=F64)
    return replace(first, weights=(drawn,))


def few_entries(first: FirstLayer) -> FirstLayer:
    change = torch.zeros_like(first.change)
    for k in range(change.shape[1]):
        change[7 * k, k] = 0.3
    return replace(first, change=change)


def sparse(first: FirstLayer) -> FirstLayer:
    kept = torch.rand(first.change.shape, generator=generator(9), dtype=F64) < 0.1
    return replace(first, change=first.change * kept)


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("disturb", [shuffled, noisy, other_weights, few_entries, sparse])
def test_nothing_is_trusted_where_nothing_of_the_data_is_left(
    disturb: Callable[[FirstLayer], FirstLayer], n: int
) -> None:
    for seed in range(4):
        first, _ = planted(seed, n, 200)
        if disturb in (noisy, sparse) and n == 1:
            continue  # in one dimension there is a single direction
        assert not from_nothing(disturb(first), n, seed).trusted.any()


def test_a_point_that_nothing_holds_is_not_trusted() -> None:
    """x_1 leaves all units closed that x_0 does, so that zeros leave x_1 + c·x_0 open."""
    first, Z = planted(5, 4, 300)
    closed = first.weights[0] @ Z.T < 0
    nested = ~closed[:, 0] | closed[:, 1]
    first = replace(first, change=first.change[nested], weights=(first.weights[0][nested],))
    found = Unmixing(first, 4).refine(Z)
    assert not found.trusted[1]
    assert found.trusted[[0, 2, 3]].all()


def test_a_point_that_is_found_twice_is_not_trusted() -> None:
    for seed in range(5):
        first, Z = planted(seed, 3, 200)
        twice = Z.clone()
        twice[1] = first.geometry.project(Z[:1] + 1e-4 * Z[1:2])[0]
        found = Unmixing(first, 3).refine(twice)
        each = torch.cdist(found.Z[found.trusted], Z).argmin(dim=1).tolist()
        assert len(set(each)) == len(each)


def test_a_change_of_another_rank_is_refused() -> None:
    first, _ = planted(6, 4, 100)
    for n in (3, 5):  # fewer points would be blends
        with pytest.raises(ValueError, match=f"rank {n}"):
            Unmixing(first, n)


@pytest.mark.parametrize("n", [2, 3])
def test_too_few_points_are_not_read_off(n: int) -> None:
    for seed in range(3):
        before, after, _, _ = trained(n=n, d=12, widths=(80,), seed=seed)
        victim = load(before, after, activation="relu")
        found = reconstruct(victim, n - 1, Exact(unmix="only"))
        assert found.confidence is not None
        assert not found.confidence.any()


@pytest.mark.parametrize(("n", "width", "steps"), [(1, 50, 100), (1, 400, 100), (2, 100, 100)])
@pytest.mark.parametrize("bias", [False, True])
def test_steps_of_adam_are_not_read_off(n: int, width: int, steps: int, bias: bool) -> None:
    adam = partial(torch.optim.Adam, lr=1e-3)
    for seed in range(4):
        before, after, X, _ = trained(
            n=n, d=12, widths=(width,), bias=bias, optimiser=adam, steps=steps, seed=seed
        )
        found = reconstruct(load(before, after, activation="relu"), n, Exact(unmix="only"))
        assert found.confidence is not None
        points, truth = found.inputs, X.double()
        if not bias:
            points, truth = (nn.functional.normalize(one, dim=1) for one in (points, truth))
        assert (distances(points, truth)[found.confidence > 0.5] < 0.1).all()


# Networks that were trained by somebody else's code, in float32.


def trained(
    *,
    n: int = 6,
    d: int = 20,
    widths: tuple[int, ...] = (120,),
    outputs: int = 3,
    bias: bool = True,
    activation: type[nn.Module] = nn.ReLU,
    classes: bool = False,
    optimiser: Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer] = partial(
        torch.optim.SGD, lr=0.05
    ),
    batch: int | None = None,
    steps: int = 300,
    seed: int = 0,
) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, nn.Module]:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in zip((d, *widths), widths, strict=False):
        layers += [nn.Linear(a, b, bias=bias), activation()]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], outputs, bias=bias))
    X, Y = torch.randn(n, d), torch.randn(n, outputs)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steppers = optimiser(model.parameters())
    for _ in range(steps):
        some = torch.randperm(n)[: batch or n]
        steppers.zero_grad()
        out = model(X[some])
        loss = (
            nn.functional.cross_entropy(out, Y[some].argmax(1))
            if classes
            else nn.functional.mse_loss(out, Y[some])
        )
        loss.backward()
        steppers.step()
    return before, dict(model.state_dict()), X, model


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"widths": (80, 80)},
        {"classes": True},
        {"batch": 2},
        {"optimiser": partial(torch.optim.SGD, lr=0.02, momentum=0.9, nesterov=True)},
        {"n": 1, "widths": (400,)},
        {"n": 2, "bias": False},
        {"bias": False, "widths": (80, 80)},
    ],
    ids=str,
)
def test_ordinary_training_gives_its_points_away(options: dict[str, object]) -> None:
    before, after, X, _ = trained(**options)  # type: ignore[arg-type]
    victim = load(before, after, activation="relu")
    found = reconstruct(victim, len(X), Exact(parameters="all"))
    truth = X.double()
    if options.get("bias") is False:  # norms do not show
        truth = math.sqrt(truth.shape[1]) * nn.functional.normalize(truth, dim=1)
    assert found.stages[-1].name == READ_OFF
    assert evaluate(found, truth).errors.max() < 1e-3
    assert found.confidence is not None
    assert found.confidence.min() > 0.8
    assert found.signs_settled


def test_the_number_of_points_is_the_rank() -> None:
    before, after, X, _ = trained()
    found = reconstruct(load(before, after, activation="relu"), None, Exact())
    assert len(found.inputs) == len(X)
    assert found.n_clear
    assert found.n_tried == ((len(X), found.loss),)


def test_it_can_be_left_out_and_says_that_it_was_used() -> None:
    before, after, X, _ = trained()
    victim = load(before, after, activation="relu")
    searched = reconstruct(victim, len(X), Exact(unmix="never"))
    assert READ_OFF not in [stage.name for stage in searched.stages]
    assert any("left closed" in note for note in reconstruct(victim, len(X), Exact()).notes)


def test_the_same_seed_gives_the_same_bits() -> None:
    before, after, X, _ = trained(widths=(60, 60))
    victim = load(before, after, activation="relu")
    one, other = (reconstruct(victim, len(X), Exact(), seed=3) for _ in range(2))
    assert torch.equal(one.inputs, other.inputs)


def test_full_space_and_modules_work_as_well() -> None:
    before, after, X, model = trained(n=4, d=6)
    victim = load(before, after, activation="relu")
    full = reconstruct(victim, 4, Exact(space=FullSpace()))
    assert evaluate(full, X.double()).errors.max() < 1e-3
    module = load(before, after, model=model, input_shape=(6,))
    assert evaluate(reconstruct(module, 4, Exact()), X.double()).errors.max() < 1e-3


@pytest.mark.parametrize(
    "activation", [nn.Tanh, nn.GELU, nn.LeakyReLU], ids=lambda one: one.__name__
)
def test_networks_whose_units_never_close_have_no_zeros(activation: type[nn.Module]) -> None:
    before, after, _, model = trained(activation=activation)
    victim = load(before, after, model=model, input_shape=(20,))
    assert first_layer(Problem.of(victim, Exact(), CPU)) is None


def test_where_lengths_are_unknown_there_is_no_first_layer() -> None:
    before, after, _, _ = trained()
    victim = load(before, after, activation="relu")
    problem = Problem.of(victim, Exact(norm="free"), CPU)
    assert isinstance(problem.everywhere, FreeRadius)
    assert first_layer(problem) is None


def test_one_record_under_adam_is_not_read_off() -> None:
    """Its steps are signs, so that the direction found is sign(x)."""
    for seed in range(5):
        adam = partial(torch.optim.Adam, lr=1e-3)
        before, after, _, _ = trained(n=1, bias=False, optimiser=adam, steps=1, seed=seed)
        found = reconstruct(
            load(before, after, activation="relu"), 1, Exact(space=Subspace(rank=1), rounds=0)
        )
        assert READ_OFF not in [stage.name for stage in found.stages]


def test_points_that_the_search_found_are_made_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where random points are not tried, those of the search serve."""
    before, after, X, _ = trained(n=8, widths=(200,))
    victim = load(before, after, activation="relu")
    tuning = replace(Exact().tuning, unmixing_rounds=0)
    found = reconstruct(victim, 8, Exact(parameters="all", tuning=tuning))
    assert found.stages[-1].name == READ_OFF
    assert len(found.stages) > 1
    assert evaluate(found, X.double()).errors.max() < 1e-3


def test_errors_say_which_points_are_read_off() -> None:
    Z, known = torch.eye(2, dtype=F64), torch.tensor([True, True])
    found = Unmixed(Z, known, torch.tensor([TRUSTED / 2, TRUSTED * 2], dtype=F64))
    assert found.trusted.tolist() == [True, False]


def test_a_victim_without_a_change_of_the_first_layer_is_searched() -> None:
    network = mlp(5, 20, 1)
    theta = {
        name: torch.randn(shape, dtype=F64)
        for name, shape in {network.first.weight: (20, 5), network.last.weight: (1, 20)}.items()
    }
    moved = {**theta, network.last.weight: theta[network.last.weight] + 0.1}
    found = reconstruct(Victim(network, theta, moved), 2, Exact(space=FullSpace(), rounds=0))
    assert READ_OFF not in [stage.name for stage in found.stages]
