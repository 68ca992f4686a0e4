"""`recollect evaluate` and `recollect report`, which compare a reconstruction with the truth."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from recollect.cli.common import Json, app
from recollect.cli.console import Terminal
from recollect.cli.outputs import keep_inputs
from recollect.errors import OptionError

Folder = Annotated[Path, Parameter(help="Folder that `reconstruct` wrote.")]
TruthFile = Annotated[Path, Parameter(help="A .safetensors or .npz file that holds `inputs`.")]


@app.command
def evaluate(folder: Folder, *, truth: TruthFile, json: Json = False) -> int:
    """Score a reconstruction against the true inputs.

    Example: recollect evaluate run/found --truth run/truth.safetensors
    """
    from recollect.records import read_record
    from recollect.truth.files import check_run, read_truth
    from recollect.truth.metrics import evaluate as score_of

    terminal = Terminal(json=json)
    record, known = read_record(folder), read_truth(truth)
    check_run(known, record.run)
    score = score_of(record, known.inputs)
    chance = score.chance
    median, worst = float(score.errors.median()), float(score.errors.max())

    def level(name: str) -> str:
        return f"{chance[name]:.3f}   (up to sign {chance[f'{name}_up_to_sign']:.3f})"

    terminal.table(
        {
            "ρ": f"{score.rho:.4f}   (missed {score.missed}, spurious {score.spurious})",
            "median": f"{score.median:.4f}",
            "ρ up to sign": f"{score.rho_up_to_sign:.4f}",
            "ρ to the closest": f"{score.rho_closest:.4f}",
            "errors": f"median {median:.4f}, worst {worst:.4f}",
            "recovered": f"{score.recovered:.0%} of the points, with an error below 0.1",
            "chance, sphere": level("sphere"),
            "chance, span of the data": level("span"),
            "other true points": f"{chance['other_points']:.3f}"
            if "other_points" in chance
            else "–",
        }
    )
    terminal.answer(score.facts())
    return 0


@app.command
def report(folder: Folder, *, truth: TruthFile | None = None, json: Json = False) -> int:
    """Write DIR/report.html: one self-contained page, with the truth beside the reconstruction
    where it is given.

    Example: recollect report run/found --truth run/truth.safetensors
    """
    from recollect.records import FACTS, TENSORS, read_record
    from recollect.report.html import render, summary, write_page
    from recollect.truth.files import check_run, read_truth
    from recollect.truth.metrics import evaluate as score_of

    terminal = Terminal(json=json)
    if (folder / "audit.json").exists():
        raise OptionError(
            f"expected a folder that `reconstruct` made, got that of an audit, {folder}, whose "
            "report this would "
            "replace; open its report.html"
        )
    path = folder / "report.html"
    keep_inputs([truth, folder / TENSORS, folder / FACTS], [path])
    record = read_record(folder)
    known = None if truth is None else read_truth(truth)
    if known is not None:
        check_run(known, record.run)
    score = None if known is None else score_of(record, known.inputs)
    write_page(path, render(record, known, score))
    terminal.say(summary(record, score))
    terminal.say(f"Written to {path}.")
    terminal.answer({"report": str(path), **(score.facts() if score else {})})
    return 0
