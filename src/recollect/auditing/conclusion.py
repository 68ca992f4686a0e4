"""The verdict that follows from all attacks of an audit, and what limits it.

Only attacks that ran to their end count, on the victim and on null victims, and only points that
another random start has found too. "Not exposed within budget" is said only if an attack could have
found something: if the method fits, if there were as many equations as unknowns, and if neither the
clock nor a missing confirmation kept points from counting.
"""

from __future__ import annotations

from collections.abc import Sequence

from recollect.auditing.attempt import Attempt, NullRun
from recollect.auditing.verdict import CALLED, RECOGNISABLE, Reason, Verdict, judge

_POSITIVE = (Verdict.EXPOSED, Verdict.PARTLY)


def conclude(
    best: Attempt | None,
    attempts: Sequence[Attempt],
    nulls: Sequence[NullRun],
    *,
    hindrance: Reason | None = None,
    restarted: bool = True,
    interrupted: bool = False,
) -> tuple[Verdict, Reason | None]:
    """The verdict and the reason beside it.

    `best` is the attempt that explains most, with the points withheld that no other random start
    has found. `hindrance` is what the files say against the method. `restarted` says whether
    another random start ran to its end.
    """
    verdict, reason = _conclude(best, attempts, nulls, hindrance, restarted)
    if interrupted:
        silent = verdict in (Verdict.NOT_FOUND, Verdict.UNKNOWN)
        return (Verdict.INTERRUPTED if silent else verdict), "interrupted"
    return verdict, reason


def _conclude(
    best: Attempt | None,
    attempts: Sequence[Attempt],
    nulls: Sequence[NullRun],
    hindrance: Reason | None,
    restarted: bool,
) -> tuple[Verdict, Reason | None]:
    found = None if best is None else best.found
    if best is None or found is None or not best.whole:
        return Verdict.UNKNOWN, hindrance or _why_nothing_ended(attempts)
    if found.confidence is None:
        return Verdict.UNKNOWN, hindrance or "layer"
    whole = [run for run in nulls if run.whole]
    points, likely = sum(run.points for run in whole), sum(run.likely for run in whole)
    called = sum(run.called for run in whole)

    def judged(recovered: int, recognisable: int) -> Verdict:
        n = len(found.inputs)
        return judge(recovered, n, called, points, likely=recognisable, null_likely=likely)

    verdict = judged(best.called, best.likely)
    late = any(one.cut_off or one.hindrance == "time" for one in attempts)
    if verdict is Verdict.UNKNOWN:
        return verdict, "no-evidence"
    sure = found.confidence
    firm, near = int((sure >= CALLED).sum()), int((sure >= RECOGNISABLE).sum())
    if verdict in _POSITIVE:
        unsure = judged(firm, near) is not verdict and not restarted
        return verdict, "time" if unsure else None
    if hindrance:
        return Verdict.UNKNOWN, hindrance
    if judged(0, near) in _POSITIVE:  # Points that nothing but a single start speaks for.
        return Verdict.UNKNOWN, "no-evidence" if restarted else "time"
    for one in attempts:
        if one.cut_off and one.found is not None and one.found.confidence is not None:
            cut = int((one.found.confidence >= RECOGNISABLE).sum())
            if judge(0, len(one.found.inputs), likely=cut) in _POSITIVE:
                return Verdict.UNKNOWN, "time"
    if not any(_determined(one) for one in attempts if one.whole):
        return Verdict.UNKNOWN, "counting"
    return Verdict.NOT_FOUND, "time" if late else None


def _determined(attempt: Attempt) -> bool:
    """Whether the attack had as many equations as unknowns, as far as it says."""
    found = attempt.found
    if found is None or found.equations_effective is None or found.coordinates is None:
        return found is not None
    return found.coordinates <= found.equations_effective


def _why_nothing_ended(attempts: Sequence[Attempt]) -> Reason:
    hindrances = {"time" if one.cut_off else one.hindrance for one in attempts}
    if "layer" in hindrances and all(one.found is None for one in attempts):
        return "layer"
    reasons: tuple[Reason, ...] = ("time", "counting")
    for reason in reasons:
        if reason in hindrances:
            return reason
    return "no-evidence"
