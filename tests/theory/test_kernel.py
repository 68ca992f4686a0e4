"""k_∞ three ways, its expansion, the bump, and how far k_p is from it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect import Exact, FullSpace, random_features, reconstruct
from recollect.errors import OptionError
from recollect.simulate.training import minimum_norm
from recollect.system.seeds import stream
from recollect.theory.bounds import Lemma
from recollect.theory.deviation import deviation, features
from recollect.theory.discrepancy import chain
from recollect.theory.kernel import BOUNDED, Zonal, bounded, k_infinity, k_slope, price
from recollect.theory.spectrum import bump, bump_coefficients, hermite, log_eigenvalues
from recollect.victim.activations import activation

NAMES = sorted(BOUNDED)
each = pytest.mark.parametrize("name", NAMES)


@each
def test_two_ways_to_the_kernel_agree(name: str) -> None:
    for t in (-1.0, -0.9, -0.3, 0.0, 0.4, 0.95, 0.9999, 1.0):
        assert k_infinity(name, t) == pytest.approx(price(name, t), abs=1e-10)


@each
def test_the_kernel_agrees_with_ten_million_samples(name: str) -> None:
    phi = bounded(name).phi
    generator = np.random.default_rng(NAMES.index(name))
    for t in (-0.5, 0.7):
        sums = []
        for _ in range(10):
            a, b, c = generator.standard_normal((3, 1_000_000))
            u, w = a + b, a + t * b + math.sqrt(1 - t * t) * c  # variance 2, covariance 1 + t
            sums.append((phi(u) * phi(w)).mean())
        error = np.std(sums, ddof=1) / math.sqrt(len(sums))
        assert abs(np.mean(sums) - k_infinity(name, t)) < 5 * error


@each
def test_the_expansion_is_the_kernel(name: str) -> None:
    """Mehler's series, and the two kinds of harmonics."""
    a, degrees = hermite(name), np.arange(400)
    for t in (-0.8, 0.1, 0.7):
        known = k_infinity(name, t)
        assert float((a**2 * ((1 + t) / 2) ** degrees).sum()) == pytest.approx(known, abs=1e-12)
        circle = float((np.exp(log_eigenvalues(name, 2)) * np.cos(degrees * math.acos(t))).sum())
        assert circle == pytest.approx(known, abs=1e-12)
        sphere = float(np.polynomial.legendre.legval(t, np.exp(log_eigenvalues(name, 3))))
        assert sphere == pytest.approx(known, abs=1e-12)


@each
def test_the_interpolant_and_the_slope(name: str) -> None:
    zonal, slope = Zonal(name), Zonal(name, slope=True)
    t = np.linspace(-1, 1, 41)
    assert np.abs(zonal(t) - [k_infinity(name, one) for one in t]).max() < 1e-7
    h = 1e-5
    for one in (-0.5, 0.0, 0.6):
        difference = (k_infinity(name, one + h) - k_infinity(name, one - h)) / (2 * h)
        assert k_slope(name, one) == pytest.approx(difference, rel=1e-5)
        assert float(slope(np.array(one))) == pytest.approx(difference, rel=1e-3)


@each
def test_the_constants_bound_the_activation(name: str) -> None:
    known, t = bounded(name), np.linspace(-30, 30, 600_001)
    assert np.abs(known.phi(t)).max() <= known.M + 1e-15
    assert np.abs(known.slope(t)).max() <= known.L + 1e-15
    assert np.abs(np.diff(known.phi(t)) / np.diff(t)).max() <= known.L + 1e-9
    torch.testing.assert_close(
        activation(name).phi(torch.from_numpy(t)), torch.from_numpy(known.phi(t))
    )
    torch.testing.assert_close(
        activation(name).derivative(torch.from_numpy(t)),
        torch.from_numpy(np.asarray(known.slope(t))),
    )


@pytest.mark.parametrize("d", [2, 3])
@settings(max_examples=10)
@given(delta=st.floats(0.8, 2.0))
def test_the_bump_is_the_sum_of_its_harmonics(d: int, delta: float) -> None:
    f, angle = bump_coefficients(delta, d), np.linspace(0, math.pi, 50)
    shape = bump(2 * math.sqrt(d) * np.sin(angle / 2), delta)
    series = (
        np.cos(np.outer(angle, np.arange(len(f)))) @ f
        if d == 2
        else np.polynomial.legendre.legval(np.cos(angle), f)
    )
    assert np.abs(series - shape).max() < 1e-4
    assert shape[0] == 1


