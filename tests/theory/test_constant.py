"""C: an explicit g, its distance from the bump and its norm by other routes, and how far from the
least it may be."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import eval_legendre

from recollect.errors import OptionError
from recollect.theory import constant
from recollect.theory.constant import approximation, distance, log_C
from recollect.theory.kernel import BOUNDED, k_infinity

each = pytest.mark.parametrize("name", sorted(BOUNDED))
both = pytest.mark.parametrize("d", [2, 3])


def the_bump(angle: np.ndarray, d: int, delta: float) -> np.ndarray:
    """eq:cont_fct again, with the distance from the cosine."""
    squared = 2 * d * (1 - np.cos(angle))
    inside = squared < delta**2
    return np.where(inside, np.exp(squared / np.where(inside, squared - delta**2, 1.0)), 0.0)


def series(g: np.ndarray, angle: np.ndarray, d: int) -> np.ndarray:
    terms = [
        np.cos(m * angle) if d == 2 else eval_legendre(m, np.cos(angle)) for m in range(len(g))
    ]
    return g @ np.array(terms)


@both
@each
@pytest.mark.parametrize(("delta", "tolerance"), [(1.5, 0.2), (2.0, 0.02), (0.6, 0.1)])
def test_g_is_as_near_as_the_proof_wants(name: str, d: int, delta: float, tolerance: float) -> None:
    g, angle = approximation(name, d, delta, tolerance), np.linspace(0, math.pi, 50_021)
    error = np.abs(series(g, angle, d) - the_bump(angle, d, delta)).max()
    assert 0.97 * tolerance < error <= tolerance


def test_what_the_descent_returns_is_not_taken_on_trust(monkeypatch: pytest.MonkeyPatch) -> None:
    """A g that is too far from the bump is dropped for the regression's, which is larger and near
    enough."""
    good = log_C("tanh", 2, 1.5, 0.1)
    monkeypatch.setattr(constant, "_descend", lambda g, *_: 0.5 * g)
    assert distance(approximation("tanh", 2, 1.5, 0.1), 2, 1.5) <= 0.1
    assert log_C("tanh", 2, 1.5, 0.1) > good


@pytest.mark.parametrize(
    ("name", "delta", "tolerance"), [("erf", 1.5, 0.2), ("erf", 1.8, 0.02), ("sine", 1.5, 0.1)]
)
def test_on_a_circle_C_is_the_norm_by_a_gram_in_sixty_digits(
    name: str, delta: float, tolerance: float
) -> None:
    """vᵀK⁻¹v at equidistant points, with the closed forms of k_∞ and without harmonics."""
    g = approximation(name, 2, delta, tolerance)
    points = 2 * len(g) + 6
    with mpmath.workdps(60):
        angle = [2 * mpmath.pi * i / points for i in range(points)]
        q = [1 + mpmath.cos(one) for one in angle]
        k = [
            2 / mpmath.pi * mpmath.asin(2 * s / 5)
            if name == "erf"
            else mpmath.exp(-2) * mpmath.sinh(s)
            for s in q
        ]
        K = mpmath.matrix(points, points)
        for i in range(points):
            for j in range(points):
                K[i, j] = k[(i - j) % points]
        v = mpmath.matrix(
            [sum(mpmath.mpf(g[m]) * mpmath.cos(m * one) for m in range(len(g))) for one in angle]
        )
        norm = (v.T * mpmath.lu_solve(K, v))[0]
        assert log_C(name, 2, delta, tolerance) == pytest.approx(float(mpmath.log(norm)), abs=1e-6)


@each
def test_on_a_sphere_C_is_the_norm_by_quadrature(name: str) -> None:
    """λ_m = (2m + 1)/2·∫kP_m from k_∞ itself; only where rounding leaves digits, hence a loose
    tolerance."""
    delta, tolerance = 1.8, 0.25
    g, (t, weight) = approximation(name, 3, delta, tolerance), np.polynomial.legendre.leggauss(120)
    k = np.array([k_infinity(name, one) for one in t])
    eigen = np.array(
        [(2 * m + 1) / 2 * (weight * k * eval_legendre(m, t)).sum() for m in range(len(g))]
    )
    used = eigen > 1e-11
    assert log_C(name, 3, delta, tolerance) == pytest.approx(
        math.log((g[used] ** 2 / eigen[used]).sum()), abs=1e-3
    )


@pytest.mark.parametrize(
    ("name", "delta", "tolerance"), [("erf", 1.5, 0.2), ("sine", 2.0, 0.1), ("erf", 1.5, 0.02)]
)
def test_no_other_function_is_much_smaller(name: str, delta: float, tolerance: float) -> None:
    """For any weights β at points: Σβf ≤ Σβg + ε̃‖β‖₁ ≤ ‖g‖√(βᵀKβ) + ε̃‖β‖₁, whatever the
    admissible g: a lower bound."""
    g = approximation(name, 2, delta, tolerance)
    angle, aim = np.linspace(0, math.pi, 16 * len(g)), 0.99 * tolerance
    f = the_bump(angle, 2, delta)
    left = f - series(g, angle, 2)
    beta = left / (aim**2 - left**2)  # the barrier's multipliers
    points = np.concatenate([angle, -angle])
    q = 1 + np.cos(points[:, None] - points)
    K = 2 / math.pi * np.arcsin(2 * q / 5) if name == "erf" else math.exp(-2) * np.sinh(q)
    twice = np.concatenate([beta, beta]) / 2
    least = (beta @ f - tolerance * np.abs(beta).sum()) ** 2 / (twice @ K @ twice)
    assert math.log(least) <= log_C(name, 2, delta, tolerance) < math.log(least) + 0.1


@settings(max_examples=15)
@given(
    name=st.sampled_from(sorted(BOUNDED)),
    d=st.sampled_from([2, 3]),
    delta=st.floats(0.3, 2.4),
    tolerance=st.floats(0.02, 0.25),
)
def test_C_is_as_large_as_it_must_be_and_grows_with_what_is_asked(
    name: str, d: int, delta: float, tolerance: float
) -> None:
    """g(x_j) ≥ 1 − ε̃, and |g(x_j)| ≤ ‖g‖√k_∞(1)."""
    found = log_C(name, d, delta, tolerance)
    assert found >= math.log((1 - tolerance) ** 2 / k_infinity(name, 1.0))
    assert found >= log_C(name, d, 1.1 * delta, tolerance) - 0.02
    assert found > log_C(name, d, delta, 1.1 * tolerance)


@both
def test_what_the_harmonics_cannot_resolve_is_refused(d: int) -> None:
    """Never a number below the least that C can be."""
    for delta in (0.3, 0.1, 0.05):
        assert log_C("tanh", d, delta, 0.24) >= math.log(0.76**2 / k_infinity("tanh", 1.0))
    for delta in (0.01, 0.005, 0.002, 0.0005, 1e-4, 1e-8):
        with pytest.raises(OptionError, match=r"harmonics .* give --constant or --log10-constant"):
            log_C("tanh", d, delta, 0.24)
    with pytest.raises(OptionError, match="harmonics"):
        log_C("tanh", d, 1.0, 1e-9)


@both
@settings(max_examples=15)
@given(delta=st.floats(0.05, 2.8), g=st.lists(st.floats(-1, 1), min_size=1, max_size=40))
def test_the_distance_is_never_understated(d: int, delta: float, g: list[float]) -> None:
    """Far more angles, off the grid, than the bound looks at; and it is not much more than what
    they show."""
    coefficients, angle = np.array(g), np.linspace(0, math.pi, 65_537) + 1e-5
    seen = float(np.abs(series(coefficients, angle, d) - the_bump(angle, d, delta)).max())
    assert seen <= distance(coefficients, d, delta) <= seen + 1e-3


@both
@pytest.mark.parametrize("delta", [0.05, 0.5, 1.0, 2.0, 2.8])
def test_how_much_the_bump_bends(d: int, delta: float) -> None:
    """|f''| ≤ 25d/Δ², which the distance relies on between its points."""
    angle = np.linspace(0, 2 * math.asin(delta / (2 * math.sqrt(d))), 20_001)
    bend = np.abs(np.diff(the_bump(angle, d, delta), 2)).max() / (angle[1] - angle[0]) ** 2
    assert bend <= 25 * d / delta**2
    if delta < 0.6:
        assert bend > 20 * d / delta**2


@both
def test_what_makes_no_sense_is_refused(d: int) -> None:
    for tolerance in (0.0, 1.0, 2.0, math.nan):
        with pytest.raises(OptionError, match="tolerance"):
            log_C("tanh", d, 1.0, tolerance)
    for delta in (0.0, -1.0, 100.0, math.nan):
        with pytest.raises(OptionError, match="separation"):
            log_C("tanh", d, delta, 0.1)
    with pytest.raises(OptionError, match="give --constant"):
        log_C("tanh", d + 8, 1.0, 0.1)
