"""The paper's guarantees for random features as numbers: which width p is sufficient.

    P[ sup |k_p − k_∞| ≤ ε ] ≥ 1 − δ   if   δ ≤ 4(1 + 2d)LM/(√d ε)   and
            (lem:approx_kernel_bound)
        p ≥ 8M⁴(2d + 1)/ε² · ( ln((2 + 4d)/δ) + 2d/(2d + 1)·ln(6LM/(√d ε)) )

    with probability 1 − δ every x_j has an x̂_i within Δ, at the width p above for
            (thm:finite_recon_proof)
        ε = c²/(4C(‖α‖₁ + ‖α̂‖₁)²)

    for data in r dimensions, the same holds with r instead of d and Δ' = √(r/d)·Δ instead of Δ
            (cor:finite_recon_proof_subspace)

M and L bound |φ| and |φ'|. All quantities are computed as logarithms, because the theorem's
widths have hundreds of digits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import wrightomega

from recollect.errors import OptionError

_LARGEST = 700.0
"""Exponents x below this are small enough that e^x is a finite float."""


@dataclass(frozen=True)
class Lemma:
    """The kernel-approximation lemma in d dimensions for an activation with |φ| ≤ M and |φ'| ≤
    L."""

    d: int
    M: float
    L: float

    def __post_init__(self) -> None:
        if not 1 <= self.d <= 10**15:
            raise OptionError(f"expected a dimension between 1 and 10¹⁵, got {self.d}; give --dim")
        for name, value in (("M", self.M), ("L", self.L)):
            if not (math.isfinite(value) and value > 0):
                raise OptionError(
                    f"expected {name} > 0, got {value:g}; it bounds the activation or its slope"
                )

    def log_scale(self) -> float:
        """ln(LM/√d). The deviation ε is compared with LM/√d, the slope of the kernel on the
        sphere."""
        return math.log(self.L) + math.log(self.M) - 0.5 * math.log(self.d)

    def log_delta_limit(self, log_epsilon: float) -> float:
        """ln of 4(1 + 2d)LM/(√d ε). For a larger δ the net in the proof is too coarse
        (eq:delta_condition)."""
        return math.log(4 * (1 + 2 * self.d)) + self.log_scale() - log_epsilon

    def check(self, log_epsilon: float, log_delta: float) -> None:
        """Raise an `OptionError` if the lemma does not apply to this ε and δ."""
        if not log_delta < 0:
            raise OptionError(
                f"expected a failure probability δ below 1, got {_shown(log_delta)}; give --delta"
            )
        limit = self.log_delta_limit(log_epsilon)
        if log_delta > limit:
            raise OptionError(
                f"expected δ of at most 4(1 + 2d)LM/(√d ε) = {_shown(limit)} for this ε, got "
                f"{_shown(log_delta)}; "
                "ask for a smaller ε or δ"
            )

    def log_width(self, log_epsilon: float, log_delta: float) -> float:
        """ln of the width p that the lemma requires (eq:p_condition)."""
        self.check(log_epsilon, log_delta)
        d = self.d
        inner = (
            math.log(2 + 4 * d)
            - log_delta
            + 2 * d / (2 * d + 1) * (math.log(6) + self.log_scale() - log_epsilon)
        )
        return math.log(8 * (2 * d + 1)) + 4 * math.log(self.M) - 2 * log_epsilon + math.log(inner)

    def log_epsilon(self, width: int | float, log_delta: float) -> float:
        """ln of the smallest ε that p = `width` guarantees with probability 1 − δ.

        Let s be the bracket of eq:p_condition, b = 2d/(2d + 1) and K = 8M⁴(2d + 1)/p. Then ε² = Ks.
        Eliminating ε gives the value of s·e^{2s/b}, so 2s/b is a value of Lambert's function W.
        """
        if not width > 0:
            raise OptionError(f"expected a positive width, got {width:g}; give --width")
        d = self.d
        b = 2 * d / (2 * d + 1)
        log_K = math.log(8 * (2 * d + 1)) + 4 * math.log(self.M) - math.log(width)
        free = math.log(2 + 4 * d) - log_delta + b * (math.log(6) + self.log_scale())
        s = b / 2 * float(wrightomega(math.log(2 / b) - log_K + 2 * free / b))  # W(e^y)
        found = 0.5 * (log_K + math.log(s))
        self.check(found, log_delta)
        return found

    def log_delta(self, width: int | float, log_epsilon: float) -> float:
        """ln of the smallest δ for which p = `width` guarantees ε. A result ≥ 0 is no guarantee."""
        if not width > 0:
            raise OptionError(f"expected a positive width, got {width:g}; give --width")
        d = self.d
        exponent = self.exponent(math.log(width), log_epsilon) / (2 * d + 1)
        return (
            math.log(2 + 4 * d)
            + 2 * d / (2 * d + 1) * (math.log(6) + self.log_scale() - log_epsilon)
            - exponent
        )

    # The steps of the proof. They take ln p, because p may have hundreds of digits here too.

    def exponent(self, log_width: float, log_epsilon: float) -> float:
        """pε²/(8M⁴); infinite where it is too large for a float."""
        return _exp(log_width + 2 * log_epsilon - 4 * math.log(self.M) - math.log(8))

    def log_hoeffding(self, log_width: float, log_epsilon: float) -> float:
        """ln of 2exp(−pε²/(8M⁴)), which bounds P[|k_p(x, y) − k_∞(x, y)| ≥ ε/2] for one pair."""
        return math.log(2) - self.exponent(log_width, log_epsilon)

    def log_net(self, radius: float) -> float:
        """ln of (3√d/r)^d, an upper bound on the size T of an r-net of the sphere, for r ≤ √d."""
        if not 0 < radius <= math.sqrt(self.d):
            raise OptionError(
                f"expected a net's radius in (0, √d], got {radius:g}; choose a smaller one"
            )
        return self.d * math.log(3 * math.sqrt(self.d) / radius)

    def net_size(self, radius: float) -> int:
        """T = ⌊(1 + 2√d/r)^d⌋, the size of an r-net of the sphere, as an integer."""
        self.log_net(radius)
        return math.floor((1 + 2 * math.sqrt(self.d) / radius) ** self.d)

    def log_best_radius(self, log_width: float, log_epsilon: float) -> float:
        """ln r*, the radius of the net that minimises the failure probability (`failure`)."""
        d = self.d
        inside = (
            math.log(d)
            + 2 * d * math.log(3 * math.sqrt(d))
            + log_epsilon
            - math.log(2 * self.L * self.M)
        )
        return (inside - self.exponent(log_width, log_epsilon)) / (2 * d + 1)

    def failure(self, log_width: float, log_epsilon: float, log_radius: float) -> float:
        """2(3√d/r)^{2d}exp(−pε²/(8M⁴)) + 8rLM/ε, a bound on the failure probability.

        The first term is for a large deviation at a pair of points of the net, the second for too
        large a slope between the points.
        """
        d = self.d
        nets = 2 * d * (math.log(3 * math.sqrt(d)) - log_radius) + self.log_hoeffding(
            log_width, log_epsilon
        )
        slope = math.log(8 * self.L * self.M) + log_radius - log_epsilon
        return _exp(nets) + _exp(slope)


def log_recovery_epsilon(log_C: float, alpha: float, alpha_hat: float, c: float) -> float:
    """ln ε of the theorem's proof: c²/(4C(‖α‖₁ + ‖α̂‖₁)²).

    The attack finds α̂, which therefore depends on p. The width is known only after the attack, or
    for a given bound on ‖α̂‖₁.
    """
    for name, value in (("‖α‖₁", alpha), ("c", c)):
        if not (math.isfinite(value) and value > 0):
            raise OptionError(
                f"expected {name} > 0, got {value:g}; every |α_i| must be at least c > 0"
            )
    if not (math.isfinite(alpha_hat) and alpha_hat >= 0):
        raise OptionError(
            f"expected ‖α̂‖₁ ≥ 0, got {alpha_hat:g}; give the coefficients that were found"
        )
    if not math.isfinite(alpha + alpha_hat):
        raise OptionError(
            f"expected ‖α‖₁ + ‖α̂‖₁ below 10³⁰⁸, got {alpha:g} + {alpha_hat:g}; scale the labels "
            "down"
        )
    if c > alpha:
        raise OptionError(
            f"expected c = min |α_i| of at most ‖α‖₁ = {alpha:g}, got {c:g}; check the two"
        )
    return 2 * math.log(c) - math.log(4) - log_C - 2 * math.log(alpha + alpha_hat)


def log_recovery_width(
    lemma: Lemma, *, log_C: float, alpha: float, alpha_hat: float, c: float, log_delta: float
) -> float:
    """ln p of thm:finite_recon_proof, or of the corollary if `lemma` is in r dimensions."""
    return lemma.log_width(log_recovery_epsilon(log_C, alpha, alpha_hat, c), log_delta)


def subspace_separation(delta: float, d: int, r: int) -> float:
    """Δ' = √(r/d)·Δ, the separation of the r-dimensional representatives.

    The corollary uses the constant C of Δ' in r dimensions.
    """
    if not 1 <= r <= d:
        raise OptionError(
            f"expected 1 ≤ r ≤ d = {d}, got {r}; give the dimension of the data's subspace"
        )
    return math.sqrt(r / d) * delta


def whole(log_width: int | float) -> int | None:
    """⌈p⌉, or None if p is too large for a float."""
    return math.ceil(math.exp(log_width)) if log_width < _LARGEST else None


def _exp(log_value: float) -> float:
    return math.exp(log_value) if log_value < _LARGEST else math.inf


def _shown(log_value: float) -> str:
    return (
        f"{math.exp(log_value):.3g}"
        if abs(log_value) < _LARGEST
        else f"10^{log_value / math.log(10):.0f}"
    )
