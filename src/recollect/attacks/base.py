"""What an attack is: it says what it needs, what it costs and how far its confidence was tested,
and it runs itself.

Anything that fulfils `Attack` can be given to `reconstruct`, to `--attack package.module:Class`,
and to a sweep plan. docs/write-an-attack.md builds one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # option classes name these, and the command line must not wait for torch
    import torch

    from recollect.attacks.result import Reconstruction, ResumeSlot
    from recollect.system.device import Machine
    from recollect.system.progress import Progress
    from recollect.victim.victim import Victim


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an attack cannot do without.

    Parameters
    ----------
    theta_0
        The weights from before training.
    n
        The number of points. An attack that can find it out by itself does not need it.
    """

    theta_0: bool = True
    n: bool = True


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What an attack will take, estimated before it runs.

    Parameters
    ----------
    seconds
        Of the whole attack, correct within a factor of a few.
    step_seconds
        Of a single step. An attack cannot end sooner.
    bytes
        Peak memory.
    equations, unknowns
        Counted for n points. With more unknowns than equations nothing is determined. Zero where
        counting says nothing.
    """

    seconds: float = 0.0
    step_seconds: float = 0.0
    bytes: int = 0
    equations: int = 0
    unknowns: int = 0


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an attack is given beside the victim.

    Parameters
    ----------
    seed
        Of every random number the attack draws.
    device
        Where to compute.
    progress
        To report how far the attack is.
    deadline
        A value of `time.monotonic()` at which to stop with the best so far and `Status.TIME`.
    resume
        Where the state of an unfinished run is kept; None: nowhere.
    """

    seed: int
    device: torch.device
    progress: Progress
    deadline: float = math.inf
    resume: ResumeSlot | None = None


@runtime_checkable
class Attack(Protocol):
    """A way to read training data out of a victim. Its options are the fields of the class that
    implements it."""

    @property
    def needs(self) -> Needs:
        """What it cannot do without; `reconstruct` checks this before it calls `run`."""

    def cost(self, victim: Victim, n: int, machine: Machine) -> Cost:
        """What finding n points will take on this machine."""

    def calibrated(self, victim: Victim) -> bool:
        """Whether its confidence was tested on victims like this one. If not, an audit calls no
        point recovered."""

    def run(self, victim: Victim, n: int | None, context: Context) -> Reconstruction:
        """Find n points; None: as many as the evidence shows."""
