"""Projected gradient descent with momentum, exactly as in the paper.

V ← βV + ∇L(Z),   Z ← Π(Z − ηV),   β = 0.9, η = 20 (synthetic) or 2000 (CIFAR-10), 10⁴ iterations
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recollect.errors import OptionError
from recollect.options import check, option

if TYPE_CHECKING:  # options are read by the command line, which must not wait for torch
    from recollect.geometry import Geometry
    from recollect.objective.base import Fit, Objective
    from recollect.shapes import Float, Tensor
    from recollect.solve.loop import State


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """The paper's solver.

    Parameters
    ----------
    step_size
        η. None selects one of the paper's two values by the input dimension (`paper_step`).
    momentum
        β.
    iterations
        Number of steps.
    """

    step_size: float | None = option(
        None,
        name="step",
        help="Step size; auto is 20 for inputs of up to 256 dimensions, else 2000.",
        positive=True,
        hint="the paper uses 20 and 2000",
    )
    momentum: float = option(
        0.9,
        help="Momentum.",
        least=0,
        most=1 - 1e-9,
        hint="choose one in [0, 1): the paper uses 0.9",
    )
    iterations: int = option(
        10_000,
        help="Largest number of iterations of each run (10000 for gd, 200 for the others).",
        least=1,
        most=10**8,
        hint="the paper uses 10000",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        return "gradient descent"

    @property
    def capturable(self) -> bool:
        return True

    def flops(self, objective: Objective, Z: Float[Tensor, "*s n r"]) -> float:
        return objective.flops(Z.shape[:-1].numel())

    def at_rest(self, state: State) -> bool:
        return False

    def init(self, Z: Float[Tensor, "*s n r"]) -> State:
        return {"Z": Z, "velocity": Z.new_zeros(Z.shape)}

    def step(
        self, objective: Objective, geometry: Geometry, state: State, jitter: Float[Tensor, "*s"]
    ) -> tuple[State, Fit]:
        if self.step_size is None:
            raise OptionError("expected a step size, got none; use paper_step")
        fit = objective.fit(state["Z"], jitter=jitter)
        if fit.gradient is None:
            raise TypeError("the objective gave no gradient")
        velocity = self.momentum * state["velocity"] + fit.gradient
        return {
            "Z": geometry.project(state["Z"] - self.step_size * velocity),
            "velocity": velocity,
        }, fit


def paper_step(d: int) -> float:
    """The paper's η: 20 for its synthetic data (d = 60) and 2000 for CIFAR-10 (d = 3072). The
    choice depends on the dimension alone."""
    return 20.0 if d <= 256 else 2000.0
