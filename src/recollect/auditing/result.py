"""The result of a whole audit, and its content as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from recollect.attacks.result import Reconstruction
from recollect.auditing.attempt import Attempt, NullRun, Outcome
from recollect.auditing.verdict import ANSWERS, CUT_SHORT, WHY, Level, Reason, Verdict
from recollect.examine.findings import Finding
from recollect.records import Record, finite, record_of, versions
from recollect.shapes import Bool, Float, Tensor
from recollect.truth.files import Truth
from recollect.truth.metrics import NEAR, RECOVERED, Score


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Parameters
    ----------
    verdict
        The answer.
    findings
        What was seen in the files, with what it means and what to do about it.
    outcome
        The results of the attacks; None if a finding stopped the audit before any attack.
    truth, score
        The training inputs, where they were given, and how close the best attempt came to them.
    subject
        Date, files and options, for the report.
    points_sha256
        Hash of the points found (float64, row by row), by which two audits can be compared.
    reason
        What limits the verdict (`verdict.Reason`); None if there is nothing to say.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    outcome: Outcome | None = None
    truth: Truth | None = None
    score: Score | None = None
    subject: Mapping[str, Any] = field(default_factory=dict)
    points_sha256: str | None = None
    reason: Reason | None = None

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """The settings that were tried, in order."""
        return () if self.outcome is None else self.outcome.attempts

    @property
    def nulls(self) -> tuple[NullRun, ...]:
        """The attacks on null victims."""
        return () if self.outcome is None else self.outcome.nulls

    @property
    def best(self) -> Attempt | None:
        """The attempt on which the verdict rests."""
        return None if self.outcome is None else self.outcome.best

    @property
    def reconstruction(self) -> Reconstruction | None:
        """What the best attempt found."""
        return None if self.best is None else self.best.found

    @property
    def called(self) -> Bool[Tensor, " n"] | None:
        """Which of the points found are called recovered."""
        return None if self.outcome is None else self.outcome.called

    @property
    def levels(self) -> tuple[Level, ...]:
        """The level of each point found."""
        return () if self.best is None else self.best.levels

    @property
    def seconds(self) -> float:
        """Time spent on attacks."""
        return 0.0 if self.outcome is None else self.outcome.seconds

    @property
    def stopped(self) -> bool:
        """Whether a finding stopped the audit before any attack."""
        return self.outcome is None and not self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether the audit was interrupted before its end."""
        cut_short = self.outcome is not None and self.outcome.interrupted
        return cut_short or self.verdict is Verdict.INTERRUPTED

    @property
    def answer(self) -> str:
        """The verdict as a sentence, and that the audit was interrupted where it was."""
        said = ANSWERS[self.verdict]
        if self.verdict is Verdict.UNKNOWN and self.reason:
            seen = "; ".join(one.seen for one in self.hindrances)
            said = f"{said} {WHY[self.reason]}{f' Seen: {seen}.' if seen else ''}"
        if not self.interrupted or self.verdict is Verdict.INTERRUPTED:
            return said
        return f"{said} {CUT_SHORT}"

    @property
    def hindrances(self) -> tuple[Finding, ...]:
        """The findings for which the audit cannot tell."""
        if self.verdict is not Verdict.UNKNOWN or self.reason is None:
            return ()
        return tuple(one for one in self.findings if one.hinders == self.reason)

    def without_inputs(self) -> Audit:
        """The same with counts, errors and hashes only: without points, truth and whatever else
        could show an input."""
        if self.outcome is None:
            return replace(self, truth=None)
        best, bare = self.best, [_bare(attempt) for attempt in self.attempts]
        kept = None if best is None else bare[self.attempts.index(best)]
        return replace(
            self, outcome=replace(self.outcome, attempts=tuple(bare), best=kept), truth=None
        )

    def __repr__(self) -> str:
        found = self.reconstruction
        points = "no points" if found is None else f"{len(found.inputs)} points"
        return f"Audit({self.verdict.value!r}, {points}, {self.seconds:.0f} s)"

    def record(self) -> Record | None:
        """The record of the best attempt, to be written to files; None without points."""
        if self.best is None or self.best.found is None or not self.best.found.inputs.numel():
            return None
        setting = self.best.setting
        options = {"audit": setting.name, "n": setting.n, "seed": setting.seed}
        return record_of(self.best.found, setting.victim, attack=setting.attack, options=options)

    def right(self) -> tuple[int, int]:
        """How many training points were recovered, and how many called points are right, by truth.

        Both are counted up to sign where the signs of the points are not settled.
        """
        assert self.score is not None
        score, outcome, errors = self.score, self.outcome, self.errors()
        either = outcome is not None and outcome.up_to_sign
        closest = score.closest_up_to_sign if either else score.closest
        called = self.called
        right = 0 if called is None else int((called & (closest < RECOVERED)).sum())
        return int((errors < RECOVERED).sum()), right

    def errors(self) -> Float[Tensor, " n"]:
        """The error of each training input, by truth; up to sign where signs are not settled."""
        assert self.score is not None
        either = self.outcome is not None and self.outcome.up_to_sign
        return self.score.errors_up_to_sign if either else self.score.errors

    def points(self) -> list[dict[str, Any]]:
        """Confidence and level of each candidate, whether another random start has found it, and
        why it is not called recovered where something withholds it."""
        found = self.reconstruction
        if found is None or found.confidence is None or self.outcome is None:
            return []
        why: dict[int, list[str]] = {}
        for withheld in found.withheld:
            for point in withheld.points:
                why.setdefault(point, []).append(withheld.why)
        seen = self.outcome.confirmed
        return [
            {
                "confidence": sure,
                "level": level,
                "withheld": "; ".join(why[i]) if i in why else None,
                "confirmed": None if seen is None else bool(seen[i]),
            }
            for i, (sure, level) in enumerate(
                zip(found.confidence.tolist(), self.levels, strict=True)
            )
        ]

    def facts(self) -> dict[str, Any]:
        """The audit as JSON: the content of `audit.json`."""
        found, outcome, calls = self.reconstruction, self.outcome, self.called
        near = None if outcome is None else outcome.recognisable
        findings = [
            {**asdict(finding), "severity": finding.severity.name.lower()}
            for finding in self.findings
        ]
        facts: dict[str, Any] = {
            "schema": 2,
            "verdict": self.verdict.value,
            "answer": self.answer,
            "reason": self.reason,
            "interrupted": self.interrupted,
            "n": None if found is None else len(found.inputs),
            "recovered": None if calls is None else float(calls.double().mean()),
            "recognisable": None if near is None else float(near.double().mean()),
            "points": self.points(),
            "nulls": [asdict(run) for run in self.nulls],
            "false_alarm_test": outcome is not None and outcome.false_alarm_test,
            "findings": findings,
            "points_sha256": self.points_sha256,
            "seconds": self.seconds,
            "versions": versions(),
            **self.subject,
        }
        if outcome is None:
            return facts
        sure = None if found is None else found.confidence
        facts |= {
            "called": None if calls is None else calls.tolist(),
            "confidence": None if sure is None else sure.tolist(),
            "up_to_sign": outcome.up_to_sign,
            "signs_settled": None if found is None else found.signs_settled,
            "withheld": [] if found is None else [asdict(one) for one in found.withheld],
            "n_source": None if found is None else found.n_source,
            "n_clear": None if found is None else found.n_clear,
            "loss": None if found is None else finite(found.loss),
            "mismatch": None if found is None else found.mismatch,
            "null_points": outcome.null_points,
            "null_called": outcome.null_called,
            "likely": 0 if outcome.best is None else outcome.best.likely,
            "confirmed": None if outcome.confirmed is None else outcome.confirmed.tolist(),
            "attempts": [
                {
                    "setting": attempt.setting.name,
                    "n": None if attempt.found is None else len(attempt.found.inputs),
                    "called": attempt.called,
                    "loss": None if attempt.found is None else finite(attempt.found.loss),
                    "status": None if attempt.found is None else attempt.found.status.name.lower(),
                    "seconds": attempt.seconds,
                    "ended": attempt.ended,
                    "whole": attempt.whole,
                }
                for attempt in outcome.attempts
            ],
        }
        if self.score is not None:
            recovered, right = self.right()
            n, close = len(self.score.errors), int((self.errors() < NEAR).sum())
            share = {"recovered": recovered / n, "recognisable": close / n, "called_right": right}
            facts |= {**self.score.facts(), **share, "verdict": self.verdict.value}
        return facts


def _bare(attempt: Attempt) -> Attempt:
    """The attempt without anything from which an input could be seen."""
    if attempt.found is None:
        return attempt
    found = replace(
        attempt.found,
        inputs=attempt.found.inputs[:, :0],
        predictions=None,
        coefficients=None,
        trace=None,
    )
    return replace(attempt, found=found)
