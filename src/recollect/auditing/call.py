"""A whole audit as one call: validate, read the history, attack, compare with null victims, judge,
score.

The attacks never see the truth: `run_audit` does not get it, and points are scored only afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect.attacks.result import Reconstruction
from recollect.auditing.options import bytes_of, seconds_of
from recollect.auditing.run import Attempt, NullRun, Outcome, run_audit
from recollect.auditing.verdict import ANSWERS, CUT_SHORT, Verdict, caveats, judge_by_truth
from recollect.errors import CheckpointError, DataError, OptionError, RecollectError, one_line
from recollect.examine.findings import Finding, Severity
from recollect.examine.history import history
from recollect.examine.validate import stop, validate
from recollect.records import Record, file_hash, finite, record_of, versions
from recollect.shapes import Bool, Tensor
from recollect.system.device import choose_device
from recollect.system.progress import Progress, quiet
from recollect.truth.files import Truth, as_truth, check_run
from recollect.truth.metrics import RECOVERED, Score, evaluate
from recollect.victim.mlp import MLP
from recollect.victim.options import NetworkOptions
from recollect.victim.read.checkpoint import Source
from recollect.victim.victim import Victim


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
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    outcome: Outcome | None = None
    truth: Truth | None = None
    score: Score | None = None
    subject: Mapping[str, Any] = field(default_factory=dict)
    points_sha256: str | None = None

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
        if not self.interrupted or self.verdict is Verdict.INTERRUPTED:
            return said
        return f"{said} {CUT_SHORT}"

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
        score, outcome = self.score, self.outcome
        either = outcome is not None and outcome.up_to_sign
        errors = score.errors_up_to_sign if either else score.errors
        closest = score.closest_up_to_sign if either else score.closest
        called = self.called
        right = 0 if called is None else int((called & (closest < RECOVERED)).sum())
        return int((errors < RECOVERED).sum()), right

    def facts(self) -> dict[str, Any]:
        """The audit as JSON: the content of `audit.json`."""
        found, outcome, calls = self.reconstruction, self.outcome, self.called
        findings = [
            {**asdict(finding), "severity": finding.severity.name.lower()}
            for finding in self.findings
        ]
        facts: dict[str, Any] = {
            "schema": 2,
            "verdict": self.verdict.value,
            "answer": self.answer,
            "interrupted": self.interrupted,
            "n": None if found is None else len(found.inputs),
            "recovered": None if calls is None else float(calls.double().mean()),
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
            "null_points": outcome.null_points,
            "null_called": outcome.null_called,
            "likely": 0 if outcome.best is None else outcome.best.likely,
            "attempts": [
                {
                    "setting": attempt.setting.name,
                    "n": None if attempt.found is None else len(attempt.found.inputs),
                    "called": attempt.called,
                    "loss": None if attempt.found is None else finite(attempt.found.loss),
                    "status": None if attempt.found is None else attempt.found.status.name.lower(),
                    "seconds": attempt.seconds,
                    "ended": attempt.ended,
                }
                for attempt in outcome.attempts
            ],
            "nulls": [asdict(run) for run in outcome.nulls],
        }
        if self.score is not None:
            recovered, right = self.right()
            share = {"recovered": recovered / len(self.score.errors), "called_right": right}
            facts |= {**self.score.facts(), **share, "verdict": self.verdict.value}
        return facts


def audit(
    init: Source | None,
    trained: Source,
    *,
    truth: Tensor | str | Path | Any | None = None,
    n: int | None = None,
    budget: str | float = "10m",
    memory: str | int | None = None,
    seed: int = 0,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
    optimizer: str | None = None,
    device: torch.device | str = "auto",
    no_inputs: bool = False,
    progress: Progress = quiet,
) -> Audit:
    """Ask whether training data can be read out of your own model.

    Parameters
    ----------
    init, trained
        The weights before and after training: files, state dicts, or modules. `init` None: not
        known.
    truth
        The training inputs, n×d, to score against: a tensor, an array, or a file. The attacks never
        see them.
    n
        How many training points there were. None: the numbers that the weights suggest are tried.
    budget
        Time to spend: seconds, or text like "90s", "10m", "1h".
    memory
        Memory to stay within: bytes, or text like "8GB". None: all that the machine has.
    seed
        Seed of all random numbers.
    activation
        The network's activation. None: the one that the file names; if it names none, ReLU is
        assumed, and others are tried.
    model
        The torch module whose weights these are. None: a plain MLP, inferred from the shapes.
    input_shape
        The shape of one input to `model`.
    optimizer
        The optimiser of the training: `sgd` (also with momentum), `adam`, `adamw`, `rmsprop`,
        `adagrad` or `sign`. None: not known, and traces of one that rescales entries are looked
        for.
    device
        `auto`, `cpu`, `cuda` or a torch device.
    no_inputs
        Whether to return counts, errors and hashes only, without the points and the truth.
    progress
        Called to report how far the audit is.

    Returns
    -------
    Audit
        `verdict`, `findings`, `attempts`, `nulls`, `reconstruction`, `score`, `seconds`. "Not
        exposed within budget" is no proof of safety: it says only that these attacks found nothing
        in this time. Ctrl-C ends an audit with what it has found until then (`interrupted`).
    """
    begun = prepare(
        init,
        trained,
        truth=truth,
        activation=activation,
        model=model,
        input_shape=input_shape,
        optimizer=optimizer,
    )
    return begun.run(
        n=n,
        budget=budget,
        memory=memory,
        seed=seed,
        device=device,
        no_inputs=no_inputs,
        progress=progress,
    )


@dataclass(frozen=True)
class Prepared:
    """An audit before its attacks. The files have been read, and all findings in them are known."""

    victim: Victim | None
    """None where a finding stops the audit."""
    findings: tuple[Finding, ...]
    truth: Truth | None
    subject: Mapping[str, Any]
    optimizer: str | None = None
    """The optimiser of the training, where the user names it."""

    def run(
        self,
        *,
        n: int | None,
        budget: str | float,
        memory: str | int | None,
        seed: int,
        device: torch.device | str,
        no_inputs: bool,
        progress: Progress,
    ) -> Audit:
        """Run the attacks, reach the verdict, and score the points if the truth is known.

        Where the model turns out to be one that cannot be attacked, a finding says why.
        """
        seconds, limit, where = seconds_of(budget), bytes_of(memory), choose_device(device)
        options = {"n": "auto" if n is None else n, "budget": budget, "memory": memory}
        options |= {"seed": seed, "device": where.type, "no_inputs": no_inputs}
        given = dict(self.subject.get("options", {}))
        begun = replace(self, subject={**self.subject, "options": {**given, **options}})
        try:
            done = begun._audit(n, seconds, limit, seed, where, progress)
        except KeyboardInterrupt:
            done = Audit(Verdict.INTERRUPTED, self.findings, subject=begun.subject)
        except OptionError:
            raise
        except Exception as error:
            unknown = self.victim is None or isinstance(self.victim.network, MLP)
            if unknown and not isinstance(error, RecollectError):
                raise
            said = str(error) if isinstance(error, RecollectError) else one_line(error)
            done = could_not_run(said, begun.subject, self.findings)
        if done.reconstruction is not None:
            points = done.reconstruction.inputs.cpu().double().contiguous().numpy().tobytes()
            done = replace(done, points_sha256=hashlib.sha256(points).hexdigest())
        return done.without_inputs() if no_inputs else done

    def _audit(
        self,
        n: int | None,
        budget: float,
        memory: int | None,
        seed: int,
        device: torch.device,
        progress: Progress,
    ) -> Audit:
        subject = self.subject
        if self.victim is None:
            return Audit(Verdict.UNKNOWN, self.findings, truth=self.truth, subject=subject)
        past = history(self.victim, optimizer=self.optimizer)
        # What was found in the files, such as an optimiser's state, belongs to the history too.
        past = replace(past, findings=(*self.findings, *past.findings))
        outcome = run_audit(
            self.victim,
            n,
            budget=budget,
            memory=memory,
            past=past,
            seed=seed,
            device=device,
            progress=progress,
        )
        findings = (*past.findings, *caveats(self.victim))
        done = Audit(outcome.verdict, findings, outcome, self.truth, subject=subject)
        if self.truth is None or done.reconstruction is None:
            return done
        try:
            done = replace(done, score=evaluate(done.reconstruction, self.truth.inputs))
        except KeyboardInterrupt:
            return replace(done, outcome=replace(outcome, interrupted=True))
        return replace(done, verdict=_verdict_by_truth(done))


def prepare(
    init: Source | None,
    trained: Source,
    *,
    truth: Any | None = None,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
    optimizer: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """Read the files and collect all findings in them. A file that cannot be read is an error."""
    NetworkOptions(optimizer=optimizer)  # checks the name
    known = None if truth is None else as_truth(truth)
    subject = subject_of(init, trained, options or {})
    checked = validate(init, trained, activation=activation, model=model, input_shape=input_shape)
    unreadable = [one for one in checked.findings if one.severity is Severity.UNREADABLE]
    if unreadable:
        raise CheckpointError("; and ".join(f"{one.seen}; {one.remedy}" for one in unreadable))
    victim = checked.victim
    if victim is not None and known is not None and known.inputs.shape[1] != victim.d:
        raise DataError(
            f"expected true inputs of the network's {victim.d} dimensions, got "
            f"{known.inputs.shape[1]}; give the "
            "inputs this model was trained on"
        )
    if victim is not None and known is not None:
        check_run(known, victim.run)
    return Prepared(victim, checked.findings, known, subject, optimizer)


def subject_of(
    init: Source | None, trained: Source | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """What is audited: the date, the files with their hashes, and the options."""
    files = [
        {"name": Path(source).name, "sha256": file_hash(Path(source))}
        for source in (init, trained)
        if isinstance(source, str | Path) and Path(source).is_file()
    ]
    return {"date": date.today().isoformat(), "files": files, "options": dict(options)}


def could_not_run(
    why: str, subject: Mapping[str, Any], findings: tuple[Finding, ...] = ()
) -> Audit:
    """An audit that could not run at all. `why` ends with what to do about it, after a semicolon,
    as the messages of errors do."""
    return Audit(Verdict.UNKNOWN, (*findings, stop(why)), subject=subject)


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


def _verdict_by_truth(done: Audit) -> Verdict:
    """The verdict by the truth, which replaces the verdict by the weights. Points are compared up
    to sign where the weights do not settle signs."""
    assert done.score is not None
    assert done.outcome is not None
    score, n = done.score, len(done.score.errors)
    either = done.outcome.up_to_sign
    chance = score.chance["span_up_to_sign_recovered" if either else "span_recovered"]
    verdict = judge_by_truth(done.right()[0], n, chance * n)
    unfinished = verdict is Verdict.NOT_FOUND and done.interrupted
    return Verdict.INTERRUPTED if unfinished else verdict
