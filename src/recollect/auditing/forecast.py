"""Whether a setting is worth trying: equations against unknowns, memory, and the time that is
left."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.attacks.options import Exact, FullSpace, Subspace
from recollect.auditing.verdict import Reason
from recollect.examine.inspection import Inspection
from recollect.system.device import Machine, readable_bytes, total_memory
from recollect.victim.victim import Victim, attackable

_SHARE_OF_REMAINING_TIME = 0.1
"""A setting is not started if a single step takes more than this share of the time that is left."""


@dataclass(frozen=True)
class Forecast:
    """The expected cost of a setting (`Attack.cost`), and the reason not to try it, if any."""

    parameters: str
    n: int
    equations_effective: int
    coordinates: int
    seconds: float
    step_seconds: float
    """Time of one step. A search cannot take less."""
    bytes: int
    against: str
    """Why the setting is not worth trying; empty if it is."""
    fits: bool
    """Whether the setting fits into memory."""

    def hindrance(self, too_slow: str) -> Reason | None:
        """Why the setting is not tried: too few equations, or too little time. None where neither
        is the reason; memory has no reason of its own."""
        if self.coordinates > self.equations_effective:
            return "counting"
        return "time" if too_slow else None

    def too_slow(self, left: float) -> str:
        """Why the setting is not worth starting with `left` seconds left; empty if it is."""
        if self.step_seconds <= _SHARE_OF_REMAINING_TIME * left:
            return ""
        step = f"a single step of {self.n} points takes about {self.step_seconds:.2g} s"
        return f"{step}, and {max(left, 0):.2g} s are left"


def forecast(victim: Victim, attack: Exact, n: int, machine: Machine) -> Forecast:
    """The forecast of one attack with n points."""
    cost = attack.cost(victim, n, machine)
    against, memory = "", total_memory(machine.device)
    if cost.coordinates > cost.equations_effective:
        against = (
            f"{cost.equations_effective} effective equations for {cost.coordinates} coordinates: "
            "any points would do"
        )
    elif cost.bytes > memory:
        needed, there = readable_bytes(cost.bytes), readable_bytes(memory)
        against = f"about {needed} would be needed, and {there} may be used"
    return Forecast(
        parameters=attack.parameters,
        n=n,
        equations_effective=cost.equations_effective,
        coordinates=cost.coordinates,
        seconds=cost.seconds,
        step_seconds=cost.step_seconds,
        bytes=cost.bytes,
        against=against,
        fits=cost.bytes <= memory,
    )


def first_attack(looked: Inspection) -> Exact:
    """The attack that an audit begins with: within the span of ΔW_1 where there is one."""
    return Exact(space=FullSpace() if looked.spectrum is None else Subspace())


def outlook(victim: Victim, looked: Inspection, n: int, machine: Machine) -> tuple[Forecast, ...]:
    """The forecasts of the settings that an audit begins with, for n points."""
    first = first_attack(looked)
    return tuple(
        forecast(victim, replace(first, parameters=kind), n, machine)
        for kind in attackable(victim.network)
    )
