"""Equations that remain for the coordinates, against the rank of the Jacobian itself."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases import CPU, F64, evidence, generator, perturbed
from hypothesis import assume, given
from hypothesis import strategies as st

import recollect as rc
from recollect.attacks.exact.confidence import expected_errors
from recollect.examine.counting import effective_equations, largest, output_rank
from recollect.geometry import FreeRadius
from recollect.objective.endpoints import Endpoints
from recollect.objective.last_layer import LastLayerObjective
from recollect.simulate.training import minimum_norm
from recollect.victim.mlp import initial_theta, mlp, random_features
from recollect.victim.victim import Victim


def explained(
    n: int, d: int, p: int, c: int, labels: int, seed: int
) -> tuple[Victim, torch.Tensor]:
    """Random features that interpolate n points whose targets span `labels` dimensions."""
    drawn = generator(seed)
    X = torch.randn(n, d, generator=drawn, dtype=F64)
    Y = torch.randn(n, labels, generator=drawn, dtype=F64)
    Y = Y @ torch.randn(labels, c, generator=drawn, dtype=F64)
    network = random_features(d, p, c, bias=True, activation="tanh")
    theta_0 = initial_theta(network, init="fan-in", generator=drawn, dtype=F64)
    return minimum_norm(network, theta_0, X, Y).victim, X


@given(
    n=st.integers(1, 6),
    d=st.integers(2, 6),
    p=st.integers(7, 14),
    c=st.integers(1, 5),
    labels=st.integers(1, 5),
    seed=st.integers(0, 999),
)
def test_the_count_is_the_rank_of_the_jacobian(
    n: int, d: int, p: int, c: int, labels: int, seed: int
) -> None:
    """At the data JᵀJ has rank min(k(p − n), nd): each equation that is left holds a direction."""
    victim, X = explained(n, d, p, c, labels, seed)
    known = evidence(victim)
    k = known.output_rank
    assert k == min(n, c, labels)
    objective = LastLayerObjective(known, device=CPU, dtype=F64)
    count = objective.effective_equations(n)
    assert count == k * (p - n)
    _, normal = objective.linearise(X, FreeRadius(1.0))
    values = torch.linalg.eigvalsh(normal.N)  # type: ignore[attr-defined]
    # Where features are nearly dependent, or coefficients nearly zero, rounding decides the rank.
    H = victim.network.features(victim.theta_f, X)
    assume(float(torch.linalg.cond(H)) < 1e3)
    assume(not bool(((values > 1e-12 * values[-1]) & (values < 1e-8 * values[-1])).any()))
    assert int((values > 1e-10 * values[-1]).sum()) == min(count, n * d)


def test_repeated_labels_lower_the_rank_in_float32_too() -> None:
    victim, _ = explained(6, 4, 40, 5, 2, 0)
    rounded = [
        {name: value.float() for name, value in theta.items()}
        for theta in (victim.theta_0, victim.theta_f)
        if theta is not None
    ]
    single = Victim(victim.network, *rounded)
    assert output_rank(single.network, single.delta(["theta"]), single.theta_f) == 2


@given(n=st.integers(1, 12), width=st.integers(3, 20), depth=st.integers(2, 4), bias=st.booleans())
def test_hidden_layers_count_as_matrices_of_low_rank(
    n: int, width: int, depth: int, bias: bool
) -> None:
    network = mlp(5, width, 2, depth=depth, bias=bias)
    theta = initial_theta(network, init="fan-in", generator=generator(0), dtype=F64)
    sizes = [(5, width), *[(width, width)] * (depth - 2)]
    expected = -min(n, 2) * 3 * n + min(n, 2) * (width + bias)
    for a, b in sizes:
        m = min(n, a + bias, b)
        expected += m * (a + bias + b - m)
    found = effective_equations(network, theta, network.trained, n, rank=2, families=3)
    assert found == max(0, expected)


@given(limit=st.integers(-1, 50), most=st.integers(0, 60))
def test_the_largest_number_is_found(limit: int, most: int) -> None:
    assert largest(lambda n: n <= limit, most) == max(0, min(limit, most))


UNDETERMINED = [
    # width, n, outputs, inputs, bias
    (64, 8, 10, 64, False),
    (64, 8, 10, 64, True),
    (60, 5, 8, 58, False),
    (40, 3, 6, 40, False),
    (50, 10, 2, 12, False),
    (80, 16, 3, 20, True),
]


@pytest.mark.parametrize(("p", "n", "c", "d", "bias"), UNDETERMINED)
def test_points_that_nothing_determines_are_not_held(
    p: int, n: int, c: int, d: int, bias: bool
) -> None:
    """A loss of zero says nothing where there are fewer equations than coordinates."""
    victim = perturbed(mlp(d, p, c, bias=bias), 0)
    X = torch.randn(n, d, generator=generator(1), dtype=F64)
    H = victim.network.features(victim.theta_f, X)
    assert victim.theta_0 is not None
    change = torch.randn(c, n, generator=generator(2), dtype=F64) @ H
    theta_0 = {**victim.theta_f, "layers.1.weight": victim.theta_f["layers.1.weight"] - change}
    theta_0["layers.0.weight"] = theta_0["layers.0.weight"] + 1e-9
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rc.RecollectWarning)
        found = rc.reconstruct(
            Victim(victim.network, theta_0, victim.theta_f),
            n,
            rc.Exact(space=rc.FullSpace(), endpoints=Endpoints.FINAL, rounds=1, iterations=60),
        )
    assert found.equations_effective is not None
    assert found.coordinates is not None
    assert found.equations_effective < found.coordinates
    assert found.confidence is not None
    assert float(found.confidence.max()) < 0.01
    assert any("exact recovery is impossible by counting" in note for note in found.notes)


@pytest.mark.parametrize("size", [0.0, 1e200])
def test_points_without_a_finite_norm_are_unknown(size: float) -> None:
    """All of them at the origin, or so far out that their norms are infinite."""
    victim, X = explained(4, 3, 60, 1, 1, 0)
    objective = LastLayerObjective(evidence(victim), device=CPU, dtype=F64)
    errors = expected_errors(objective, FreeRadius(2.0), size * X, torch.tensor(1e-10, dtype=F64))
    assert not bool(errors.isnan().any())
    assert float(errors.min()) > 1.0


def test_a_null_space_shows_though_the_loss_vanishes() -> None:
    """Two points in one place: nothing says how they share their coefficient."""
    victim, X = explained(4, 3, 60, 1, 1, 0)
    twice = torch.cat([X, X[:1] + 1e-12])
    objective = LastLayerObjective(evidence(victim), device=CPU, dtype=F64)
    errors = expected_errors(objective, FreeRadius(2.0), twice, torch.tensor(1e-10, dtype=F64))
    assert float(errors[[0, 4]].min()) > 1.0
