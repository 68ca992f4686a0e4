"""G never formed: (GGᵀ)α = GΔθ by conjugate gradients on JVP and VJP products, as the paper's appendix says.

GGᵀv = Gu with u = Gᵀv: one VJP and one JVP an iteration. Slow and frugal: memory of a few copies of θ.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from recollect.shapes import Float, Tensor
from recollect.span.base import Fit, Weights
from recollect.span.products import chosen, envelope_gradient, jvp, outputs_at, residual, squared_norm, vjp
from recollect.victim import Victim


class ImplicitSpan:
    """CG stops at a relative residual of `tolerance`, or after nc + 50 iterations, which is recorded.

    It needs no jitter: from zero, CG stays in the range of GGᵀ, so a singular Gram costs it nothing.
    """

    capturable = False
    name = "conjugate gradients on JVP and VJP products"

    def __init__(
        self,
        victim: Victim,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        tolerance: float = 1e-6,
        unruled: tuple[str, ...] = (),
    ) -> None:
        """`unruled`: the parameters because of which there is no layerwise Gram, for the notes."""
        self._weights = Weights(victim, names, device, dtype)
        self._tolerance = tolerance
        self.iterations: list[int] = []
        self._unconverged = 0
        self._unruled = unruled

    @property
    def equations(self) -> int:
        return self._weights.equations

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.iterations:
            return ()
        mean = sum(self.iterations) / len(self.iterations)
        notes = []
        if self._unruled:
            notes.append(
                f"{', '.join(self._unruled[:3])}{' and others' if len(self._unruled) > 3 else ''} belong to layers "
                "without a rule for the layerwise Gram: conjugate gradients are much slower"
            )
        notes += [f"conjugate gradients: {mean:.1f} iterations a solve on average over {len(self.iterations)} solves"]
        if self._unconverged:
            notes.append(
                f"conjugate gradients stopped above a relative residual of {self._tolerance:g} in "
                f"{self._unconverged} solves"
            )
        return tuple(notes)

    def flops(self, n: int) -> float:
        return 2 * self._weights.pass_flops(n)  # between two looks at the residual of CG

    def fit(self, X: Float[Tensor, "n d"], *, gradient: bool = True, jitter: Float[Tensor, ""] | None = None) -> Fit:
        weights = self._weights
        X = X.detach()
        f, theta = outputs_at(weights, X), chosen(weights)
        transpose = vjp(f, theta)

        def gram(v: Tensor) -> Tensor:  # v → Gᵀv → GGᵀv
            return jvp(f, theta, transpose(v))

        alpha, iterations, converged = conjugate_gradients(gram, jvp(f, theta, weights.delta), self._tolerance)
        self.iterations.append(iterations)
        self._unconverged += not converged
        R = residual(weights.delta, transpose(alpha))
        slope = envelope_gradient(weights, X, alpha, R) if gradient else None
        return Fit(weights.loss(squared_norm(R)), weights.length * alpha, slope)


def conjugate_gradients(A: Callable[[Tensor], Tensor], b: Tensor, tolerance: float) -> tuple[Tensor, int, bool]:
    """x with ‖Ax − b‖ ≤ tolerance·‖b‖, A symmetric and semidefinite; the iterations taken; whether it got there."""
    x = torch.zeros_like(b)
    r = b.clone()
    q = r
    rr = r.square().sum()
    target = tolerance * float(rr.sqrt())
    limit = b.numel() + 50
    for iteration in range(limit):
        if float(rr.sqrt()) <= target:
            return x, iteration, True
        Aq = A(q)
        curvature = (q * Aq).sum()
        if not float(curvature) > 0:  # rounding has used up the positive part of A, or A is NaN
            return x, iteration, False
        step = rr / curvature
        x = x + step * q
        r = r - step * Aq
        rr, previous = r.square().sum(), rr
        q = r + rr / previous * q
    return x, limit, False
