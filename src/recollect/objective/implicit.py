"""(GGᵀ)α = GΔ by conjugate gradients, with G never formed, as the paper's appendix does it.

GGᵀv = Gu with u = Gᵀv takes one vector-Jacobian and one Jacobian-vector product per iteration. This
is slow, but needs memory for only a few copies of θ.
"""

from __future__ import annotations

import torch

from recollect.objective.base import Fit
from recollect.objective.conjugate_gradients import conjugate_gradients
from recollect.objective.evidence import Evidence
from recollect.objective.products import (
    chosen,
    envelope_gradient,
    jvp,
    outputs_at,
    residual,
    single_target,
    squared_norm,
    vjp,
)
from recollect.shapes import Float, Tensor


class ImplicitObjective:
    """L(X) with (GGᵀ)α = GΔ solved up to a relative residual of `tolerance`.

    The iteration stops after nc + 50 steps at the latest; the notes say how often that happened. It
    needs no jitter: conjugate gradients that start from zero stay in the range of GGᵀ, so a
    singular Gram matrix does no harm.
    """

    capturable = False
    name = "conjugate gradients on JVP and VJP products"

    def __init__(
        self,
        evidence: Evidence,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        tolerance: float = 1e-6,
        unruled: tuple[str, ...] = (),
    ) -> None:
        """`unruled` names the parameters that rule out a layerwise Gram, for the notes."""
        self._target = single_target(evidence, names, device, dtype)
        self._tolerance = tolerance
        self.iterations: list[int] = []
        self._unconverged = 0
        self._unruled = unruled

    @property
    def equations(self) -> int:
        return self._target.equations

    @property
    def notes(self) -> tuple[str, ...]:
        if not self.iterations:
            return ()
        mean = sum(self.iterations) / len(self.iterations)
        notes = []
        if self._unruled:
            names = ", ".join(self._unruled[:3]) + (" and others" if len(self._unruled) > 3 else "")
            notes.append(
                f"{names} belong to layers without a rule for the layerwise Gram: conjugate "
                "gradients are much slower"
            )
        notes.append(
            f"conjugate gradients: {mean:.1f} iterations per solve on average over "
            f"{len(self.iterations)} solves"
        )
        if self._unconverged:
            notes.append(
                f"conjugate gradients stopped above a relative residual of {self._tolerance:g} in "
                f"{self._unconverged} solves"
            )
        return tuple(notes)

    def flops(self, n: int) -> float:
        return 2 * self._target.pass_flops(n)  # of one iteration of conjugate gradients

    def fit(
        self,
        X: Float[Tensor, "n d"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, ""] | None = None,
    ) -> Fit:
        target = self._target
        X = X.detach()
        f, theta = outputs_at(target, X), chosen(target)
        transpose = vjp(f, theta)

        def gram(v: Tensor) -> Tensor:  # v ↦ Gᵀv ↦ GGᵀv
            return jvp(f, theta, transpose(v))

        b = jvp(f, theta, target.delta)
        solution = conjugate_gradients(gram, b, tolerance=self._tolerance, most=b.numel() + 50)
        alpha = solution.x
        self.iterations.append(solution.iterations)
        self._unconverged += not solution.converged
        R = residual(target.delta, transpose(alpha))
        slope = envelope_gradient(target, X, alpha, R) if gradient else None
        return Fit(target.loss(squared_norm(R)), target.length * alpha, slope)
