"""The attacks of an audit: settings are tried in turn within a time budget, and then the best one
on null victims.

1. The last layer alone with n = rank ΔW_1. This is the cheapest setting, and n examples almost
   always have rank n if there are fewer examples than input dimensions. If the activation is not
   known and ReLU fails, the setting is repeated with other activations.
2. All layers with the same number of points. Where training did not move the last layer, or moved
   it alone, only one of the two is tried; without ΔW_1 points are sought in all of R^d.
3. The last layer with n from the residual, in case there are more examples than rank ΔW_1, and
   then all layers with the n that was found.
4. The best of these from other random starts.
5. Null victims (`nulls.py`), attacked with the best setting. This shows how many points are called
   recovered where there is no training data.

A setting that is not worth its time (`forecast.py`) is left out, and no setting takes more than its
share of the remaining time. The audit stops as soon as every point is called. Nothing here sees the
truth.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from recollect.attacks.options import Exact, Subspace
from recollect.attacks.reconstruct import UNTESTED, reconstruct
from recollect.attacks.result import Reconstruction, Withheld
from recollect.auditing.forecast import first_attack, forecast
from recollect.auditing.nulls import NULLS
from recollect.auditing.verdict import Verdict, called, judge, likely
from recollect.errors import OptionError, RecollectError, RecollectWarning, one_line
from recollect.examine.history import History, history, undecayed
from recollect.examine.inspection import Inspection, inspect
from recollect.examine.subspace import feature_rank
from recollect.shapes import Bool, Tensor
from recollect.solve.loop import Status
from recollect.system.device import Machine, choose_device, is_out_of_memory, memory_limit
from recollect.system.progress import Progress, quiet
from recollect.system.signals import noticed
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim, attackable

_SHARE_FOR_NULLS = 0.25
"""Share of the time budget that is kept for null victims."""
_NULL_PATIENCE, _NULL_MIN_SECONDS = 4.0, 5.0
"""Time limit of a null run: a multiple of the time of the attack that it is compared with, and a
minimum in seconds."""
_RANDOM_STARTS = 3
_LAYERS = {"last": "last layer", "all": "all layers"}
_SHARE_OF_SETTING = 0.6
"""Share of the remaining time that one setting may take: the next may be the one that finds the
data."""
_SHARE_OF_GUESS = 0.07
"""The same for a guess at the activation."""
_WITHHELD_CONFIDENCE = 0.7
"""When attempts are compared, points that are withheld count with this confidence at most."""
_ACTIVATIONS = ("relu", "tanh", "gelu", "silu", "leaky-relu", "sigmoid", "elu", "softplus")
_PLAINLY = 0.1
"""With equally many points called, another activation replaces the assumed one only if its loss is
below this share of the assumed one's loss."""


@dataclass(frozen=True)
class Setting:
    """One attack to try: its victim, its options, and its share of the remaining time."""

    name: str
    victim: Victim
    """The victim as it is attacked, with weight decay undone and the activation of this setting."""
    attack: Exact
    n: int | None
    seed: int
    share: float = _SHARE_OF_SETTING


