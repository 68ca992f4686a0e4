"""A whole audit as one call: validate, read the history, attack, compare with null victims, judge,
score.

The attacks never see the truth: `run_audit` does not get it, and points are scored only afterwards.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect.auditing.attempt import Outcome
from recollect.auditing.options import bytes_of, seconds_of
from recollect.auditing.result import Audit
from recollect.auditing.run import run_audit
from recollect.auditing.settings import unseen_number
from recollect.auditing.verdict import Reason, Verdict, caveats, judge_by_truth
from recollect.errors import CheckpointError, DataError, OptionError, RecollectError, one_line
from recollect.examine.findings import Finding, Severity
from recollect.examine.history import History, history
from recollect.examine.validate import stop, validate
from recollect.records import file_hash
from recollect.shapes import Tensor
from recollect.system.device import choose_device
from recollect.system.progress import Progress, quiet
from recollect.truth.files import Truth, as_truth, check_run
from recollect.truth.metrics import evaluate
from recollect.victim.mlp import MLP
from recollect.victim.options import NetworkOptions
from recollect.victim.read.checkpoint import Source
from recollect.victim.victim import Victim


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
        `verdict`, `reason`, `findings`, `attempts`, `nulls`, `reconstruction`, `score`, `seconds`.
        "Not exposed within budget" is no proof of safety: it says only that these attacks found
        nothing in this time. Ctrl-C ends an audit with what it has found until then
        (`interrupted`).
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
            done = interrupted(self.findings, begun.subject)
        except OptionError:
            raise
        except (Exception, SystemExit) as error:  # a module may call sys.exit
            unknown = self.victim is None or isinstance(self.victim.network, MLP)
            if unknown and not isinstance(error, RecollectError):
                raise
            said = str(error) if isinstance(error, RecollectError) else one_line(error)
            done = could_not_run(said, begun.subject, self.findings, layer=not unknown)
        try:
            return _delivered(done, no_inputs)
        except KeyboardInterrupt:  # this takes little time, and without it all would be lost
            cut = None if done.outcome is None else replace(done.outcome, interrupted=True)
            return _delivered(replace(done, outcome=cut), no_inputs)

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
            return stopped(self.findings, subject, self.truth)
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
        try:
            return self._finished(outcome, past, subject, n)
        except KeyboardInterrupt:
            return self._finished(replace(outcome, interrupted=True), past, subject, n)

    def _finished(
        self, outcome: Outcome, past: History, subject: Mapping[str, Any], n: int | None
    ) -> Audit:
        """What the attacks found, with what limits it, and scored if the truth is known."""
        assert self.victim is not None
        unseen = unseen_number(outcome.inspection, n)
        findings = (*past.findings, *caveats(self.victim), *unseen)
        done = Audit(
            outcome.verdict, findings, outcome, self.truth, subject=subject, reason=outcome.reason
        )
        if self.truth is None or done.reconstruction is None:
            return done
        try:
            done = replace(done, score=evaluate(done.reconstruction, self.truth.inputs))
        except KeyboardInterrupt:
            return replace(done, outcome=replace(outcome, interrupted=True), reason="interrupted")
        return _by_truth(done)


def _delivered(done: Audit, no_inputs: bool) -> Audit:
    """The audit with the hash of its points, and without the points if they are not wanted."""
    if done.reconstruction is not None:
        points = done.reconstruction.inputs.cpu().double().contiguous().numpy().tobytes()
        done = replace(done, points_sha256=hashlib.sha256(points).hexdigest())
    return done.without_inputs() if no_inputs else done


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
    why: str,
    subject: Mapping[str, Any],
    findings: tuple[Finding, ...] = (),
    *,
    layer: bool = False,
) -> Audit:
    """An audit that could not run at all. `why` ends with what to do about it, after a semicolon,
    as the messages of errors do. `layer`: whether a layer of a module is the reason."""
    last = stop(why)
    last = replace(last, code="module-cannot-be-attacked", reason="layer") if layer else last
    return stopped((*findings, last), subject)


def stopped(
    findings: tuple[Finding, ...], subject: Mapping[str, Any], truth: Truth | None = None
) -> Audit:
    """An audit that a finding stopped before any attack."""
    reasons = (one.reason for one in findings if one.severity is not Severity.LIMITS)
    reason: Reason = next((reason for reason in reasons if reason), "no-evidence")
    return Audit(Verdict.UNKNOWN, findings, truth=truth, subject=subject, reason=reason)


def interrupted(findings: tuple[Finding, ...], subject: Mapping[str, Any]) -> Audit:
    """An audit that was interrupted before any attack."""
    return Audit(Verdict.INTERRUPTED, findings, subject=subject, reason="interrupted")


def _by_truth(done: Audit) -> Audit:
    """The audit with the verdict by the truth. Points are compared up to sign where the weights do
    not settle signs."""
    assert done.score is not None
    assert done.outcome is not None
    score, n = done.score, len(done.score.errors)
    either = done.outcome.up_to_sign
    chance = score.chance["span_up_to_sign_recovered" if either else "span_recovered"]
    verdict = judge_by_truth(done.right()[0], n, chance * n, done.verdict)
    settled = verdict in (Verdict.EXPOSED, Verdict.PARTLY) and not done.interrupted
    return replace(done, verdict=verdict, reason=None if settled else done.reason)
