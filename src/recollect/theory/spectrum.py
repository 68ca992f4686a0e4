"""The expansions of k_∞ and of the proof's bump in zonal harmonics, for d = 2 and d = 3.

They use Mehler's formula with the Hermite coefficients a_k = E[φ(√2 z)h_k(z)], and the expansion
of the powers of (1 + t)/2 in zonal harmonics:

    k_∞(t) = Σ_k a_k²((1 + t)/2)^k = Σ_m λ_m Z_m(t),
            Z_m(t) = cos(m·arccos t) for d = 2, P_m(t) for d = 3

All terms are positive, so λ_m loses no digits, however small it is. For g = Σ g_m Z_m(⟨·, x_j⟩/d)
the norm in H_∞ is ‖g‖² = Σ g_m²/λ_m.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from scipy.special import gammaln, logsumexp

from recollect.errors import OptionError
from recollect.theory.kernel import VARIANCE, bounded

Array = np.ndarray
_DEGREES = 400
"""Number of Hermite coefficients. Each adds a positive term to λ_m, so omitting the others makes
λ_m smaller and norms larger."""
_NODES = 1024
"""Number of Gauss–Legendre nodes on the cap: at least two per half wave of the last harmonic."""
_TRUSTED = 1e-13
"""Smaller Hermite coefficients are lost in the rounding errors of their integrals. They are set to
zero."""


def hermite(name: str, degrees: int = _DEGREES) -> Array:
    """The coefficients a_0, a_1, … of φ(√2 z) in orthonormal Hermite polynomials."""
    activation, sigma, k = bounded(name), math.sqrt(VARIANCE), np.arange(degrees)
    if name == "sine":
        return np.where(k % 2, np.exp(k * math.log(sigma) - VARIANCE / 2 - gammaln(k + 1) / 2), 0.0)
    if name == "erf":  # from the series of the arcsine
        j = (k - 1) / 2
        log_square = (
            gammaln(2 * j + 1) - j * math.log(4) - 2 * gammaln(j + 1) - np.log(np.maximum(k, 1))
        )
        log_square += k * math.log(2 * VARIANCE / (1 + 2 * VARIANCE)) + math.log(2 / math.pi)
        return np.where(k % 2, np.exp(log_square / 2), 0.0)
    if (
        name == "clipped-relu"
    ):  # a_k = σ E[φ''(σz)h_{k−2}(z)]σ/√(k(k−1)) with φ''(t) = δ(t) − δ(t − 1)
        at = np.array([0.0, 1 / sigma])
        density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
        h = _hermite_functions(at, degrees) / np.exp(-at * at / 4)
        z, weight = _nodes(1 / sigma)
        low = _hermite_functions(z, 2) / np.exp(-z * z / 4)
        tail = 0.5 * math.erfc(1 / sigma / math.sqrt(2))
        first = [
            float((weight * sigma * z * low[0]).sum() + tail),
            float((weight * sigma * z * low[1]).sum()),
        ]
        first[1] += math.exp(-0.25) / math.sqrt(2 * math.pi)  # ∫_{1/σ}^∞ z·density
        rest = (
            sigma
            / np.sqrt(k[2:] * (k[2:] - 1))
            * (h[: degrees - 2, 0] * density[0] - h[: degrees - 2, 1] * density[1])
        )
        return np.array([*first, *rest])
    step = 0.01
    z = np.arange(-4000, 4001) * step
    functions = _hermite_functions(z, degrees)  # h_k(z)·e^{−z²/4}
    weight = step * activation.phi(sigma * z) * np.exp(-z * z / 4) / math.sqrt(2 * math.pi)
    found = functions @ weight
    return np.where(np.abs(found) > _TRUSTED, found, 0.0)


@cache
def log_eigenvalues(name: str, d: int, degrees: int = _DEGREES) -> Array:
    """ln λ_m, m = 0 … degrees − 1."""
    if d not in (2, 3):
        raise OptionError(
            f"expected 2 or 3 dimensions for the expansion of k_∞ that bounds C, got {d}; "
            "give --constant or --log10-constant instead of --separation"
        )
    with np.errstate(divide="ignore"):
        log_a = 2 * np.log(np.abs(hermite(name, degrees)))
    k = np.arange(degrees)
    found = np.empty(degrees)
    for m in range(degrees):
        n = k[m:]
        if d == 2:  # cos^{2k}(θ/2) = 4^{−k}ΣC(2k, k − m)e^{imθ}
            part = gammaln(2 * n + 1) - gammaln(n - m + 1) - gammaln(n + m + 1) - n * math.log(4)
            part += math.log(2 if m else 1)
        else:  # (2m + 1)/2·∫((1 + t)/2)^k P_m dt
            part = (
                math.log(2 * m + 1) + 2 * gammaln(n + 1) - gammaln(n - m + 1) - gammaln(n + m + 2)
            )
        found[m] = logsumexp(log_a[m:] + part) if np.isfinite(log_a[m:]).any() else -math.inf
    found.setflags(write=False)  # the cache returns this same array to every caller
    return found


def bump(distance: Array, delta: float) -> Array:
    """The bump f_j: exp(s²/(s² − Δ²)) at a distance s below Δ, and 0 beyond (eq:cont_fct)."""
    squared = np.minimum(np.asarray(distance, dtype=float) ** 2, delta**2)
    with np.errstate(divide="ignore"):
        return np.asarray(
            np.where(
                squared < delta**2, np.exp(squared / np.minimum(squared - delta**2, -1e-300)), 0.0
            )
        )


def harmonics(angle: Array, degrees: int, d: int) -> Array:
    """Z_m at these angles, with one column for each m < degrees."""
    if d == 2:
        return np.asarray(np.cos(np.outer(angle, np.arange(degrees))))
    return np.asarray(np.polynomial.legendre.legvander(np.cos(angle), degrees - 1))


def bump_coefficients(delta: float, d: int, degrees: int = _DEGREES) -> Array:
    """Coefficients f_m = ∫fZ_m/∫Z_m² of the bump on the sphere of radius √d.

    The bump is zero outside a cap, so ∫fZ_m is computed over the cap only.
    """
    radius, m = math.sqrt(d), np.arange(degrees)
    if not 0 < delta <= 2 * radius:
        raise OptionError(
            f"expected a separation Δ in (0, 2√d], got {delta:g}; the sphere has radius √d"
        )
    t, weight = _legendre(_NODES)
    edge = math.asin(delta / (2 * radius))  # half the cap's angle
    angle, weight = edge * (t + 1), edge * weight
    f = weight * bump(2 * radius * np.sin(angle / 2), delta)
    if d == 2:
        return np.asarray((f @ harmonics(angle, degrees, d)) * np.where(m, 2, 1) / math.pi)
    return np.asarray(((f * np.sin(angle)) @ harmonics(angle, degrees, d)) * (2 * m + 1) / 2)


def _hermite_functions(z: Array, degrees: int) -> Array:
    """h_k(z)e^{−z²/4}, k < degrees, by the stable recurrence."""
    rows = [np.exp(-z * z / 4)]
    if degrees > 1:
        rows.append(z * rows[0])
    for k in range(2, degrees):
        rows.append((z * rows[k - 1] - math.sqrt(k - 1) * rows[k - 2]) / math.sqrt(k))
    return np.array(rows[:degrees])


@cache
def _legendre(nodes: int) -> tuple[Array, Array]:
    t, weight = np.polynomial.legendre.leggauss(nodes)
    return t, weight


def _nodes(high: float) -> tuple[Array, Array]:
    """Gauss–Legendre nodes on [0, high], and their weights times the normal density."""
    t, weight = _legendre(60)
    z = high * (t + 1) / 2
    return z, weight * high / 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
