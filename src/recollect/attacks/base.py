"""The interface of an attack: it states what it needs, what it costs and whether its confidence was
tested, and it runs itself.

Anything that fulfils `Attack` can be given to `reconstruct`, to `--attack package.module:Class`,
and to a sweep plan. docs/write-an-attack.md builds one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:  # option classes refer to these; the command line must start without torch
    import torch

    from recollect.attacks.result import Reconstruction, ResumeSlot
    from recollect.system.device import Machine
    from recollect.system.progress import Progress
    from recollect.victim.victim import Victim


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What an attack requires.

    Parameters
    ----------
    theta_0
        Whether it needs the weights from before training.
    n
        Whether it needs the number of points. An attack that can determine it does not.
    """

    theta_0: bool = True
    n: bool = True


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of an attack, estimated before it runs.

    Parameters
    ----------
    seconds
        Time of the whole attack, correct within a factor of a few.
    step_seconds
        Time of a single step. An attack cannot end sooner.
    bytes
        Peak memory.
    equations_effective, coordinates
        Equations that remain for the free coordinates of n points. With fewer equations than
        coordinates nothing is determined. Zero where counting says nothing.
    """

    seconds: float = 0.0
    step_seconds: float = 0.0
    bytes: int = 0
    equations_effective: int = 0
    coordinates: int = 0


@dataclass(frozen=True, kw_only=True)
class Context:
    """What an attack is given in addition to the victim.

    Parameters
    ----------
    seed
        Seed of every random number that the attack draws.
    device
        Where to compute.
    progress
        Called to report how far the attack is.
    deadline
        Value of `time.monotonic()` at which to stop, with the best result so far and `Status.TIME`.
    resume
        Where the state of an unfinished run is saved. None to save nothing.
    """

    seed: int
    device: torch.device
    progress: Progress
    deadline: float = math.inf
    resume: ResumeSlot | None = None


@runtime_checkable
class Attack(Protocol):
    """A method to reconstruct training data from a victim. Its options are the fields of the class
    that implements it."""

    @property
    def needs(self) -> Needs:
        """What the attack requires; `reconstruct` checks this before it calls `run`."""

    def cost(self, victim: Victim, n: int, machine: Machine) -> Cost:
        """The estimated cost of finding n points on this machine."""

    def calibrated(self, victim: Victim) -> bool:
        """Whether the confidence was tested on victims like this one. If not, an audit reports no
        point as recovered."""

    def run(self, victim: Victim, n: int | None, context: Context) -> Reconstruction:
        """Find n points, or as many as the evidence shows if n is None."""
