"""Levenberg–Marquardt on the variable projection: a few dozen steps where gradient descent takes ten thousand.

s = −(JᵀJ + λ·mean(diag JᵀJ)·I)⁻¹ g,   Z ← Π(Z + s) if that lowers the loss (then λ/5), else λ·4 and again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from recollect.errors import OptionError
from recollect.geometry import Geometry
from recollect.shapes import Float, Tensor
from recollect.solve.loop import State
from recollect.span import ExactSpan, Fit, Span

_TRIES = 20
_LEAST = 1e-8
"""Below this λ is as good as zero; it must find its way back up within the tries."""
_AT_REST = 3


@dataclass(frozen=True, kw_only=True)
class LevenbergMarquardt:
    """One linearisation a step; λ is raised until the loss falls, so the loss never rises."""

    iterations: int = 200
    damping: float = 0.1
    """λ of the first step."""
    settled: float = 1e-4
    """A step that lowers the loss by a smaller share of it counts as rest; three in a row end the run."""

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= 10**6:
            raise OptionError(f"expected --iterations between 1 and 10⁶, got {self.iterations:.6g}; 200 is plenty")
        if not (math.isfinite(self.damping) and self.damping > 0):
            raise OptionError(f"expected a positive damping, got {self.damping}; 0.1 is usual")
        if not 0 <= self.settled < 1:
            raise OptionError(f"expected settled in [0, 1), got {self.settled}; 1e-4 is usual")

    @property
    def capturable(self) -> bool:
        return False

    def flops(self, span: Span, Z: Float[Tensor, "n r"]) -> float:
        return _exact(span).normal_flops(*Z.shape)

    def at_rest(self, state: State) -> bool:
        return int(state["rest"]) >= _AT_REST

    def init(self, Z: Float[Tensor, "n r"]) -> State:
        return {
            "Z": Z,
            "damping": torch.tensor(self.damping, dtype=torch.float64, device=Z.device),
            "rest": torch.zeros((), dtype=torch.int64, device=Z.device),
        }

    def step(self, span: Span, geometry: Geometry, state: State, jitter: Float[Tensor, ""]) -> tuple[State, Fit]:
        Z, damping, rest = state["Z"], float(state["damping"]), int(state["rest"])
        fit, normal = _exact(span).linearise(Z, geometry, jitter)
        before = after = float(fit.loss)
        for _ in range(_TRIES):
            trial = geometry.project(Z + normal.step(damping))
            loss = float(span.fit(trial, gradient=False, jitter=jitter).loss)
            if loss < before:
                Z, damping, after = trial, max(damping / 5, _LEAST), loss
                break
            damping *= 4
        rest = rest + 1 if before - after < self.settled * before else 0
        if after == before:  # no damping helps
            rest = _AT_REST
        return {
            "Z": Z,
            "damping": torch.full_like(state["damping"], damping),
            "rest": torch.full_like(state["rest"], rest),
        }, fit


def _exact(span: Span) -> ExactSpan:
    if not isinstance(span, ExactSpan):
        raise OptionError(
            "expected parameters whose normal equations can be formed with --solver lm, got others; use --solver gd, "
            "or --parameters last"
        )
    return span
