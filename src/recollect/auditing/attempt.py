"""What an audit tries, and the result of each try."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.attacks.options import Exact
from recollect.attacks.projection import UNFINISHED
from recollect.attacks.result import Reconstruction
from recollect.auditing.verdict import Level, Reason, Verdict, called, levels, recognisable
from recollect.examine.history import History
from recollect.examine.inspection import Inspection
from recollect.shapes import Bool, Tensor
from recollect.victim.victim import Victim

SHARE_OF_SETTING = 0.6
"""Share of the remaining time that one setting may take: the next may be the one that finds the
data."""


@dataclass(frozen=True)
class Setting:
    """One attack to try: its victim, its options, and its share of the remaining time."""

    name: str
    victim: Victim
    """The victim as it is attacked, with weight decay undone and the activation of this setting."""
    attack: Exact
    n: int | None
    seed: int
    share: float = SHARE_OF_SETTING


@dataclass(frozen=True)
class Attempt:
    """A setting and its result. If it was not or could not be run, `found` is None and `ended` says
    why."""

    setting: Setting
    found: Reconstruction | None
    seconds: float
    ended: str
    hindrance: Reason | None = None
    """What kept the setting from being tried, or from being tried to its end, where that is time,
    counting or a layer."""
    reproduced: Bool[Tensor, " n"] | None = None
    """Points that count as recognisable whatever their confidence (`auditing/confirm.py`)."""

    @property
    def whole(self) -> bool:
        """Whether the attack ran to its end. The clock or an interrupt may cut an attack off where
        respawning points would still have moved them, so such an attack decides nothing."""
        return self.found is not None and self.found.status not in UNFINISHED

    @property
    def cut_off(self) -> bool:
        return self.found is not None and not self.whole

    @property
    def read_off(self) -> bool:
        """Whether every point was read off closed units, without any search."""
        found = self.found
        if found is None or found.details.get("read_off") != len(found.inputs):
            return False
        return not any(stage.iterations for stage in found.stages)

    @property
    def called(self) -> int:
        found = self.found
        return 0 if found is None or found.confidence is None else int(called(found).sum())

    @property
    def recognisable(self) -> Bool[Tensor, " n"] | None:
        """Which points are at least recognisable."""
        found = self.found
        if found is None or found.confidence is None:
            return None
        return recognisable(found, self.reproduced)

    @property
    def likely(self) -> int:
        """How many points are at least recognisable."""
        near = self.recognisable
        return 0 if near is None else int(near.sum())

    @property
    def levels(self) -> tuple[Level, ...]:
        """The level of each point."""
        found = self.found
        if found is None or found.confidence is None:
            return ()
        return levels(found, self.reproduced)


@dataclass(frozen=True)
class NullRun:
    """The attack on one null victim."""

    kind: str
    points: int
    called: int
    likely: int
    seconds: float
    whole: bool
    """Whether the attack ended by itself, and not at its time limit. Only then does it count."""
    loss: float = 1.0
    """The share of the null victim's change that the attack leaves unexplained."""


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
    reason: Reason | None = None
    """What limits the verdict."""
    confirmed: Bool[Tensor, " n"] | None = None
    """Which points of the best attempt another random start has found too."""

    @property
    def called(self) -> Bool[Tensor, " n"] | None:
        found = None if self.best is None else self.best.found
        return None if found is None or found.confidence is None else called(found)

    @property
    def recognisable(self) -> Bool[Tensor, " n"] | None:
        """Which points of the best attempt are at least recognisable."""
        return None if self.best is None else self.best.recognisable

    @property
    def up_to_sign(self) -> bool:
        found = None if self.best is None else self.best.found
        return found is not None and not found.signs_settled

    @property
    def false_alarm_test(self) -> bool:
        """Whether the attack on at least one null victim ran to its end."""
        return any(run.whole for run in self.nulls)

    @property
    def null_points(self) -> int:
        return sum(run.points for run in self.nulls if run.whole)

    @property
    def null_called(self) -> int:
        return sum(run.called for run in self.nulls if run.whole)

    @property
    def null_likely(self) -> int:
        return sum(run.likely for run in self.nulls if run.whole)
