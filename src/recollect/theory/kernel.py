"""k_∞(x, x') = E[φ(vᵀx + b)φ(vᵀx' + b)], v ~ N(0, I/d), b ~ N(0, 1): the kernel of infinitely many
random features.

On the sphere ‖x‖ = √d the two pre-activations are Gaussian with variance 2 and covariance 1 + t,
where t = xᵀx'/d ∈ [−1, 1]. Hence k_∞ is a function of t alone for every d. The kernel of p random
features is k_p(x, x') = φ(Vx + b)ᵀφ(Vx' + b)/p. The values of k_∞ are computed as follows:

    erf    (2/π)·arcsin(2(1 + t)/5)          sine   e⁻²·sinh(1 + t)
            (closed forms)
    tanh, sigmoid
            the double integral in independent coordinates by the trapezoidal rule, which converges
                    exponentially for functions analytic in a strip
    clipped-relu    E[φ(u)·E[φ(w)|u]], the inner expectation in closed form

`price` computes the same values in another way, from dk/dq = E[φ'(u)φ'(w)], where q is the
covariance (Price's theorem).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev
from scipy import integrate
from scipy.special import erf, ndtr

from recollect.errors import OptionError

Array = np.ndarray
VARIANCE = 2.0
"""Variance of a pre-activation, ‖x‖²/d + 1."""


@dataclass(frozen=True)
class Bounded:
    """An activation that the theory covers."""

    name: str
    M: float
    """|φ| ≤ M."""
    L: float
    """|φ'| ≤ L."""
    phi: Callable[[Array], Array]
    slope: Callable[[Array], Array]


def _sigmoid(t: Array) -> Array:
    return 0.5 * (1 + np.tanh(t / 2))


BOUNDED = {
    one.name: one
    for one in (
        Bounded("tanh", 1.0, 1.0, np.tanh, lambda t: 1 / np.cosh(t) ** 2),
        Bounded("sigmoid", 1.0, 0.25, _sigmoid, lambda t: _sigmoid(t) * _sigmoid(-t)),
        Bounded("sine", 1.0, 1.0, np.sin, np.cos),
        Bounded(
            "erf",
            1.0,
            2 / math.sqrt(math.pi),
            erf,
            lambda t: 2 / math.sqrt(math.pi) * np.exp(-(t**2)),
        ),
        Bounded(
            "clipped-relu",
            1.0,
            1.0,
            lambda t: np.clip(t, 0, 1),
            lambda t: ((t > 0) & (t < 1)).astype(float),
        ),
    )
}


def bounded(name: str) -> Bounded:
    if name not in BOUNDED:
        why = (
            ": it is not bounded, and the theory asks for |φ| ≤ M"
            if name in ("relu", "leaky-relu", "gelu")
            else ""
        )
        raise OptionError(
            f"expected an activation out of {', '.join(BOUNDED)}, got {name}{why}; choose one of "
            "those"
        )
    return BOUNDED[name]


def k_infinity(name: str, t: float) -> float:
    """k_∞ at the cosine t, to about fourteen digits."""
    activation = bounded(name)
    q = 1.0 + t
    if not -1 <= t <= 1:
        raise OptionError(
            f"expected a cosine between −1 and 1, got {t:g}; points lie on one sphere"
        )
    if name == "erf":
        return 2 / math.pi * math.asin(2 * q / (1 + 2 * VARIANCE))
    if name == "sine":
        return math.exp(-VARIANCE) * math.sinh(q)
    if name == "clipped-relu":
        return _clipped(q)
    return _trapezoidal(activation.phi, q)


def price(name: str, t: float) -> float:
    """k_∞(t) by Price's theorem: E[φ(u)]² + ∫ E[φ'(u)φ'(w)] dq.

    The integral starts at q = 0, where u and w are independent.
    """
    change = integrate.quad(lambda s: k_slope(name, s), -1, t, epsabs=1e-12, epsrel=1e-12)[0]
    return _mean(bounded(name)) ** 2 + float(change)


def k_slope(name: str, t: float) -> float:
    """k_∞'(t) = E[φ'(u)φ'(w)]."""
    q = 1.0 + t
    if (
        name == "clipped-relu"
    ):  # φ''(t) = δ(t) − δ(t − 1): Price's theorem gives an integral of densities
        return _mean_slope() ** 2 + float(
            integrate.quad(_spikes, 0, q, epsabs=1e-13, epsrel=1e-13)[0]
        )
    return _trapezoidal(bounded(name).slope, q)


