"""Projected gradient descent with momentum: the paper's solver, to the letter.

V ← βV + ∇L(Z),   Z ← Π(Z − ηV),   β = 0.9, η = 20 (synthetic) or 2000 (CIFAR-10), 10⁴ iterations
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from recollect.errors import OptionError
from recollect.geometry import Geometry
from recollect.shapes import Float, Tensor
from recollect.solve.loop import State
from recollect.span import Fit, Span


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """`step_size` None: the paper's two values, told apart by the victim's input dimension (`paper_step`)."""

    step_size: float | None = None
    momentum: float = 0.9
    iterations: int = 10_000

    def __post_init__(self) -> None:
        if self.step_size is not None and not (math.isfinite(self.step_size) and self.step_size > 0):
            raise OptionError(f"expected --step of a positive number, got {self.step_size}; the paper uses 20 and 2000")
        if not 0 <= self.momentum < 1:
            raise OptionError(f"expected --momentum in [0, 1), got {self.momentum}; the paper uses 0.9")
        if not 1 <= self.iterations <= 10**8:
            raise OptionError(
                f"expected --iterations between 1 and 10⁸, got {self.iterations:.6g}; the paper uses 10000"
            )

    @property
    def capturable(self) -> bool:
        return True

    def flops(self, span: Span, Z: Float[Tensor, "*s n r"]) -> float:
        return span.flops(Z.shape[:-1].numel())

    def at_rest(self, state: State) -> bool:
        return False

    def init(self, Z: Float[Tensor, "*s n r"]) -> State:
        return {"Z": Z, "velocity": torch.zeros_like(Z)}

    def step(self, span: Span, geometry: Geometry, state: State, jitter: Float[Tensor, "*s"]) -> tuple[State, Fit]:
        if self.step_size is None:
            raise OptionError("expected a step size, got none; use paper_step")
        fit = span.fit(state["Z"], jitter=jitter)
        if fit.gradient is None:
            raise TypeError("the span gave no gradient")
        velocity = self.momentum * state["velocity"] + fit.gradient
        return {"Z": geometry.project(state["Z"] - self.step_size * velocity), "velocity": velocity}, fit


def paper_step(d: int) -> float:
    """η = 20 for the paper's synthetic data (d = 60), 2000 for CIFAR-10 (d = 3072): decided from the victim alone."""
    return 20.0 if d <= 256 else 2000.0
