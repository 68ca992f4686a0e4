"""`recollect audit`: two checkpoints and a question."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

from recollect.audit import ANSWERS, Audit, Verdict, caveats, judge_by_truth
from recollect.audit import audit as run_audit
from recollect.cli.common import (
    CountOrAuto,
    Device,
    Json,
    Seed,
    app,
    check_count,
    check_seed,
    checkpoints,
    network_options,
    score_json,
)
from recollect.console import Terminal
from recollect.errors import CheckpointError, DataError, OptionError
from recollect.files import check_writable, json_bytes, write_files
from recollect.history import history
from recollect.metrics import Score, evaluate
from recollect.reconstruct import choose_device
from recollect.records import FACTS, TENSORS, finite, read_reconstruction, versions, write_reconstruction
from recollect.truth import read_truth
from recollect.victim.validate import Finding, Severity, validate

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@app.command
def audit(
    *paths: Path,
    out: Path,
    n: CountOrAuto = "auto",
    truth: Path | None = None,
    budget: str = "10m",
    memory: str | None = None,
    model: str | None = None,
    input_shape: str | None = None,
    activation: str | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Ask whether training data can be read out of a model: validate, inspect, reconstruct, report.

    Example: recollect audit init.pt trained.pt --out audit

    Parameters
    ----------
    paths
        INIT TRAINED, the checkpoints before and after training; or RUN, a folder that `train` made.
    out
        Folder for report.html, audit.json and what was reconstructed.
    n
        How many training points there were, if you know; auto tries what the weights suggest.
    truth
        A .safetensors or .npz file that holds the training `inputs`, to score against. The attack never sees it.
    budget
        Time to spend, for instance 90s, 10m or 1h.
    memory
        Memory to stay within, for instance 8GB; by default all that the machine has. Kept by estimates, not enforced.
    model
        package.module:factory, a function that makes the torch module. By default a plain MLP is read off the shapes.
    input_shape
        Of one input to --model, for instance 3,32,32.
    activation
        The network's activation; by default what the checkpoint says, else relu.
    """
    from recollect.report import by_truth, render_audit

    terminal = Terminal(json=json)
    check_seed(seed)
    check_count(n)
    seconds, limit, where = _seconds(budget), None if memory is None else _bytes(memory), choose_device(device)
    init, trained = _pair(paths)
    check_writable(out)
    known = None if truth is None else read_truth(truth)
    options: dict[str, Any] = {"n": n, "budget": budget, "memory": memory, "seed": seed, "device": where.type}
    options |= {"model": model, "input_shape": input_shape, "activation": activation, "truth": truth and truth.name}
    subject = {"date": date.today().isoformat(), "files": _files(init, trained), "options": options}
    checked = validate(init, trained, **network_options(activation, model, input_shape))
    findings = checked.findings
    if unreadable := [finding for finding in findings if finding.severity is Severity.UNREADABLE]:
        raise CheckpointError("; and ".join(f"{finding.seen}; {finding.remedy}" for finding in unreadable))
    if checked.victim is None:
        _tell(terminal, findings)
        facts = {**_nothing(), "findings": _as_json(findings), **subject}
        _write(out, facts, render_audit(None, findings, Verdict.UNKNOWN, subject=subject))
        terminal.say(f"Verdict: {Verdict.UNKNOWN.value}. Mend what stops the audit and run it again.")
        terminal.answer({**facts, "out": str(out)})
        return 0
    victim = checked.victim
    if known is not None and known.inputs.shape[1] != victim.d:  # before time is spent
        raise DataError(
            f"expected true inputs of the network's {victim.d} dimensions in {truth}, got {known.inputs.shape[1]}; "
            "give the inputs this model was trained on"
        )
    past = history(victim)
    past = replace(past, findings=(*findings, *past.findings))  # an optimiser's state beside the weights is history too
    findings = (*past.findings, *caveats(victim))
    _tell(terminal, findings)
    done = run_audit(
        victim,
        None if n == "auto" else n,
        budget=seconds,
        memory=limit,
        past=past,
        seed=seed,
        device=where,
        progress=terminal.progress,
    )
    facts = {**_facts(done, findings), **subject}
    score: Score | None = None
    if done.best is not None and done.best.found is not None:
        setting = done.best.setting
        write_reconstruction(
            out, done.best.found, setting.victim, {"audit": setting.name, "n": setting.n, "seed": setting.seed}
        )
        if known is not None:
            score = evaluate(done.best.found, known.inputs)
            facts |= _scored(score, *by_truth(done, score), up_to_sign=done.up_to_sign)
    verdict = Verdict(facts["verdict"])
    record = None if done.best is None or done.best.found is None else read_reconstruction(out)
    _write(out, facts, render_audit(done, findings, verdict, record, known, score, subject))
    for attempt in done.attempts:
        called = f"{_points(attempt.recovered)} called, {attempt.seconds:.0f} s"
        terminal.say(f"· {attempt.setting.name}: {attempt.ended if attempt.found is None else called}")
    if done.nulls:
        terminal.say(f"· null victims: {done.null_called} of {_points(done.null_points)} called")
    terminal.say(f"Verdict: {verdict.value}. {ANSWERS[verdict]}")
    terminal.say(f"Open {out / 'report.html'}.")
    terminal.answer({**facts, "out": str(out)})
    return 0


