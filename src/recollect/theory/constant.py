"""C, which the theorem leaves open, bounded from above for circles and spheres.

    C = max_j ‖g_j‖²,  g_j in H_∞ with sup |f_j − g_j| ≤ ε̃ = c/(4(‖α‖₁ + ‖α̂‖₁)),
            f_j the bump around x_j (eq:cont_fct)

Any such g_j will do, and the least norm is wanted. Turned about x_j and averaged, a g_j stays as
near and its norm does not grow, so g = Σ g_m Z_m(⟨·, x_j⟩/d) loses nothing; ‖g‖² = Σ g_m²/λ_m, the
same for all j. It is found in two steps:

    g_m = f_m·λ_m/(λ_m + μ), the largest μ within 0.9·ε̃
            kernel regression with a ridge: feasible, not the least
    min Σ g_m²/λ_m − (1/t)·Σ_i ln(ε̃² − (f − g)²(θ_i))
            from there, for a growing t: Newton's method

How g was found proves nothing, so its distance from the bump is bounded afresh (`distance`): C is
then a true upper bound up to rounding, and near the least one. It depends on Δ, and through ε̃ on
the coefficients as well.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.special import logsumexp

from recollect.errors import OptionError
from recollect.theory.spectrum import Array, bump, bump_coefficients, harmonics, log_eigenvalues

_HARMONICS = 200
_INTERVALS = 2**14
_ROUNDING = 1e-11
"""Of Σ g_m Z_m, for each Σ |g_m|: the cosine is rounded, and Z_m rises by m² there."""
_START, _AIM = 0.9, 0.99
"""The parts of ε̃ that the regression may use, and the descent at its points: the rest is for what
lies between."""
_GAP = 0.01
"""The descent ends when the barrier costs less than this part of ‖g‖²."""


def log_C(name: str, d: int, delta: float, tolerance: float) -> float:
    """ln of an upper bound on C for a separation Δ and ε̃ = `tolerance`."""
    g = approximation(name, d, delta, tolerance)
    return _log_norm(g, log_eigenvalues(name, d)[: len(g)])


def approximation(name: str, d: int, delta: float, tolerance: float) -> Array:
    """g_m of a g within ε̃ of the bump everywhere, of nearly the least norm."""
    if not 0 < tolerance < 1:
        raise OptionError(
            f"expected a tolerance ε̃ in (0, 1), got {tolerance:g}; it is c/(4(‖α‖₁ + ‖α̂‖₁)): "
            "check these"
        )
    log_eigen, f = log_eigenvalues(name, d)[:_HARMONICS], bump_coefficients(delta, d, _HARMONICS)
    log_mu, ridge = _regression(f, log_eigen, d, delta, tolerance)
    used = log_eigen > log_mu - 20  # what lies beyond costs far more than it brings
    for density in (16, 64):  # points for each harmonic; more where too much lies between them
        better = _descend(ridge[used], log_eigen[used], d, delta, _AIM * tolerance, density)
        if distance(better, d, delta) <= tolerance:
            return better
    return ridge


def distance(g: Array, d: int, delta: float) -> float:
    """A bound on sup |f − g|: the largest value on a fine grid, and what may lie between its
    points.

    With points η apart a function exceeds its values there by at most η²/8·sup |f'' − g''|. In the
    angle |Z_m''| ≤ m², and |f''| ≤ 25d/Δ²: with w = 1/(1 − s²/Δ²), f = e^{1−w}, it is at most
    2d/Δ²·(2w²(w − 1)|w − 2| + w²)e^{1−w}, and the two terms are at most 11 and 1.5.
    """
    angle, m = np.linspace(0, math.pi, _INTERVALS + 1), np.arange(len(g))
    series = np.polynomial.chebyshev.chebval if d == 2 else np.polynomial.legendre.legval
    at_points = float(np.abs(series(np.cos(angle), g) - _bump_at(angle, d, delta)).max())
    bend = 25 * d / delta**2 + float((m * m) @ np.abs(g))
    return at_points + (math.pi / _INTERVALS) ** 2 / 8 * bend + _ROUNDING * float(np.abs(g).sum())


def _log_norm(g: Array, log_eigen: Array) -> float:
    """ln ‖g‖²; where λ_m is zero, so is g_m."""
    used = g != 0
    return float(logsumexp(2 * np.log(np.abs(g[used])) - log_eigen[used]))


def _bump_at(angle: Array, d: int, delta: float) -> Array:
    return bump(2 * math.sqrt(d) * np.sin(angle / 2), delta)


def _regression(
    f: Array, log_eigen: Array, d: int, delta: float, tolerance: float
) -> tuple[float, Array]:
    """ln μ and g of the largest ridge that stays within 0.9·ε̃, by bisection."""

    def ridge(log_mu: float) -> Array:
        return np.asarray(f * np.exp(-np.logaddexp(0, log_mu - log_eigen)))

    known = log_eigen[np.isfinite(log_eigen)]
    low, high = float(known.min()) - 50, float(known.max()) + 50
    least = distance(ridge(low), d, delta)
    if least > _START * tolerance:
        raise OptionError(
            f"expected {len(known)} harmonics to come within {_START * tolerance:.3g} of the bump, "
            f"got {least:.3g}; Δ = {delta:g} or ε̃ is too small for this bound: give --constant or "
            "--log10-constant"
        )
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (
            (middle, high)
            if distance(ridge(middle), d, delta) <= _START * tolerance
            else (low, middle)
        )
    return low, ridge(low)


def _descend(
    g: Array, log_eigen: Array, d: int, delta: float, tolerance: float, density: int
) -> Array:
    """min Σ g_m²/λ_m with |f − g| < ε̃ at the points of a grid, by Newton's method with a
    logarithmic barrier.

    It is done in g_m, each in its own units: the λ_m span a hundred orders of magnitude.
    """
    angle = np.linspace(0, math.pi, density * len(g))
    Z, f = harmonics(angle, len(g), d), _bump_at(angle, d, delta)
    cost = np.exp(
        np.minimum(-log_eigen - _log_norm(g, log_eigen), 600)
    )  # Σ cost_m g_m² is 1 at first

    def value(g: Array) -> float:
        room = tolerance**2 - (f - Z @ g) ** 2
        return math.inf if room.min() <= 0 else t * float(cost @ g**2) - float(np.log(room).sum())

    t = 1.0
    while 2 * len(angle) / t > _GAP * float(cost @ g**2):
        t *= 8
        for _ in range(50):
            left = f - Z @ g
            room = tolerance**2 - left**2
            slope = 2 * t * cost * g - Z.T @ (2 * left / room)
            curvature = (Z.T * (2 / room + 4 * (left / room) ** 2)) @ Z
            curvature[np.diag_indices(len(g))] += 2 * t * cost
            unit = 1 / np.sqrt(curvature.diagonal())
            try:
                step = -unit * cho_solve(cho_factor(curvature * unit * unit[:, None]), unit * slope)
            except (
                np.linalg.LinAlgError
            ):  # rounding has the last word: what was reached is feasible
                return g
            promised, here, size = -float(slope @ step), value(g), 1.0
            while size > 1e-10 and not value(g + size * step) <= here - 0.1 * size * promised:
                size /= 2
            if size <= 1e-10:
                break
            g = g + size * step
            if promised < 1e-3:
                break
    return g
