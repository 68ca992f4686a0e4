"""The attacks of an audit: settings are tried in turn within a time budget (`settings.py`), then
the attempt that explains most is tried from other random starts, and then on null victims.

Something is finished first. Each setting has a share of the time that is left. As long as no attack
has run to its end, an attack that was cut off is continued with all that is left, before a more
expensive one is begun, and if need be with the time that was meant for null victims: without a
finished attack nothing can be judged.

A setting that is not worth its time (`forecast.py`) is left out. The audit stops as soon as every
point is called and has been found by another random start too. At least one null victim is attacked
until the attack ends, if the budget allows, and the others as long as a point could count.
Nothing here sees the truth.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import torch

from recollect.attacks.options import Exact, Subspace
from recollect.attacks.reconstruct import UNTESTED
from recollect.auditing.attempt import Attempt, NullRun, Outcome, Setting
from recollect.auditing.conclusion import conclude
from recollect.auditing.confirm import (
    confirmed,
    explains_far_more,
    independent,
    marked,
    reproduced,
)
from recollect.auditing.forecast import first_attack, forecast
from recollect.auditing.nulls import NULLS
from recollect.auditing.ranking import most_explaining
from recollect.auditing.settings import RANDOM_STARTS, opening, other_start, plainest
from recollect.auditing.trying import Slot, attempt_at, why_not
from recollect.auditing.verdict import RECOGNISABLE, Reason
from recollect.errors import OptionError
from recollect.examine.history import History, history, undecayed
from recollect.examine.inspection import Inspection, inspect
from recollect.shapes import Bool, Tensor
from recollect.solve.loop import Status
from recollect.system.device import Machine, choose_device, memory_limit
from recollect.system.progress import Progress, quiet
from recollect.system.signals import noticed
from recollect.victim.victim import Victim

_SHARE_FOR_NULLS = 0.25
"""Share of the time budget that is kept for null victims."""
_NULL_PATIENCE, _NULL_MIN_SECONDS = 4.0, 20.0
"""Time limit of a null run once another one has ended: a multiple of the time of the attack that it
is compared with, and a minimum in seconds."""


def run_audit(
    victim: Victim,
    n: int | None = None,
    *,
    budget: float = 600.0,
    memory: int | None = None,
    past: History | None = None,
    seed: int = 0,
    device: torch.device | str = "auto",
    progress: Progress = quiet,
) -> Outcome:
    """Attack within `budget` seconds and `memory` bytes (None: what the machine has).

    If n is None, the numbers of points that the weights suggest are tried. The memory limit is kept
    by choosing algorithms whose estimates fit; it is not enforced. `past` is inferred from the
    victim unless it is given. Weight decay is undone. No point is called recovered if training
    biases the points, if the attack was cut off, or if its confidence was not calibrated. Ctrl-C
    ends the audit with what was tried until then.
    """
    if not budget > 0:
        raise OptionError(
            f"expected a budget of more than no time, got {budget:g} s; give for instance 10m"
        )
    if n is not None and n < 1:
        raise OptionError(
            f"expected at least one training point, got {n}; give their number, or auto"
        )
    if memory is not None and memory <= 0:
        raise OptionError(
            f"expected more than no memory, got {memory} bytes; give for instance 8GB"
        )
    past = history(victim) if past is None else past
    victim = undecayed(victim, past.decay) if past.decay else victim
    with memory_limit(memory), noticed() as stopped:
        search = _Search(victim, n, budget, past, seed, choose_device(device), progress, stopped)
        return search.run()


class _Search:
    """The attacks of one audit, and what they have found so far."""

    def __init__(
        self,
        victim: Victim,
        n: int | None,
        budget: float,
        past: History,
        seed: int,
        device: torch.device,
        progress: Progress,
        stopped: Callable[[], bool],
    ) -> None:
        self._began = time.monotonic()
        self._victim, self._n, self._budget, self._past = victim, n, budget, past
        self._seed, self._device, self._progress = seed, device, progress
        self._stopped = stopped
        self._attempts: list[Attempt] = []
        self._slots: dict[str, Slot] = {}
        self._nulls: list[NullRun] = []
        self._withhold: tuple[str, ...] = ()

    def run(self) -> Outcome:
        """Attack the victim, then null victims, and judge. Ctrl-C ends the attacks, and what was
        found until then is judged."""
        looked, interrupted = inspect(self._victim, past=self._past), False
        try:
            self._attack(looked)
            best = self._best()
            if best is not None and best.whole and best.found is not None and self._counts:
                if best.found.confidence is not None:
                    self._attack_nulls(best)
                if best.setting.victim is not self._victim:
                    looked = inspect(best.setting.victim, past=self._past)
        except KeyboardInterrupt:
            interrupted = True
        try:
            return self._judged(looked, interrupted)
        except KeyboardInterrupt:  # this takes little time, and without it all would be lost
            return self._judged(looked, True)

    def _judged(self, looked: Inspection, interrupted: bool) -> Outcome:
        best, attempts, seen = self._best(), list(self._attempts), None
        if best is not None and best.found is not None and best.found.confidence is not None:
            seen = self._confirmed(best)
            held = replace(
                best,
                found=marked(best.found, seen),
                reproduced=reproduced(best, seen, self._nulls),
            )
            attempts[attempts.index(best)] = held
            best = held
        verdict, reason = conclude(
            best,
            attempts,
            self._nulls,
            hindrance=hindrance(self._past),
            restarted=best is not None
            and any(one.whole and independent(best, one) for one in attempts),
            interrupted=interrupted,
        )
        return Outcome(
            verdict,
            self._past,
            looked,
            tuple(attempts),
            best,
            tuple(self._nulls),
            time.monotonic() - self._began,
            interrupted,
            reason,
            seen,
        )

    @property
    def _end(self) -> float:
        return self._began + self._budget

    @property
    def _end_of_attacks(self) -> float:
        return self._began + (1 - _SHARE_FOR_NULLS) * self._budget

    @property
    def _counts(self) -> bool:
        """Whether any point can count. Of a sparse change none does: one attack shows what there
        is, and the verdict is known."""
        return not self._past.sparse

    def _best(self) -> Attempt | None:
        """The attempt that explains most, with the activation that was settled on."""
        settled = plainest(self._attempts, self._victim).network.identity
        alike = [one for one in self._attempts if one.setting.victim.network.identity == settled]
        return most_explaining(alike, self._device)

    def _confirmed(self, best: Attempt) -> Bool[Tensor, " n"]:
        return confirmed(best, self._attempts)

    def _attack(self, looked: Inspection) -> None:
        machine = Machine.measured(self._device)
        calibrated = first_attack(looked).calibrated(self._victim)
        self._withhold = self._past.withhold + (() if calibrated else (UNTESTED,))
        spared: Setting | None = None
        costs: dict[str, float] = {}

        def in_time(setting: Setting) -> bool:
            expected = forecast(setting.victim, setting.attack, setting.n or 1, machine)
            left = self._end_of_attacks - time.monotonic()
            return not expected.against and expected.seconds <= setting.share * left

        settings = opening(
            self._victim, looked, self._n, self._seed, self._attempts, _harmless(in_time)
        )
        for setting in settings:
            left = self._end_of_attacks - time.monotonic()
            if left < 0:
                self._leave_out(setting, "the time was over", "time")
                break
            if setting.n is None and setting.attack.needs.n:
                self._leave_out(setting, "the number of training points is not known; give --n")
                continue
            try:
                expected = forecast(setting.victim, setting.attack, setting.n or 1, machine)
            except Exception as error:
                self._leave_out(setting, why_not(error, setting.victim))
                continue
            too_slow = expected.too_slow(left)
            if against := expected.against or too_slow:
                self._leave_out(setting, against, expected.hindrance(too_slow))
                spared = setting if expected.fits and not too_slow else spared
                continue
            costs[setting.name] = expected.seconds
            waiting = self._waiting()
            if waiting is not None and (
                setting.n is None or expected.seconds > costs[waiting.setting.name]
            ):
                self._leave_out(setting, "no attack had run to its end until then", "time")
                continue
            attempt = self._try(setting, time.monotonic() + setting.share * left)
            if self._complete(attempt) or not self._counts:
                break
        if (waiting := self._waiting()) is not None:
            self._continue(waiting, self._end)
        if not any(one.found is not None for one in self._attempts) and spared is not None:
            # A verdict needs at least one attempt, even one that is not worth its time.
            self._try(spared, self._end_of_attacks)
        self._start_again()
        best = self._best()
        for one in [one for one in self._attempts if one.cut_off]:
            if best is None or not self._complete(best):
                self._continue(one, self._end_of_attacks)

    def _complete(self, attempt: Attempt) -> bool:
        """Whether every point is called, or is recognisable where no point may be called."""
        enough = attempt.likely if self._withhold else attempt.called
        return attempt.found is not None and enough == len(attempt.found.inputs)

    def _waiting(self) -> Attempt | None:
        """The attempt to continue: where nothing has run to its end, the first that was cut off."""
        if any(one.whole for one in self._attempts):
            return None
        return next((one for one in self._attempts if one.cut_off), None)

    def _start_again(self) -> None:
        """The attempt that explains most from other random starts, until one start has found every
        point, and another one each point that would count."""
        for start in range(2, RANDOM_STARTS + 1):
            best = self._best()
            if best is None or best.found is None or not best.whole or not self._counts:
                return
            unsettled = bool((self._firm(best) & ~self._confirmed(best)).any())
            if self._complete(best) and not unsettled:
                return
            again = other_start(best.setting, len(best.found.inputs), start, self._seed)
            if time.monotonic() > self._end_of_attacks:
                self._leave_out(again, "the time was over", "time")
                return
            self._try(again, self._end_of_attacks)

    def _firm(self, best: Attempt) -> Bool[Tensor, " n"]:
        assert best.found is not None
        if best.found.confidence is None:
            return torch.zeros(len(best.found.inputs), dtype=torch.bool)
        return best.found.confidence >= RECOGNISABLE

    def _leave_out(self, setting: Setting, why: str, hindrance: Reason | None = None) -> None:
        self._attempts.append(Attempt(setting, None, 0.0, f"not tried: {why}", hindrance))

    def _try(self, setting: Setting, deadline: float) -> Attempt:
        slot = self._slots[setting.name] = Slot()
        attempt = attempt_at(setting, self._device, self._progress, deadline, self._withhold, slot)
        self._attempts.append(attempt)
        self._end_if_interrupted(attempt)
        return attempt

    def _continue(self, attempt: Attempt, deadline: float) -> None:
        """Go on with an attack that was cut off, from where it was."""
        if time.monotonic() > deadline:
            return
        slot, setting = self._slots[attempt.setting.name], attempt.setting
        longer = attempt_at(setting, self._device, self._progress, deadline, self._withhold, slot)
        if longer.found is not None:
            seconds = attempt.seconds + longer.seconds
            self._attempts[self._attempts.index(attempt)] = replace(longer, seconds=seconds)
        self._end_if_interrupted(longer)

    def _attack_nulls(self, best: Attempt) -> None:
        assert best.found is not None
        setting = replace(best.setting, n=len(best.found.inputs))
        if isinstance(setting.attack.space, Subspace):  # Noise has no clear rank.
            setting = replace(
                setting, attack=replace(setting.attack, space=Subspace(rank=best.found.rank))
            )
        if best.read_off and isinstance(setting.attack, Exact):  # in the same way, without a search
            setting = replace(setting, attack=replace(setting.attack, unmix="only"))
        patience = max(_NULL_MIN_SECONDS, _NULL_PATIENCE * best.seconds)
        for kind, null in NULLS.items():
            # Until one has run to its end nothing is known of false alarms.
            patient = not any(run.whole for run in self._nulls)
            # Where nothing would count there is no alarm that others could show to be false, but a
            # single call in a null victim says little without the others.
            alarm = bool(self._firm(best).any()) or any(run.called for run in self._nulls)
            again = explains_far_more(best, self._nulls) and bool(self._confirmed(best).any())
            alarm = alarm or again
            if time.monotonic() > self._end or not (patient or alarm):
                return
            until = self._end if patient else min(self._end, time.monotonic() + patience)
            emptied = replace(setting, victim=null(setting.victim, setting.seed))
            attempt = attempt_at(emptied, self._device, self._progress, until)
            self._end_if_interrupted(attempt)
            if attempt.found is not None and attempt.found.confidence is not None:
                points, called, likely = len(attempt.found.inputs), attempt.called, attempt.likely
                loss, whole = attempt.found.loss, attempt.whole
                run = NullRun(kind, points, called, likely, attempt.seconds, whole, loss)
                self._nulls.append(run)

    def _end_if_interrupted(self, attempt: Attempt) -> None:
        """An attack returns its best where it is interrupted, and may say that its time was over:
        the signal itself decides."""
        cut_off = attempt.found is not None and attempt.found.status is Status.INTERRUPTED
        if cut_off or self._stopped():
            raise KeyboardInterrupt


def _harmless(in_time: Callable[[Setting], bool]) -> Callable[[Setting], bool]:
    """The same, where a setting that no forecast can be made for is not in time."""

    def safe(setting: Setting) -> bool:
        try:
            return in_time(setting)
        except Exception:
            return False

    return safe


def hindrance(past: History) -> Reason | None:
    """What the files say against the method: the first finding that gives a reason."""
    return next((one.hinders for one in past.findings if one.hinders), None)
