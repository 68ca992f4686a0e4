"""Ten models trained in ten ways by plain PyTorch, each audited by one command without options:
verdict against truth.

    python benchmarks/audits.py --out runs [--budget 10m]        what is done is not done again
    python benchmarks/audits.py --table runs

The audit sees the two state dicts and nothing else; the training inputs are scored afterwards.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from models import Model, score_of, train

from recollect.cli import main as recollect

MODELS = (
    Model("plain"),
    Model("without biases, one norm", bias=False, each=True),
    Model("three layers", widths=(500, 500), lr=0.1),
    Model("narrow", n=10, widths=(60,)),
    Model("photographs", data="photos", widths=(2000,), bias=False, each=True, lr=0.002),
    Model("cross-entropy", loss="cross-entropy", lr=0.1, steps=2000),
    Model("momentum, mini-batches", momentum=0.9, lr=0.01, batch=5),
    Model("weight decay", decay=1e-4),
    Model("Adam", optimiser="Adam", lr=1e-3),
    Model("two hundred digits", n=200, lr=0.1),
)


def table(folder: Path) -> None:
    names = "model, training loss, verdict, candidates, called, of them within 0.1, by truth, "
    names += "ρ, guessing, seconds"
    print("| " + " | ".join(names.split(", ")) + " |\n" + "|" + "---|" * 10)
    for model in MODELS:
        path = folder / model.name.replace(" ", "-").replace(",", "")
        if not (path / "score.json").exists():
            continue
        audit: dict[str, Any] = json.loads((path / "audit" / "audit.json").read_text())
        score: dict[str, Any] = json.loads((path / "score.json").read_text())
        loss = json.loads((path / "loss.json").read_text())
        calls = audit["called"] or []
        right = sum(one and near < 0.1 for one, near in zip(calls, score["closest"], strict=True))
        called = sum(calls)
        print(
            f"| {model.name} | {loss:.1e} | {audit['verdict']} | {audit['n']} | {called} | "
            f"{right if called else '–'} | {score['recovered']:.0%} of {len(score['errors'])} | "
            f"{score['rho']:.2g} | {score['chance']:.2g} | {audit['seconds']:.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--only")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    if options.table:
        table(options.table)
        return
    if options.out is None:
        parser.error("--out or --table is needed")
    for model in MODELS:
        folder = options.out / model.name.replace(" ", "-").replace(",", "")
        if (folder / "score.json").exists() or (options.only and options.only != model.name):
            continue
        print(model.name, flush=True)
        train(model, folder)
        files = [str(folder / "init.pt"), str(folder / "trained.pt")]
        recollect(["audit", *files, "--out", str(folder / "audit"), "--budget", options.budget])
        score_of(folder)


if __name__ == "__main__":
    main()
