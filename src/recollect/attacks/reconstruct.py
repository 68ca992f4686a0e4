"""`reconstruct`: check that an attack has what it needs, and run it."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.attacks.base import Attack, Context
from recollect.attacks.options import Exact, current
from recollect.attacks.result import Reconstruction, ResumeSlot, Withheld
from recollect.errors import OptionError, VictimError
from recollect.system.allocation import freed_memory_kept
from recollect.system.device import choose_device
from recollect.system.progress import Progress, quiet
from recollect.victim.victim import Victim

UNTESTED = "confidence was not tested on networks like this one"


def reconstruct(
    victim: Victim,
    n: int | None,
    attack: Attack | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "auto",
    progress: Progress = quiet,
    resume: ResumeSlot | None = None,
    deadline: float = math.inf,
) -> Reconstruction:
    """Reconstruct n training inputs from a victim. The same victim, options, seed, machine and
    number of threads give bitwise identical results.

    Parameters
    ----------
    victim
        The network and its weights before and after training.
    n
        The number of points to look for. With None, the attack determines it from the residual, if
        it can.
    attack
        Any object that fulfils `Attack`. The default is `Exact()`; the paper's attack is
        `Projection(…)`.
    seed
        Seed of every random number.
    device
        `auto`, `cpu`, `cuda` or a torch device.
    progress
        Called to report how far the attack is.
    resume
        Where the state of an unfinished run is saved and found again.
    deadline
        Value of `time.monotonic()` at which the attack stops with the best result so far.

    Returns
    -------
    Reconstruction
        The points, how well they explain the change of the weights, and how far to trust them. If
        there are fewer equations than unknowns, a `RecollectWarning` is issued, because solutions
        exist that are not the data.
    """
    attack = Exact() if attack is None else current(attack)
    if not isinstance(attack, Attack):
        raise OptionError(
            "expected an attack with needs, cost, calibrated and run, got "
            f"{type(attack).__name__}; see "
            "docs/write-an-attack.md"
        )
    needs = attack.needs
    if needs.theta_0 and victim.theta_0 is None:
        raise VictimError(
            "expected the weights before training, got none; this attack explains θf − θ0 and "
            "needs θ0"
        )
    if n is None and needs.n:
        raise OptionError(
            "expected a number of points for gradient descent, lm, or parameters beyond the last "
            "layer's, got auto; "
            "give --n"
        )
    if n is not None and not 1 <= n <= 10**8:
        raise OptionError(
            f"expected --n between 1 and 10⁸, got {n:.6g}; ask for another number of points"
        )
    where = choose_device(device)
    context = Context(seed=seed, device=where, progress=progress, deadline=deadline, resume=resume)
    with freed_memory_kept():
        found = attack.run(victim, n, context)
    if found.confidence is None or attack.calibrated(victim):
        return found
    everything = Withheld(tuple(range(len(found.inputs))), UNTESTED)
    return replace(found, withheld=(*found.withheld, everything))
