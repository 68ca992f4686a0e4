"""One setting, tried until a deadline. Its state is kept, so that it can be continued."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, replace

import torch

from recollect.attacks.reconstruct import reconstruct
from recollect.attacks.result import SavedRun, Withheld
from recollect.auditing.attempt import Attempt, Setting
from recollect.errors import RecollectError, RecollectWarning, one_line
from recollect.solve.loop import Status
from recollect.system.device import is_out_of_memory
from recollect.system.progress import Progress
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim


@dataclass
class Slot:
    """Keeps the state of an attack that was cut off, so that it can be continued."""

    fingerprint: str = ""
    saved: SavedRun | None = None

    def load(self, fingerprint: str) -> SavedRun | None:
        return self.saved if fingerprint == self.fingerprint else None

    def save(self, fingerprint: str, saved: SavedRun) -> None:
        self.fingerprint, self.saved = fingerprint, saved


def attempt_at(
    setting: Setting,
    device: torch.device,
    progress: Progress,
    deadline: float,
    withhold: tuple[str, ...] = (),
    slot: Slot | None = None,
) -> Attempt:
    """Run a setting until the deadline. `withhold`: reasons why none of its points may be called.
    `slot`: where its state is kept."""
    began = time.monotonic()

    def failed(why: str) -> Attempt:
        return Attempt(setting, None, time.monotonic() - began, why)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", RecollectWarning
            )  # the notes of the result say the same
            found = reconstruct(
                setting.victim,
                setting.n,
                setting.attack,
                seed=setting.seed,
                device=device,
                progress=progress,
                resume=slot,
                deadline=deadline,
            )
    except Exception as error:
        nothing = failed(why_not(error, setting.victim))
        strange = not isinstance(error, RecollectError) and not is_out_of_memory(error)
        return replace(nothing, hindrance="layer") if strange else nothing
    everything = tuple(range(len(found.inputs)))
    known = {one.why for one in found.withheld}
    more = tuple(Withheld(everything, why) for why in withhold if why not in known)
    found = replace(found, withheld=(*found.withheld, *more))
    cut_off = found.status is Status.INTERRUPTED
    ended = "interrupted; the best until then was kept" if cut_off else found.status.value
    return Attempt(setting, found, time.monotonic() - began, ended)


def why_not(error: Exception, victim: Victim) -> str:
    """Why a setting failed. An error that is nobody's but this program's is raised again."""
    if isinstance(error, RecollectError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError) and is_out_of_memory(error):
        return "memory was not enough"
    if isinstance(victim.network, MLP):
        raise error
    return f"the model cannot be attacked in this way: {one_line(error)}"
