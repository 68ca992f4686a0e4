"""The expansion of k_∞ on a small sphere, and C: what the theorem leaves as a constant, bounded from above.

Mehler's formula with the Hermite coefficients a_k = E[φ(√2 z)h_k(z)], and the powers of (1 + t)/2 in zonal harmonics:

    k_∞(t) = Σ_k a_k²((1 + t)/2)^k = Σ_m λ_m Z_m(t),    Z_m(t) = cos(m·arccos t) for d = 2, P_m(t) for d = 3

All terms are positive, so λ_m loses no digits however small it is. For g = Σ g_m Z_m(⟨·, x_j⟩/d) the norm in H_∞ is
‖g‖² = Σ g_m²/λ_m. The proof wants a g_j within ε̃ of the bump f_j around x_j (eq:cont_fct), and C = max_j ‖g_j‖². Here

    g_m = f_m·λ_m/(λ_m + μ),   the largest μ with Σ_m |f_m − g_m| ≤ ε̃

(kernel regression to f_j with a ridge μ). |Z_m| ≤ 1, so this g is admissible and its norm bounds C from above.
C depends on Δ, and through ε̃ = c/(4(‖α‖₁ + ‖α̂‖₁)) on the coefficients as well.
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
"""Hermite coefficients; each adds its positive part, so leaving out the rest makes λ_m smaller and the bound larger."""
_GRID = 4096
_TRUSTED = 1e-13
"""Smaller Hermite coefficients are lost in the rounding of their integrals, and left out."""


def hermite(name: str, degrees: int = _DEGREES) -> Array:
    """a_0 … of φ(√2 z) in orthonormal Hermite polynomials."""
    activation, sigma, k = bounded(name), math.sqrt(VARIANCE), np.arange(degrees)
    if name == "sine":
        return np.where(k % 2, np.exp(k * math.log(sigma) - VARIANCE / 2 - gammaln(k + 1) / 2), 0.0)
    if name == "erf":  # the series of the arc sine
        j = (k - 1) / 2
        log_square = gammaln(2 * j + 1) - j * math.log(4) - 2 * gammaln(j + 1) - np.log(np.maximum(k, 1))
        log_square += k * math.log(2 * VARIANCE / (1 + 2 * VARIANCE)) + math.log(2 / math.pi)
        return np.where(k % 2, np.exp(log_square / 2), 0.0)
    if name == "clipped-relu":  # a_k = σ E[φ''(σz)h_{k−2}(z)]σ/√(k(k−1)), φ'' a spike up at 0 and one down at 1
        at = np.array([0.0, 1 / sigma])
        density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi)
        h = _hermite_functions(at, degrees) / np.exp(-at * at / 4)
        z, weight = _nodes(1 / sigma)
        low = _hermite_functions(z, 2) / np.exp(-z * z / 4)
        tail = 0.5 * math.erfc(1 / sigma / math.sqrt(2))
        first = [float((weight * sigma * z * low[0]).sum() + tail), float((weight * sigma * z * low[1]).sum())]
        first[1] += math.exp(-0.25) / math.sqrt(2 * math.pi)  # ∫_{1/σ}^∞ z·density
        rest = (
            sigma / np.sqrt(k[2:] * (k[2:] - 1)) * (h[: degrees - 2, 0] * density[0] - h[: degrees - 2, 1] * density[1])
        )
        return np.array([*first, *rest])
    step = 0.01
    z = np.arange(-4000, 4001) * step
    functions = _hermite_functions(z, degrees)  # h_k(z)·e^{−z²/4}
    weight = step * activation.phi(sigma * z) * np.exp(-z * z / 4) / math.sqrt(2 * math.pi)
    found = functions @ weight
    return np.where(np.abs(found) > _TRUSTED, found, 0.0)


def log_eigenvalues(name: str, d: int, degrees: int = _DEGREES) -> Array:
    """ln λ_m, m = 0 … degrees − 1."""
    if d not in (2, 3):
        raise OptionError(f"expected d = 2 or 3 for the expansion of k_∞, got {d}; the others are not worked out here")
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
            part = math.log(2 * m + 1) + 2 * gammaln(n + 1) - gammaln(n - m + 1) - gammaln(n + m + 2)
        found[m] = logsumexp(log_a[m:] + part) if np.isfinite(log_a[m:]).any() else -math.inf
    return found


def bump(distance: Array, delta: float) -> Array:
    """f_j: exp(s²/(s² − Δ²)) within Δ, 0 beyond (eq:cont_fct)."""
    squared = np.minimum(np.asarray(distance, dtype=float) ** 2, delta**2)
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(squared < delta**2, np.exp(squared / np.minimum(squared - delta**2, -1e-300)), 0.0))


def bump_coefficients(delta: float, d: int, degrees: int = _DEGREES) -> Array:
    """f_m of the bump on the sphere of radius √d, about which it turns."""
    radius = math.sqrt(d)
    if not 0 < delta <= 2 * radius:
        raise OptionError(f"expected a separation Δ in (0, 2√d], got {delta:g}; the sphere has radius √d")
    if d == 2:
        theta = 2 * np.pi * np.arange(_GRID) / _GRID
        values = np.fft.rfft(bump(2 * radius * np.sin(theta / 2), delta)).real / _GRID
        values[1:] *= 2
        return np.asarray(values[:degrees])
    t, weight = _legendre(_GRID // 4)
    # The bump covers a small cap: nodes there alone.
    low = max(-1.0, 1 - delta**2 / (2 * d))
    t, weight = low + (t + 1) * (1 - low) / 2, weight * (1 - low) / 2
    f = bump(radius * np.sqrt(np.maximum(0.0, 2 - 2 * t)), delta) * weight
    before, here, found = np.ones_like(t), t, []
    for m in range(degrees):
        polynomial = before if m == 0 else here
        found.append((2 * m + 1) / 2 * float(f @ polynomial))
        if m >= 1:
            before, here = here, ((2 * m + 1) * t * here - m * before) / (m + 1)
    return np.array(found)


def log_C(name: str, d: int, delta: float, tolerance: float, degrees: int = _DEGREES) -> float:
    """ln of an upper bound on C for a separation Δ and ε̃ = `tolerance`."""
    if not 0 < tolerance < 1:
        raise OptionError(f"expected a tolerance ε̃ in (0, 1), got {tolerance:g}; it is c/(4(‖α‖₁ + ‖α̂‖₁))")
    f, log_eigen = bump_coefficients(delta, d, degrees), log_eigenvalues(name, d, degrees)
    # What lies beyond: the bump at its own point is 1, and an even smooth function's coefficients sum to that.
    beyond = _beyond(f, d, delta)
    size = np.abs(f)

    def left(log_mu: float) -> float:
        return float((size / (1 + np.exp(np.minimum(log_eigen - log_mu, 700)))).sum()) + beyond

    low, high = float(log_eigen[np.isfinite(log_eigen)].min()) - 50, float(log_eigen.max()) + 50
    if left(low) > tolerance:
        raise OptionError(
            f"expected {degrees} harmonics to come within {tolerance:g} of the bump, got {left(low):.2g}; "
            f"Δ = {delta:g} is too small for this bound"
        )
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if left(middle) <= tolerance else (low, middle)
    used = (size > 0) & np.isfinite(log_eigen)
    ratio = -np.logaddexp(0, low - log_eigen[used])  # ln(λ/(λ + μ))
    return float(logsumexp(2 * np.log(size[used]) + 2 * ratio - log_eigen[used]))


def _beyond(f: Array, d: int, delta: float) -> float:
    """Σ|f_m| of the harmonics that were left out, from as many again."""
    more = bump_coefficients(delta, d, min(2 * len(f), _GRID // 4))[len(f) :]
    return float(np.abs(more).sum())


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
    """Gauss–Legendre on [0, high], weighted with the normal density."""
    t, weight = _legendre(60)
    z = high * (t + 1) / 2
    return z, weight * high / 2 * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