def _files(*paths: Path | None) -> list[dict[str, str]]:
    """The checkpoints' names and fingerprints, so that a report can be tied to what it speaks of."""
    found = []
    for path in paths:
        if path is not None and path.is_file():
            with path.open("rb") as stream:
                found.append({"name": path.name, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()})
    return found


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _write(out: Path, facts: Mapping[str, Any], page: str) -> None:
    if facts["n"] is None:  # an earlier audit's points are not this one's
        for name in (TENSORS, FACTS):
            (out / name).unlink(missing_ok=True)
    write_files({out / "audit.json": json_bytes(facts), out / "report.html": page.encode(errors="replace")})


def _pair(paths: tuple[Path, ...]) -> tuple[Path | None, Path]:
    """θ0 and θf; one file alone is θf, and the report says what that means."""
    given = checkpoints(paths)
    if len(given) == 1:
        return None, given[0]
    if len(given) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(f"expected two checkpoints INIT TRAINED, or a folder with both, got {got}; give one of those")
    return given[0], given[1]


def _bytes(memory: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)b?", memory.strip().lower())
    if not found or not float(found[1]) > 0:
        raise OptionError(f"expected --memory like 500MB or 8GB, got {memory!r}; give a size")
    return int(float(found[1]) * 1000 ** "_kmgt".index(found[2] or "_"))


def _seconds(budget: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", budget.strip())
    if not found or not float(found[1]) > 0:
        raise OptionError(f"expected --budget like 90s, 10m or 1h, got {budget!r}; give a time")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _tell(terminal: Terminal, findings: tuple[Finding, ...]) -> None:
    for finding in findings:
        terminal.say(f"· {'stops the audit: ' if finding.severity is Severity.STOPS else ''}{finding}")


def _as_json(findings: tuple[Finding, ...]) -> list[dict[str, str]]:
    return [{**asdict(finding), "severity": finding.severity.name.lower()} for finding in findings]


def _nothing() -> dict[str, Any]:
    return {"verdict": Verdict.UNKNOWN.value, "n": None, "recovered": None}


def _facts(done: Audit, findings: tuple[Finding, ...]) -> dict[str, Any]:
    found = None if done.best is None else done.best.found
    calls = done.called
    return {
        "verdict": done.verdict.value,
        "n": None if found is None else len(found.inputs),
        "recovered": None if calls is None else float(calls.double().mean()),
        "called": None if calls is None else calls.tolist(),
        "confidence": None if found is None or found.confidence is None else found.confidence.tolist(),
        "up_to_sign": done.up_to_sign,
        "loss": None if found is None else finite(found.loss),
        "null_points": done.null_points,
        "null_called": done.null_called,
        "likely": 0 if done.best is None else done.best.likely,
        "findings": _as_json(findings),
        "attempts": [
            {
                "setting": attempt.setting.name,
                "n": None if attempt.found is None else len(attempt.found.inputs),
                "called": attempt.recovered,
                "loss": None if attempt.found is None else finite(attempt.found.loss),
                "seconds": attempt.seconds,
                "ended": attempt.ended,
            }
            for attempt in done.attempts
        ],
        "nulls": [asdict(run) for run in done.nulls],
        "seconds": done.seconds,
        "versions": versions(),
    }


def _scored(score: Score, recovered: int, right: int, *, up_to_sign: bool) -> dict[str, Any]:
    """What the truth says counts for more than what the weights can tell; up to sign where those cannot tell it."""
    n = len(score.errors)
    chance = score.chance["span_up_to_sign_recovered" if up_to_sign else "span_recovered"]
    verdict = judge_by_truth(recovered, n, chance * n)
    return {**score_json(score), "recovered": recovered / n, "called_right": right, "verdict": verdict.value}