class Zonal:
    """k_∞ as a function of an array t. It is a Chebyshev series in w = √(1 − t), in which k_∞ is
    smooth up to t = 1."""

    def __init__(self, name: str, *, slope: bool = False, degree: int = 96) -> None:
        """If `slope`, represent k_∞' = E[φ'(u)φ'(w)] instead of k_∞."""
        half = math.sqrt(2) / 2
        nodes = half * (1 + np.cos(np.pi * (np.arange(degree + 1) + 0.5) / (degree + 1)))
        values = np.array([(k_slope if slope else k_infinity)(name, 1 - w * w) for w in nodes])
        self._series = chebyshev.Chebyshev.fit(nodes, values, degree, domain=[0, math.sqrt(2)])

    def __call__(self, t: Array) -> Array:
        w = np.sqrt(np.clip(1 - t, 0, 2))
        return np.asarray(self._series(w))


def _trapezoidal(
    phi: Callable[[Array], Array], q: float, step: float = 0.08, reach: float = 9.0
) -> float:
    """E[φ(u)φ(w)] with u, w = √(1 + q/2)·a ± √(1 − q/2)·b, a and b independent standard normal."""
    z = np.arange(-math.ceil(reach / step), math.ceil(reach / step) + 1) * step
    weight = step * np.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    sum_, difference = (
        math.sqrt(max(0.0, (VARIANCE + q) / 2)),
        math.sqrt(max(0.0, (VARIANCE - q) / 2)),
    )
    a, b = sum_ * z[:, None], difference * z[None, :]
    return float(weight @ (phi(a + b) * phi(a - b)) @ weight)


def _mean(activation: Bounded) -> float:
    if activation.name in ("tanh", "sine", "erf"):
        return 0.0
    if activation.name == "sigmoid":
        return 0.5
    return _ramp(0.0, math.sqrt(VARIANCE))


def _normal(z: float, deviation: float = 1.0) -> float:
    """The density of N(0, deviation²)."""
    return math.exp(-((z / deviation) ** 2) / 2) / (deviation * math.sqrt(2 * math.pi))


def _ramp(mean: float, deviation: float) -> float:
    """E[min(max(w, 0), 1)] for w ~ N(mean, deviation²)."""
    low, high = (0 - mean) / deviation, (1 - mean) / deviation
    inside = mean * (ndtr(high) - ndtr(low)) + deviation * (_normal(low) - _normal(high))
    value: float = inside + ndtr(-high)
    return value


def _clipped(q: float) -> float:
    deviation = math.sqrt(VARIANCE)
    left = VARIANCE - q * q / VARIANCE
    if left <= 0:  # u = w
        inside = integrate.quad(lambda u: u * u * _normal(u, deviation), 0, 1, epsabs=1e-14)[0]
        return float(inside + ndtr(-1 / deviation))
    sigma, slope = math.sqrt(left), q / VARIANCE
    value = 0.0
    for low, high in ((0.0, 1.0), (1.0, 1 + 12 * deviation)):
        bends = (
            sorted({min(max(bend / slope, low), high) for bend in (0.0, 1.0)} - {low, high})
            if slope > 0
            else []
        )
        near = [min(max(bend + k * sigma, low), high) for bend in bends for k in (-6, -2, 2, 6)]
        points = sorted({*bends, *near} - {low, high}) or None
        value += integrate.quad(
            lambda u: min(max(u, 0.0), 1.0) * _ramp(slope * u, sigma) * _normal(u, deviation),
            low,
            high,
            points=points,
            limit=400,
            epsabs=1e-14,
            epsrel=1e-13,
        )[0]
    return value


def _mean_slope() -> float:
    """E[φ'(u)] of clipped-relu, the probability that u is between 0 and 1."""
    return float(ndtr(1 / math.sqrt(VARIANCE)) - 0.5)


def _spikes(q: float) -> float:
    """E[φ''(u)φ''(w)] of clipped-relu: the sum, with signs, of the densities of (u, w) where u and
    w are at the kinks 0 and 1."""
    determinant = VARIANCE**2 - q * q
    total = 0.0
    for u, w, sign in ((0.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 1.0, -2.0)):
        form = (VARIANCE * (u * u + w * w) - 2 * q * u * w) / determinant
        total += sign * math.exp(-form / 2)
    return total / (2 * math.pi * math.sqrt(determinant))