def test_only_circles_and_spheres_are_expanded() -> None:
    with pytest.raises(OptionError, match="2 or 3"):
        log_eigenvalues("tanh", 4)


def test_the_search_finds_the_supremum_of_a_circle() -> None:
    V, b = features(5, 80, 2, 0)
    found = deviation("tanh", V, b)
    angle = 2 * math.pi * torch.arange(720, dtype=torch.float64) / 720
    X = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1)
    exact = torch.from_numpy(Zonal("tanh")((X @ X.T / 2).numpy()))
    for k in range(5):
        H = torch.tanh(X @ V[k].T + b[k])
        grid = float((H @ H.T / 80 - exact).abs().max())
        assert grid - 1e-12 <= float(found[k]) < grid + 1e-3


@pytest.mark.parametrize("d", [2, 3])
def test_the_lemma_holds_in_a_thousand_draws(d: int) -> None:
    """It holds with room to spare: the largest of all is far below ε."""
    delta, p = 0.05, 300
    epsilon = math.exp(lemma_of("tanh", d).log_epsilon(p, math.log(delta)))
    found = torch.cat(
        [
            deviation(
                "tanh", *features(200, p, d, seed), seed=seed, pairs=128, climbers=4, steps=30
            )
            for seed in range(5)
        ]
    )
    assert len(found) == 1000
    assert float((found > epsilon).double().mean()) <= delta
    assert 0.02 < float(found.median()) < epsilon / 3


def lemma_of(name: str, d: int) -> Lemma:
    return Lemma(d, bounded(name).M, bounded(name).L)


def rf(name: str, n: int, d: int, p: int, seed: int):  # type: ignore[no-untyped-def]
    network = random_features(d, p, 1, bias=True, activation=name)
    V, b = (one[0] for one in features(1, p, d, seed))
    first, last = network.layers[0], network.last.weight
    theta_0 = {first.weight: V, str(first.bias): b, last: torch.zeros(1, p, dtype=torch.float64)}
    X = torch.randn(n, d, generator=stream("data", seed), dtype=torch.float64)
    X = math.sqrt(d) * torch.nn.functional.normalize(X, dim=1)
    y = torch.tensor([[1.0], [-1.0]], dtype=torch.float64).repeat(n, 1)[:n]
    return minimum_norm(network, theta_0, X, y), X, y, V, b


@each
def test_the_chain_of_the_proof(name: str) -> None:
    """For any measures, near or far; and for what an attack finds."""
    done, X, y, V, b = rf(name, 4, 3, 400, 1)
    form = done.closed_form
    assert form is not None
    Phi = activation(name).phi(X @ V.T + b) / math.sqrt(400)
    torch.testing.assert_close(form.alpha, torch.linalg.solve(Phi @ Phi.T, y), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(
        done.victim.theta_f[done.victim.network.last.weight], (Phi.T @ form.alpha).T
    )
    assert form.c == pytest.approx(float(form.alpha.abs().min()))
    assert form.l1 == pytest.approx(float(form.alpha.abs().sum()))
    assert form.separation == pytest.approx(float(torch.pdist(X).min()))
    alpha = form.alpha[:, 0]
    for shift in (0.0, 1e-3, 0.5):
        moved = X + shift * torch.randn(X.shape, generator=stream("moved", 0), dtype=torch.float64)
        moved = math.sqrt(3) * torch.nn.functional.normalize(moved, dim=1)
        found = chain(name, V, b, X, alpha, moved, alpha * (1 + shift))
        assert found.mmd_p == pytest.approx(math.sqrt(found.loss), rel=1e-6, abs=1e-6 * found.alpha)
        assert found.mmd_infinity <= found.bound * (1 + 1e-9) + 1e-9
        assert found.deviation <= float(deviation(name, V[None], b[None], steps=100)[0]) + 1e-3


def test_what_an_attack_finds_obeys_the_chain() -> None:
    done, X, _, V, b = rf("tanh", 3, 2, 200, 0)
    found = reconstruct(done.victim, 3, Exact(space=FullSpace(), norm=math.sqrt(2)), device="cpu")
    assert done.closed_form is not None
    told = chain(
        "tanh", V, b, X, done.closed_form.alpha[:, 0], found.inputs, found.coefficients[:, 0]
    )
    assert told.loss < 1e-12
    assert told.mmd_infinity <= math.sqrt(told.deviation) * (told.alpha + told.alpha_hat) + 1e-9
