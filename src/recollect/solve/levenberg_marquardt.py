"""Levenberg–Marquardt on the variable projection. It needs a few dozen steps where gradient descent
needs ten thousand.

s = −(JᵀJ + λ·mean(diag JᵀJ)·I)⁻¹ g,
        if Π(Z + s) lowers the loss: Z ← Π(Z + s), λ ← λ/5; otherwise λ ← 4λ and another try.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recollect.errors import OptionError
from recollect.options import check, option

if TYPE_CHECKING:  # options are read by the command line, which must not wait for torch
    from recollect.geometry import Geometry
    from recollect.objective.base import ExactObjective, Fit, Objective
    from recollect.shapes import Float, Tensor
    from recollect.solve.loop import State

_TRIES_PER_STEP = 20
_MIN_DAMPING = 1e-8
"""Lower limit of λ. A smaller λ has the effect of zero, and λ must be able to grow back within the
tries of one step."""
_STEPS_AT_REST = 3


@dataclass(frozen=True, kw_only=True)
class LevenbergMarquardt:
    """One linearisation per step. λ is raised until the loss falls, so the loss never rises.

    Parameters
    ----------
    iterations
        Largest number of steps.
    damping
        λ of the first step.
    settled
        A step that lowers the loss by a smaller share than this counts as rest. Three such steps
        in a row end the run.
    """

    iterations: int = option(
        200,
        help="Largest number of iterations of each run.",
        least=1,
        most=10**6,
        hint="200 is plenty",
    )
    damping: float = option(
        0.1, help="Damping λ of the first step.", positive=True, hint="0.1 is usual"
    )
    settled: float = option(
        1e-4,
        help="Share of the loss below which a step counts as rest.",
        least=0,
        most=1 - 1e-9,
        hint="1e-4 is usual",
    )

    def __post_init__(self) -> None:
        check(self)

    @property
    def name(self) -> str:
        return "Levenberg–Marquardt"

    @property
    def capturable(self) -> bool:
        return False

    def flops(self, objective: Objective, Z: Float[Tensor, "n r"]) -> float:
        return _exact(objective).normal_flops(len(Z))

    def at_rest(self, state: State) -> bool:
        return int(state["rest"]) >= _STEPS_AT_REST

    def init(self, Z: Float[Tensor, "n r"]) -> State:
        return {
            "Z": Z,
            "damping": Z.new_tensor(self.damping).double(),
            "rest": Z.new_zeros(()).long(),
        }

    def step(
        self, objective: Objective, geometry: Geometry, state: State, jitter: Float[Tensor, ""]
    ) -> tuple[State, Fit]:
        Z, damping, rest = state["Z"], float(state["damping"]), int(state["rest"])
        fit, normal = _exact(objective).linearise(Z, geometry, jitter)
        before = after = float(fit.loss)
        for _ in range(_TRIES_PER_STEP):
            trial = geometry.project(Z + normal.step(damping))
            loss = float(objective.fit(trial, gradient=False, jitter=jitter).loss)
            if loss < before:
                Z, damping, after = trial, max(damping / 5, _MIN_DAMPING), loss
                break
            damping *= 4
        rest = rest + 1 if before - after < self.settled * before else 0
        if after == before:  # no damping lowered the loss
            rest = _STEPS_AT_REST
        return {
            "Z": Z,
            "damping": state["damping"].new_tensor(damping),
            "rest": state["rest"].new_tensor(rest),
        }, fit


def _exact(objective: Objective) -> ExactObjective:
    from recollect.objective.base import ExactObjective

    if not isinstance(objective, ExactObjective):
        raise OptionError(
            "expected parameters whose normal equations can be formed with --solver lm, got "
            "others; use --solver gd, "
            "or --parameters last"
        )
    return objective
