"""Whether a setting is worth trying: equations against unknowns, memory, and the time that is
left."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.attacks.options import Exact, FullSpace, Subspace
from recollect.examine.inspection import Inspection
from recollect.system.device import Machine, readable_bytes, total_memory
from recollect.victim.victim import Victim

_SHARE_OF_REMAINING_TIME = 0.1
"""A setting is not started if a single step takes more than this share of the time that is left."""


@dataclass(frozen=True)
class Forecast:
    """What a setting will take (`Attack.cost`), and what speaks against trying it."""

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
    """Whether it fits into memory."""

    def too_slow(self, left: float) -> str:
        """Why it is not worth starting with so many seconds left; empty where it is."""
        if self.step_seconds <= _SHARE_OF_REMAINING_TIME * left:
            return ""
        step = f"a single step of {self.n} points takes about {self.step_seconds:.2g} s"
        return f"{step}, and {max(left, 0):.2g} s are left"


def forecast(victim: Victim, attack: Exact, n: int, machine: Machine) -> Forecast:
    """The forecast of one attack with n points."""
    cost = attack.cost(victim, n, machine)
    against, memory = "", total_memory(machine.device)
    if cost.unknowns > cost.equations:
        against = f"{cost.equations} equations for {cost.unknowns} unknowns: any points would do"
    elif cost.bytes > memory:
        needed, there = readable_bytes(cost.bytes), readable_bytes(memory)
        against = f"about {needed} would be needed, and {there} may be used"
    return Forecast(
        parameters=attack.parameters,
        n=n,
        equations=cost.equations,
        unknowns=cost.unknowns,
        seconds=cost.seconds,
        step_seconds=cost.step_seconds,
        bytes=cost.bytes,
        against=against,
        fits=cost.bytes <= memory,
    )


def first_attack(looked: Inspection) -> Exact:
    """The attack that an audit begins with: the last layer, within the span of ΔW_1 where there is
    one."""
    return Exact(space=FullSpace() if looked.spectrum is None else Subspace())


def outlook(victim: Victim, looked: Inspection, n: int, machine: Machine) -> tuple[Forecast, ...]:
    """The forecasts of the settings that an audit begins with, for n points."""
    last = first_attack(looked)
    kinds = ("last",) if victim.select("all") == victim.select("last") else ("last", "all")
    return tuple(forecast(victim, replace(last, parameters=kind), n, machine) for kind in kinds)
