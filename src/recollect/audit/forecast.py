"""What a setting will take, said before it is tried: equations against unknowns, seconds, bytes.

How many steps a search needs is not known beforehand: seconds are those of a usual number of them, right within a
factor of a few. A setting with more unknowns than equations determines nothing, and one that needs more memory than
there is would not end: neither is worth trying.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from recollect.inspection import Inspection
from recollect.machine import Machine
from recollect.memory import spoken, total_memory
from recollect.options import FullSpace, Projection, Subspace
from recollect.problem import Problem, uses_gradient_descent
from recollect.solve import GradientDescent
from recollect.span import Endpoints
from recollect.victim import Victim

_STEPS = {"last": 60, "all": 200}
"""Of Levenberg–Marquardt, over all stages."""
_LEAST = {"last": 6e-3, "all": 3e-2}
"""Seconds a step takes however small it is: its many small operations, and the judging between steps."""
_ITERATION = 5e-4
_OF_WHAT_IS_LEFT = 0.1
_PRODUCTS = 40
"""With JᵀJ of a step that does not form it: conjugate gradients, and rejected steps."""


@dataclass(frozen=True)
class Forecast:
    parameters: str
    n: int
    equations: int
    unknowns: int
    seconds: float
    step_seconds: float
    """Of one step: a search can end no sooner."""
    bytes: int
    against: str
    """Why it is not worth trying; empty where it is."""
    fits: bool
    """Into memory."""

    def too_slow(self, left: float) -> str:
        """Why it is not worth starting with so many seconds left; empty where it is."""
        if self.step_seconds <= _OF_WHAT_IS_LEFT * left:
            return ""
        step = f"a single step of {self.n} points takes about {self.step_seconds:.2g} s"
        return f"{step}, and {max(left, 0):.2g} s are left"


def outlook(victim: Victim, looked: Inspection, n: int, machine: Machine) -> tuple[Forecast, ...]:
    """Of the settings an audit begins with, for n points."""
    last = Projection(space=FullSpace() if looked.spectrum is None else Subspace())
    kinds = ("last",) if victim.select("all") == victim.select("last") else ("last", "all")
    return tuple(forecast(victim, replace(last, parameters=kind), n, machine) for kind in kinds)


def forecast(victim: Victim, attack: Projection, n: int, machine: Machine) -> Forecast:
    problem = Problem.of(victim, attack, torch.device("cpu"))  # sizes alone: nothing is computed there
    n_r = n * problem.r
    families = 2 if problem.moving else 1
    last = attack.parameters == "last"
    ends = Endpoints.BOTH if families == 2 else Endpoints.FINAL
    if uses_gradient_descent(attack, victim):
        span = problem.span(n)
        held = 8 * n * victim.c * problem.equations if not last else 0
        steps, step = GradientDescent().iterations, max(_ITERATION, span.flops(n) / machine.single)
    else:
        exact = problem.last_layer(ends) if last else problem.layerwise(ends)
        dense = exact.dense(n, problem.r)
        held = exact.normal_bytes(n, problem.r) if dense else 6 * families * exact.fit_bytes(n)
        flops = exact.normal_flops(n, problem.r)
        flops = families**2 * flops + n_r**3 / 3 if dense else _PRODUCTS * families * flops
        kind = "last" if last else "all"
        steps, step = _STEPS[kind], max(_LEAST[kind], flops / machine.double)
    weights = sum(tensor.numel() for tensor in victim.theta_f.values())
    equations, unknowns, needed = problem.equations, problem.unknowns(n), int(held) + 5 * 8 * weights
    against, memory = "", total_memory(machine.device)
    if unknowns > equations:
        against = f"{equations} equations for {unknowns} unknowns: any points would do"
    elif needed > memory:
        against = f"about {spoken(needed)} would be needed, and {spoken(memory)} may be used"
    return Forecast(attack.parameters, n, equations, unknowns, steps * step, step, needed, against, needed <= memory)