@dataclass(frozen=True)
class Attempt:
    """A setting and its result. If it was not or could not be run, `found` is None and `ended` says
    why."""

    setting: Setting
    found: Reconstruction | None
    seconds: float
    ended: str

    @property
    def called(self) -> int:
        return (
            0
            if self.found is None or self.found.confidence is None
            else int(called(self.found).sum())
        )

    @property
    def likely(self) -> int:
        return (
            0
            if self.found is None or self.found.confidence is None
            else int(likely(self.found).sum())
        )

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key, larger is better: the number of points called, then the mean confidence."""
        sure = None if self.found is None else self.found.confidence
        if self.found is None or sure is None:
            return 0, -1.0
        if self.found.withheld:
            sure = sure.clamp(max=_WITHHELD_CONFIDENCE)
        return self.called, float(sure.mean())


@dataclass(frozen=True)
class NullRun:
    """The attack on one null victim."""

    kind: str
    points: int
    called: int
    likely: int
    seconds: float
    whole: bool
    """Whether the attack ended by itself, and not at its time limit."""


@dataclass(frozen=True)
class Outcome:
    """The result of the attacks of an audit."""

    verdict: Verdict
    past: History
    inspection: Inspection
    attempts: tuple[Attempt, ...]
    best: Attempt | None
    nulls: tuple[NullRun, ...]
    seconds: float
    interrupted: bool = False
    """Whether the audit was interrupted, so that later settings or null victims are missing."""

    @property
    def called(self) -> Bool[Tensor, " n"] | None:
        found = None if self.best is None else self.best.found
        return None if found is None or found.confidence is None else called(found)

    @property
    def up_to_sign(self) -> bool:
        found = None if self.best is None else self.best.found
        return found is not None and not found.signs_settled

    @property
    def null_points(self) -> int:
        return sum(run.points for run in self.nulls)

    @property
    def null_called(self) -> int:
        return sum(run.called for run in self.nulls)


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
        self._nulls: list[NullRun] = []
        self._best: Attempt | None = None

    def run(self) -> Outcome:
        """Attack the victim, then null victims, and judge. Ctrl-C ends the attacks, and what was
        found until then is judged."""
        looked, interrupted = inspect(self._victim, past=self._past), False
        try:
            self._attack(looked)
            best = self._best
            if best is not None and best.found is not None and best.found.confidence is not None:
                self._attack_nulls(best)
                if best.setting.victim is not self._victim:
                    looked = inspect(best.setting.victim, past=self._past)
        except KeyboardInterrupt:
            interrupted = True
        verdict = _judged(self._best, tuple(self._nulls))
        if verdict is Verdict.NOT_FOUND and not self._past.fits:
            verdict = Verdict.UNKNOWN
        if interrupted and verdict in (Verdict.NOT_FOUND, Verdict.UNKNOWN):
            verdict = Verdict.INTERRUPTED
        return Outcome(
            verdict,
            self._past,
            looked,
            tuple(self._attempts),
            self._best,
            tuple(self._nulls),
            time.monotonic() - self._began,
            interrupted,
        )

    def _attack(self, looked: Inspection) -> None:
        machine = Machine.measured(self._device)
        calibrated = first_attack(looked).calibrated(self._victim)
        withhold = self._past.withhold + (() if calibrated else (UNTESTED,))
        spared: Setting | None = None
        left = self._began + (1 - _SHARE_FOR_NULLS) * self._budget
        for setting in _settings(self._victim, looked, self._n, self._seed, self._attempts):
            if time.monotonic() > left:
                self._leave_out(setting, "the time was over")
                break
            if setting.n is None and setting.attack.needs.n:
                self._leave_out(setting, "the number of training points is not known; give --n")
                continue
            try:
                expected = forecast(setting.victim, setting.attack, setting.n or 1, machine)
            except Exception as error:
                self._leave_out(setting, _reason(error, setting.victim))
                continue
            too_slow = expected.too_slow(left - time.monotonic())
            if against := expected.against or too_slow:
                self._leave_out(setting, against)
                spared = setting if expected.fits and not too_slow else spared
                continue
            now = time.monotonic()
            attempt = self._try(setting, now + setting.share * (left - now), withhold)
            enough = attempt.likely if withhold else attempt.called
            if attempt.found is not None and enough == len(attempt.found.inputs):
                break
        if self._best is None and spared is not None:
            # A verdict needs at least one attempt, even one that is not worth its time.
            self._try(spared, left, withhold)

    def _leave_out(self, setting: Setting, why: str) -> None:
        self._attempts.append(Attempt(setting, None, 0.0, f"not tried: {why}"))

    def _try(self, setting: Setting, deadline: float, withhold: tuple[str, ...]) -> Attempt:
        attempt = _try(setting, self._device, self._progress, deadline, withhold)
        self._attempts.append(attempt)
        if self._best is None or attempt.rank > self._best.rank:
            self._best = attempt
        self._end_if_interrupted(attempt)
        return attempt

    def _attack_nulls(self, best: Attempt) -> None:
        assert best.found is not None
        setting = replace(best.setting, n=len(best.found.inputs))
        deadline = self._began + self._budget
        if isinstance(setting.attack.space, Subspace):  # Noise has no clear rank.
            setting = replace(
                setting, attack=replace(setting.attack, space=Subspace(rank=best.found.rank))
            )
        for kind, null in NULLS.items():
            if time.monotonic() > deadline:
                return
            until_then = time.monotonic() + max(_NULL_MIN_SECONDS, _NULL_PATIENCE * best.seconds)
            emptied = replace(setting, victim=null(setting.victim, setting.seed))
            attempt = _try(emptied, self._device, self._progress, min(deadline, until_then))
            self._end_if_interrupted(attempt)
            if attempt.found is not None and attempt.found.confidence is not None:
                points, whole = len(attempt.found.inputs), attempt.found.status is not Status.TIME
                called, likely = attempt.called, attempt.likely
                self._nulls.append(NullRun(kind, points, called, likely, attempt.seconds, whole))

    def _end_if_interrupted(self, attempt: Attempt) -> None:
        """An attack returns its best where it is interrupted, and may say that its time was over:
        the signal itself decides."""
        cut_off = attempt.found is not None and attempt.found.status is Status.INTERRUPTED
        if cut_off or self._stopped():
            raise KeyboardInterrupt


def _settings(
    victim: Victim, looked: Inspection, n: int | None, seed: int, attempts: list[Attempt]
) -> Iterator[Setting]:
    """Yield the settings. Each one is chosen when the results of the earlier ones are known."""
    spectrum = looked.spectrum
    kinds = attackable(victim.network)
    first, *others = (replace(first_attack(looked), parameters=kind) for kind in kinds)
    guesses: dict[str, int] = {}
    if n is not None:
        guesses["n given"] = n
    elif spectrum is not None and spectrum.found:
        guesses["n = rank of ΔW1"] = spectrum.rank
    elif spectrum is None and (rank := feature_rank(victim)) is not None:
        guesses["n = rank of the first change"] = rank
    every = others[0] if others else None
    for name, number in guesses.items():
        yield Setting(f"{_LAYERS[kinds[0]]}, {name}", victim, first, number, seed)
        yield from _other_activations(victim, attempts)
        victim = _plainest(attempts).setting.victim
        if every is not None:
            yield Setting(f"all layers, {name}", victim, every, number, seed)
    if n is None and not first.needs.n:
        yield Setting("last layer, n from the residual", victim, first, None, seed)
        if not guesses:
            yield from _other_activations(victim, attempts)
            victim = _plainest(attempts).setting.victim
        found = attempts[-1].found
        if every is not None and found is not None and len(found.inputs) not in guesses.values():
            yield Setting("all layers, the same n", victim, every, len(found.inputs), seed)
    elif not guesses:
        yield Setting("all layers", victim, first, None, seed)
    best = max(attempts, key=lambda attempt: attempt.rank)
    if best.found is None:
        return
    again = len(best.found.inputs)
    for start in range(1, _RANDOM_STARTS):
        name = f"{best.setting.name.partition(',')[0]}, n = {again}, random start {start + 1}"
        yield Setting(name, best.setting.victim, best.setting.attack, again, seed + start)


def _other_activations(victim: Victim, attempts: list[Attempt]) -> Iterator[Setting]:
    """The setting just tried with each other activation, if the activation was only assumed and
    fails."""
    tried, network = attempts[-1], victim.network
    if tried.found is None or not isinstance(network, MLP) or not network.assumed:
        return
    n = len(tried.found.inputs)
    for phi in _ACTIVATIONS:
        if 2 * _plainest(attempts).called >= n:
            return
        if phi != network.activation:
            other = Victim(
                replace(network, activation=phi),
                victim.theta_0,
                victim.theta_f,
                input_shape=victim.input_shape,
            )
            name = f"{tried.setting.name}, {phi} instead of {network.activation}"
            yield replace(tried.setting, name=name, victim=other, n=n, share=_SHARE_OF_GUESS)


def _plainest(attempts: list[Attempt]) -> Attempt:
    """The first attempt, unless a later one calls more points or has a far smaller loss."""
    best = attempts[0]
    for attempt in attempts[1:]:
        if attempt.found is None:
            continue
        far = best.found is None or attempt.found.loss < _PLAINLY * best.found.loss
        if attempt.called > best.called or (far and attempt.called == best.called):
            best = attempt
    return best


def _try(
    setting: Setting,
    device: torch.device,
    progress: Progress,
    deadline: float,
    withhold: tuple[str, ...] = (),
) -> Attempt:
    """Run a setting until the deadline. `withhold`: reasons why none of its points may be
    called."""
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
                deadline=deadline,
            )
    except Exception as error:
        return failed(_reason(error, setting.victim))
    everything = tuple(range(len(found.inputs)))
    known = {one.why for one in found.withheld}
    more = tuple(Withheld(everything, why) for why in withhold if why not in known)
    found = replace(found, withheld=(*found.withheld, *more))
    cut_off = found.status is Status.INTERRUPTED
    ended = "interrupted; the best until then was kept" if cut_off else found.status.value
    return Attempt(setting, found, time.monotonic() - began, ended)


def _reason(error: Exception, victim: Victim) -> str:
    """Why a setting failed. An error that is nobody's but this program's is raised again."""
    if isinstance(error, RecollectError):
        return str(error)
    if isinstance(error, MemoryError | RuntimeError) and is_out_of_memory(error):
        return "memory was not enough"
    if isinstance(victim.network, MLP):
        raise error
    return f"the model cannot be attacked in this way: {one_line(error)}"


def _judged(best: Attempt | None, nulls: tuple[NullRun, ...]) -> Verdict:
    if best is None or best.found is None or best.found.confidence is None:
        return Verdict.UNKNOWN
    return judge(
        best.called,
        len(best.found.inputs),
        sum(run.called for run in nulls),
        sum(run.points for run in nulls),
        likely=best.likely,
        null_likely=sum(run.likely for run in nulls),
    )
