"""`recollect inspect`: what two checkpoints tell before any time is spent on an attack."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from recollect.auditing.options import AuditOptions
from recollect.cli.common import (
    Flatten,
    Json,
    announce_svd,
    app,
    duration,
    load_victim,
    network_options,
)
from recollect.cli.console import Terminal
from recollect.cli.flags import flags, given
from recollect.options import build, schema
from recollect.victim.options import NetworkOptions

_SPENDING = {name: one for name, one in schema(AuditOptions).items() if name in ("n", "device")}
Flags = flags("Flags", _SPENDING, NetworkOptions)


@app.command
def inspect(
    *paths: Path,
    flags: Annotated[Flags, Flatten] = Flags(),  # type: ignore[valid-type]
    json: Json = False,
) -> int:
    """Look at two checkpoints before spending anything: what moved, the rank of ΔW1, equations,
    time and memory.

    Example: recollect inspect run     or: recollect inspect init.safetensors trained.safetensors

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    """
    from recollect.auditing.forecast import outlook
    from recollect.examine.history import undecayed
    from recollect.examine.inspection import inspect as inspect_victim
    from recollect.records import finite
    from recollect.system.device import Machine, choose_device, readable_bytes

    terminal = Terminal(json=json)
    options: AuditOptions = build(AuditOptions, given(flags, only=_SPENDING))
    where = choose_device(options.device)
    network = network_options(given(flags, only=NetworkOptions))
    victim = load_victim(paths, network)
    announce_svd(terminal, victim)
    looked = inspect_victim(victim, n=options.n, optimizer=network.optimizer)
    past = looked.past
    victim = undecayed(victim, past.decay) if past.decay else victim
    settings = outlook(
        victim, looked, looked.rank if options.n is None else options.n, Machine.measured(where)
    )
    values = None if looked.spectrum is None else looked.spectrum.singular_values.tolist()
    rows: dict[str, object] = {
        "victim": looked.description,
        "rank": looked.rank if values else f"{looked.rank} (all of d: no subspace)",
    }
    rows |= {
        f"moved: {name}": f"{share:.2%} of its norm" if math.isfinite(share) else "from zero"
        for name, share in looked.moved.items()
    }
    for counting in looked.counting:
        rows[f"--parameters {counting.parameters}"] = (
            f"{counting.equations} equations; {counting.equations_effective} of them remain for "
            f"the {counting.coordinates} coordinates of {counting.n} points; at most "
            f"{counting.most_points} points by counting (necessary, not sufficient)"
        )
        rows[f"  n: equations per coordinate ({counting.parameters})"] = ", ".join(
            f"{number}: {equations / max(1, coordinates):.3g}"
            for number, equations, coordinates in counting.by_n
        )
    for one in settings:
        rows[f"expected for n = {one.n}, {one.parameters}"] = (
            f"about {duration(one.seconds)} and {readable_bytes(one.bytes)} on this machine"
            + (f"; not worth trying: {one.against}" if one.against else "")
        )
    terminal.table(rows)
    for finding in past.findings:
        terminal.say(f"· {finding}")
    for sentence in looked.expectations:
        terminal.say(f"· {sentence}")
    answer: dict[str, Any] = {
        "victim": looked.description,
        "rank": looked.rank,
        "gap": None if looked.spectrum is None else finite(looked.spectrum.gap),
        "gap_found": None if looked.spectrum is None else looked.spectrum.found,
        "singular_values": values,
        "moved": {name: finite(share) for name, share in looked.moved.items()},
        "fits": past.fits,
        "weight_decay": past.decay,
        "findings": [
            {**asdict(finding), "severity": finding.severity.name.lower()}
            for finding in past.findings
        ],
        "counting": [asdict(one) for one in looked.counting],
        "settings": [{**asdict(one), "worth_trying": not one.against} for one in settings],
        "norms_identifiable": looked.norms_identifiable,
        "signs": looked.signs.value,
        "expectations": list(looked.expectations),
    }
    terminal.answer(answer)
    return 0
