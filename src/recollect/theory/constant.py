"""An upper bound on the theorem's constant C, for circles and spheres.

The theorem does not give the value of C. Its definition is

    C = max_j ‖g_j‖²,  g_j in H_∞ with sup |f_j − g_j| ≤ ε̃ = c/(4(‖α‖₁ + ‖α̂‖₁)),
            f_j the bump around x_j (eq:cont_fct)

Every such g_j gives a valid bound, and a smaller norm gives a better one. Averaging g_j over the
rotations about x_j increases neither its distance from f_j nor its norm. It is therefore enough to
consider g = Σ g_m Z_m(⟨·, x_j⟩/d), whose norm ‖g‖² = Σ g_m²/λ_m is the same for all j. It is found
in two steps:

    g_m = f_m·λ_m/(λ_m + μ), the largest μ within 0.9·ε̃
            kernel ridge regression: g is feasible, but its norm is not the smallest
    min Σ g_m²/λ_m − (1/t)·Σ_i ln(ε̃² − (f − g)²(θ_i))
            Newton's method, which starts from that g, for increasing t

This search proves nothing about g, so the distance of g from the bump is bounded independently
(`distance`). The result is then a true upper bound on C up to rounding, and close to the smallest
one. It depends on Δ and, through ε̃, on the coefficients.
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
"""Rounding error of Σ g_m Z_m, relative to Σ |g_m|. The cosine is rounded, and the slope of Z_m as
a function of the cosine is up to m²."""
_START, _AIM = 0.9, 0.99
"""Fractions of ε̃ that the regression may use, and that the descent may use at its grid points. The
rest is left for the error between the grid points."""
_GAP = 0.01
"""The descent ends when the barrier increases ‖g‖² by less than this fraction of it."""


def log_C(name: str, d: int, delta: float, tolerance: float) -> float:
    """ln of an upper bound on C for a separation Δ and ε̃ = `tolerance`."""
    g = approximation(name, d, delta, tolerance)
    return _log_norm(g, log_eigenvalues(name, d)[: len(g)])


def approximation(name: str, d: int, delta: float, tolerance: float) -> Array:
    """Coefficients g_m of a g within ε̃ of the bump everywhere, with nearly the least norm."""
    if not 0 < tolerance < 1:
        raise OptionError(
            f"expected a tolerance ε̃ in (0, 1), got {tolerance:g}; it is c/(4(‖α‖₁ + ‖α̂‖₁)): "
            "check these"
        )
    log_eigen, f = log_eigenvalues(name, d)[:_HARMONICS], bump_coefficients(delta, d, _HARMONICS)
    log_mu, ridge = _regression(f, log_eigen, d, delta, tolerance)
    used = log_eigen > log_mu - 20  # the other harmonics add far more norm than accuracy
    for density in (16, 64):  # grid points per harmonic; more if the first grid is too coarse
        better = _descend(ridge[used], log_eigen[used], d, delta, _AIM * tolerance, density)
        if distance(better, d, delta) <= tolerance:
            return better
    return ridge


def distance(g: Array, d: int, delta: float) -> float:
    """A bound on sup |f − g|: the largest value on a fine grid, plus a bound on the excess between
    the grid points.

    If the points are η apart, |f − g| exceeds its values at the points by at most
    η²/8·sup |f'' − g''|. The derivatives with respect to the angle satisfy |Z_m''| ≤ m² and
    |f''| ≤ 25d/Δ². The latter holds because f = e^{1−w} with w = 1/(1 − s²/Δ²), and then |f''| is
    at most 2d/Δ²·(2w²(w − 1)|w − 2| + w²)e^{1−w}, whose two terms are at most 11 and 1.5.
    """
    angle, m = np.linspace(0, math.pi, _INTERVALS + 1), np.arange(len(g))
    series = np.polynomial.chebyshev.chebval if d == 2 else np.polynomial.legendre.legval
    at_points = float(np.abs(series(np.cos(angle), g) - _bump_at(angle, d, delta)).max())
    bend = 25 * d / delta**2 + float((m * m) @ np.abs(g))
    return at_points + (math.pi / _INTERVALS) ** 2 / 8 * bend + _ROUNDING * float(np.abs(g).sum())


def _log_norm(g: Array, log_eigen: Array) -> float:
    """ln ‖g‖². If λ_m is zero, g_m is zero too, and its term is left out."""
    used = g != 0
    return float(logsumexp(2 * np.log(np.abs(g[used])) - log_eigen[used]))


def _bump_at(angle: Array, d: int, delta: float) -> Array:
    return bump(2 * math.sqrt(d) * np.sin(angle / 2), delta)


def _regression(
    f: Array, log_eigen: Array, d: int, delta: float, tolerance: float
) -> tuple[float, Array]:
    """ln μ and g for the largest ridge μ at which g is within 0.9·ε̃ of the bump, by bisection."""

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
    """Minimise Σ g_m²/λ_m subject to |f − g| < ε̃ at the points of a grid, by Newton's method with
    a logarithmic barrier.

    The unknowns are the g_m, and the Newton equations are scaled to a unit diagonal, because the
    λ_m span a hundred orders of magnitude.
    """
    angle = np.linspace(0, math.pi, density * len(g))
    Z, f = harmonics(angle, len(g), d), _bump_at(angle, d, delta)
    cost = np.exp(
        np.minimum(-log_eigen - _log_norm(g, log_eigen), 600)
    )  # scaled so that Σ cost_m g_m² is 1 at the start

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
            ):  # rounding errors stop the descent; the g reached so far is feasible
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
