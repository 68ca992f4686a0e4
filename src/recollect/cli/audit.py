"""`recollect audit`: can training data be read out of two checkpoints?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from recollect.auditing.options import GateOptions, failures_of
from recollect.cli.common import Flatten, Json, app, build_model, checkpoints, network_options
from recollect.cli.console import Terminal
from recollect.cli.flags import flags, given
from recollect.cli.outputs import keep_inputs, keep_results_of_others
from recollect.errors import InputError, OptionError
from recollect.options import build, words
from recollect.victim.options import NetworkOptions

if TYPE_CHECKING:
    from recollect.auditing.result import Audit
    from recollect.examine.findings import Finding

Flags = flags("Flags", GateOptions, NetworkOptions)


@app.command
def audit(
    *paths: Path,
    out: Path,
    truth: Path | None = None,
    flags: Annotated[Flags, Flatten] = Flags(),  # type: ignore[valid-type]
    json: Json = False,
) -> int:
    """Ask whether training data can be read out of a model: validate, inspect, reconstruct, report.

    Exit code: 3 for a verdict that --fail-on names, 2 where the audit could not run at all, else 0.

    Example: recollect audit init.pt trained.pt --out audit

    Parameters
    ----------
    paths
        INIT TRAINED, the checkpoints before and after training; or RUN, a folder that `train` made.
    out
        Folder for report.html, audit.json and what was reconstructed.
    truth
        A .safetensors or .npz file that holds the training `inputs`, to score against. The attack
        never sees it.
    """
    from recollect.auditing.call import could_not_run, interrupted, prepare, subject_of
    from recollect.auditing.verdict import caveats
    from recollect.examine.findings import Severity
    from recollect.records import FACTS, TENSORS
    from recollect.system.device import choose_device
    from recollect.system.files import check_writable
    from recollect.system.signals import postponed

    terminal = Terminal(json=json)
    options: GateOptions = build(GateOptions, given(flags, only=GateOptions))
    network = network_options(given(flags, only=NetworkOptions))
    where = choose_device(options.device)
    init, trained = _pair(paths)
    keep_inputs(
        [init, trained, truth],
        [out / name for name in ("report.html", "audit.json", TENSORS, FACTS)],
    )
    keep_results_of_others(out)
    check_writable(out)
    said: dict[str, Any] = {**words(network), "truth": truth and truth.name}
    said["fail_on"] = options.fail_on
    told: list[object] = []

    def tell(findings: Iterable[Finding]) -> None:
        for finding in findings:
            if finding not in told:
                stops = "stops the audit: " if finding.severity is Severity.STOPS else ""
                terminal.say(f"· {stops}{finding}")
                told.append(finding)

    error: InputError | None = None
    done: Audit
    try:
        begun = prepare(
            init,
            trained,
            truth=truth,
            activation=network.activation,
            model=build_model(network.model),
            input_shape=network.shape,
            optimizer=network.optimizer,
            options=said,
        )
    except InputError as problem:
        error, done = problem, could_not_run(str(problem), subject_of(init, trained, said))
    except SystemExit as stop:  # raised by the model's own code
        error = OptionError(
            f"expected {network.model} to return, got SystemExit({stop.code}); take it out of the "
            "model's code"
        )
        done = could_not_run(str(error), subject_of(init, trained, said))
    except KeyboardInterrupt:
        done = interrupted((), subject_of(init, trained, said))
    else:
        tell((*begun.findings, *(() if begun.victim is None else caveats(begun.victim))))
        done = begun.run(
            n=options.n,
            budget=options.budget,
            memory=options.memory,
            seed=options.seed,
            device=where,
            no_inputs=options.no_inputs,
            progress=terminal.progress,
        )
    with postponed():  # a signal waits until the report of what was found is written
        facts = done.facts()
        # An earlier audit says more than that this one was interrupted before it found anything.
        kept = done.interrupted and done.reconstruction is None and (out / "audit.json").exists()
        if not kept:
            _write(out, facts, done)
    if kept:
        terminal.say(f"Nothing was found until then: {out} keeps the earlier audit.")
        terminal.answer({**facts, "out": str(out)})
        raise KeyboardInterrupt("interrupted before anything was found")
    if error is not None:
        terminal.answer({**facts, "out": str(out)})
        raise error
    tell(done.findings)
    if done.stopped:
        terminal.say(f"Verdict: {done.verdict.value}. Mend what stops the audit and run it again.")
    else:
        for attempt in done.attempts:
            called = f"{_points(attempt.called)} called, {attempt.seconds:.0f} s"
            result = attempt.ended if attempt.found is None else called
            terminal.say(f"· {attempt.setting.name}: {result}")
        if facts["false_alarm_test"]:
            null_points = _points(facts["null_points"])
            terminal.say(f"· null victims: {facts['null_called']} of {null_points} called")
        elif done.reconstruction is not None:
            terminal.say("· no false-alarm test: no attack on a null victim ran to its end")
        terminal.say(f"Verdict: {done.verdict.value}. {done.answer}")
        terminal.say(f"Open {out / 'report.html'}.")
    terminal.answer({**facts, "out": str(out)})
    if done.interrupted:
        raise KeyboardInterrupt(f"interrupted; what was tried until then is in {out}")
    if done.stopped:
        return 2
    return 3 if done.verdict.value in failures_of(options.fail_on) else 0


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _write(out: Path, facts: Mapping[str, Any], done: Audit) -> None:
    """Write what the audit leaves. Points of an earlier audit do not remain beside it."""
    from recollect.records import FACTS, TENSORS, record_files
    from recollect.report.audit import render_audit
    from recollect.report.html import shows_private_data
    from recollect.system.files import json_bytes, write_files

    page, record, points = render_audit(done), done.record(), out / TENSORS
    files = {out / "audit.json": json_bytes(facts)}
    files[out / "report.html"] = page.encode(errors="replace")
    private = [points, *([out / "report.html"] if shows_private_data(page) else [])]
    if record is not None:
        found, _ = record_files(out, record)
        files |= {out / FACTS: found[out / FACTS], points: found[points]}
    write_files(files, private=private)
    if record is None:
        for path in (points, out / FACTS):
            path.unlink(missing_ok=True)


def _pair(paths: tuple[Path, ...]) -> tuple[Path | None, Path]:
    """θ0 and θf. A single file is taken as θf, and the report says what that means."""
    found = checkpoints(paths)
    if len(found) == 1:
        return None, found[0]
    if len(found) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(
            f"expected two checkpoints INIT TRAINED, or a folder with both, got {got}; give one of "
            "those"
        )
    return found[0], found[1]
