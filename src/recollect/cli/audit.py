"""`recollect audit`: can training data be read out of two checkpoints?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from recollect.auditing.options import AuditOptions
from recollect.cli.common import Flatten, Json, app, build_model, checkpoints, network_options
from recollect.cli.console import Terminal
from recollect.cli.flags import flags, given
from recollect.errors import OptionError
from recollect.options import build, words
from recollect.victim.options import NetworkOptions

Flags = flags("Flags", AuditOptions, NetworkOptions)


@app.command
def audit(
    *paths: Path,
    out: Path,
    truth: Path | None = None,
    flags: Annotated[Flags, Flatten] = Flags(),  # type: ignore[valid-type]
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
    truth
        A .safetensors or .npz file that holds the training `inputs`, to score against. The attack
        never sees it.
    """
    from recollect.auditing.call import prepare
    from recollect.auditing.verdict import caveats
    from recollect.examine.findings import Severity
    from recollect.report.audit import render_audit
    from recollect.system.device import choose_device
    from recollect.system.files import check_writable

    terminal = Terminal(json=json)
    options: AuditOptions = build(AuditOptions, given(flags, only=AuditOptions))
    network = network_options(given(flags, only=NetworkOptions))
    where = choose_device(options.device)
    init, trained = _pair(paths)
    check_writable(out)
    said: dict[str, Any] = {**words(network), "truth": truth and truth.name}
    begun = prepare(
        init,
        trained,
        truth=truth,
        activation=network.activation,
        model=build_model(network.model),
        input_shape=network.shape,
        options=said,
    )
    for finding in begun.findings:
        stops = "stops the audit: " if finding.severity is Severity.STOPS else ""
        terminal.say(f"· {stops}{finding}")
    for finding in () if begun.victim is None else caveats(begun.victim):
        terminal.say(f"· {finding}")
    done = begun.run(
        n=options.n,
        budget=options.budget,
        memory=options.memory,
        seed=options.seed,
        device=where,
        progress=terminal.progress,
    )
    for finding in done.findings:
        if finding not in begun.findings and (
            begun.victim is None or finding not in caveats(begun.victim)
        ):
            terminal.say(f"· {finding}")
    facts = done.facts()
    _write(out, facts, render_audit(done), done.record())
    if done.stopped:
        terminal.say(f"Verdict: {done.verdict.value}. Mend what stops the audit and run it again.")
    else:
        for attempt in done.attempts:
            called = f"{_points(attempt.called)} called, {attempt.seconds:.0f} s"
            result = attempt.ended if attempt.found is None else called
            terminal.say(f"· {attempt.setting.name}: {result}")
        if done.nulls:
            null_points = _points(facts["null_points"])
            terminal.say(f"· null victims: {facts['null_called']} of {null_points} called")
        terminal.say(f"Verdict: {done.verdict.value}. {done.answer}")
        terminal.say(f"Open {out / 'report.html'}.")
    terminal.answer({**facts, "out": str(out)})
    return 0


def _points(count: int) -> str:
    return "1 point" if count == 1 else f"{count} points"


def _write(out: Path, facts: Mapping[str, Any], page: str, record: Any) -> None:
    from recollect.records import FACTS, TENSORS, write_record
    from recollect.system.files import json_bytes, write_files

    if record is None:  # The points of an earlier audit must not remain.
        for name in (TENSORS, FACTS):
            (out / name).unlink(missing_ok=True)
    else:
        write_record(out, record)
    write_files(
        {out / "audit.json": json_bytes(facts), out / "report.html": page.encode(errors="replace")}
    )


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
