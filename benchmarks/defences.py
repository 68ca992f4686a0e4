"""What defences do: a model trained or published in a safer way, audited as it is, scored against
the truth afterwards.

    python benchmarks/defences.py --out runs [--budget 45s] [--seeds 3] [--share K/N]
            what is done is not done again
    python benchmarks/defences.py --table runs
    python benchmarks/defences.py --table runs --figure defences.png

Every model is two layers of width 400 on ten digits, plain gradient descent on the squared error,
biases and default initialisation, but for what is defended with. `fit` is the share of training
examples whose label it still gives: a defence that ruins the model is none.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from models import Model, inputs_of, score_of, train

from recollect.cli import main as recollect

State = dict[str, torch.Tensor]
BASE = Model("plain", n=10, widths=(400,), lr=0.05)


@dataclass(frozen=True)
class Case:
    defence: str
    strength: str
    """As people would say it."""
    model: Model
    publish: Callable[[State, State], State] | None = None
    """(θ0, θf) → what is published as θf."""


def rounded(dtype: torch.dtype) -> Callable[[State, State], State]:
    return lambda before, after: {name: value.to(dtype).float() for name, value in after.items()}


def levels(bits: int) -> Callable[[State, State], State]:
    """Symmetric quantisation to whole multiples of a step, a step a tensor, and back to floats."""

    def publish(before: State, after: State) -> State:
        most = 2 ** (bits - 1) - 1
        steps = {name: value.abs().max() / most for name, value in after.items()}
        return {name: (value / steps[name]).round() * steps[name] for name, value in after.items()}

    return publish


def noised(share: float) -> Callable[[State, State], State]:
    """Gaussian noise, to each tensor in proportion to the root mean square of its change."""

    def publish(before: State, after: State) -> State:
        generator = torch.Generator().manual_seed(0)
        return {
            name: value
            + share
            * (value - before[name]).square().mean().sqrt()
            * torch.randn(value.shape, generator=generator)
            for name, value in after.items()
        }

    return publish


def cases() -> list[Case]:
    made = [Case("none", "–", BASE)]
    made += [
        Case("rounding", name, BASE, publish)
        for name, publish in (
            ("float16", rounded(torch.float16)),
            ("bfloat16", rounded(torch.bfloat16)),
            ("int8", levels(8)),
            ("int4", levels(4)),
        )
    ]
    made += [
        Case("noise", f"{share:g} of Δθ", BASE, noised(share))
        for share in (1e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)
    ]
    made += [
        Case("weight decay", f"{rate:g}", replace(BASE, decay=rate))
        for rate in (1e-5, 1e-4, 1e-3, 1e-2)
    ]
    made += [
        Case("early stopping", f"{steps} steps", replace(BASE, steps=steps))
        for steps in (300, 100, 30, 10, 3)
    ]
    made += [
        Case("optimiser", "momentum 0.9", replace(BASE, momentum=0.9, lr=0.01)),
        Case("optimiser", "Adam 1e-4", replace(BASE, optimiser="Adam", lr=1e-4)),
        Case("optimiser", "Adam 1e-3", replace(BASE, optimiser="Adam", lr=1e-3)),
    ]
    made += [Case("mini-batches", f"of {size}", replace(BASE, batch=size)) for size in (5, 2, 1)]
    made += [
        Case("cross-entropy", f"{steps} steps", replace(BASE, loss="cross-entropy", steps=steps))
        for steps in (300, 3000)
    ]
    made += [
        Case("more data", f"{n} digits", replace(BASE, n=n, lr=0.1)) for n in (30, 60, 100, 200)
    ]
    private = replace(BASE, clip=0.1, steps=500, lr=0.5)
    made += [
        Case("DP-SGD", f"noise {noise:g}", replace(private, noise=noise))
        for noise in (0.0, 0.01, 0.03, 0.1, 0.3)
    ]
    return made


def fit_of(model: Model, state: State) -> float:
    X, labels = inputs_of(model)
    outputs = (
        torch.relu(X @ state["0.weight"].T + state["0.bias"]) @ state["2.weight"].T
        + state["2.bias"]
    )
    return float((outputs.argmax(1) == labels).double().mean())


def run(case: Case, seed: int, folder: Path, budget: str) -> dict[str, Any]:
    model = replace(case.model, seed=seed)
    train(model, folder)
    before, after = (
        torch.load(folder / f"{name}.pt", weights_only=True) for name in ("init", "trained")
    )
    if case.publish is not None:
        after = case.publish(before, after)
        torch.save(after, folder / "trained.pt")
    files = (str(folder / "init.pt"), str(folder / "trained.pt"))
    recollect(
        ["audit", *files, "--out", str(folder / "audit"), "--budget", budget, "--device", "cpu"]
    )
    audit: dict[str, Any] = json.loads((folder / "audit" / "audit.json").read_text())
    row = {
        "defence": case.defence,
        "strength": case.strength,
        "seed": seed,
        "n": model.n,
        "fit": fit_of(model, after),
        "loss": json.loads((folder / "loss.json").read_text()),
        "verdict": audit["verdict"],
        "candidates": audit["n"],
        "called": sum(audit["called"] or []),
        "seconds": audit["seconds"],
        "findings": [finding["seen"] for finding in audit["findings"]],
        "rho": None,
        "recovered": 0.0,
        "false": 0,
    }
    if audit["n"] is not None:
        score_of(folder)
        score = json.loads((folder / "score.json").read_text())
        calls = zip(audit["called"] or [], score["closest"], strict=False)
        false = sum(call and near >= 0.1 for call, near in calls)
        row |= {
            "rho": score["rho"],
            "recovered": score["recovered"],
            "chance": score["chance"],
            "false": false,
        }
    return row


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*/row.json"))]


def grouped(rows: list[dict[str, Any]]) -> list[tuple[Case, list[dict[str, Any]]]]:
    return [
        (case, found)
        for case in cases()
        if (
            found := [
                row
                for row in rows
                if (row["defence"], row["strength"]) == (case.defence, case.strength)
            ]
        )
    ]


def spread(values: list[float]) -> str:
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.2g}" if least == most else f"{middle:.2g} ({least:.2g}–{most:.2g})"


def table(rows: list[dict[str, Any]]) -> None:
    print(
        "| defence | strength | fit | verdicts | called | wrongly | recovered, by truth | ρ | "
        "guessing | seeds |"
    )
    print("|" + "---|" * 10)
    for case, found in grouped(rows):
        verdicts: dict[str, int] = {}
        for row in found:
            verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
        said = ", ".join(
            f"{verdict} ({times})" if len(verdicts) > 1 else verdict
            for verdict, times in verdicts.items()
        )
        scored = [row for row in found if row["rho"] is not None]
        print(
            f"| {case.defence} | {case.strength} | {spread([row['fit'] for row in found])} | "
            f"{said} | "
            f"{sum(row['called'] for row in found)} of {sum(row['n'] for row in found)} | "
            f"{sum(row['false'] for row in found)} | {spread([row['recovered'] for row in found])} "
            "| "
            f"{spread([row['rho'] for row in scored]) if scored else '–'} | "
            f"{spread([row['chance'] for row in scored]) if scored else '–'} | {len(found)} |"
        )


def figure(path: Path, rows: list[dict[str, Any]]) -> None:
    """A panel a defence, stronger to the right; undefended at the left of each."""
    from matplotlib.figure import Figure

    groups = grouped(rows)
    plain = next(found for case, found in groups if case.defence == "none")
    names = list(dict.fromkeys(case.defence for case, _ in groups if case.defence != "none"))
    drawn = Figure(figsize=(13, 7.5), layout="constrained")
    panels = drawn.subplots(2, (len(names) + 1) // 2, sharey=True, squeeze=False).ravel()
    for axes, name in zip(panels, names, strict=False):
        here = [("none", plain)] + [
            (case.strength, found) for case, found in groups if case.defence == name
        ]
        for values, label, colour, marker in (
            (
                [[row["fit"] for row in found] for _, found in here],
                "fit of the model",
                "#999999",
                "^",
            ),
            (
                [[row["recovered"] for row in found] for _, found in here],
                "recovered, share",
                "#0072b2",
                "o",
            ),
            (
                [
                    [1.5 if row["rho"] is None else min(row["rho"], 1.5) for row in found]
                    for _, found in here
                ],
                "ρ (1.5: more, or nothing found)",
                "#d55e00",
                "s",
            ),
        ):
            x = range(len(here))
            axes.plot(
                x,
                [statistics.median(some) for some in values],
                marker=marker,
                color=colour,
                label=label,
            )
            axes.fill_between(
                x,
                [min(some) for some in values],
                [max(some) for some in values],
                color=colour,
                alpha=0.15,
            )
        guessing = [statistics.median(row["chance"] or 1.0 for row in found) for _, found in here]
        axes.plot(
            range(len(here)), guessing, ":", color="#d55e00", linewidth=1, label="ρ of guessing"
        )
        axes.set_xticks(
            range(len(here)), [strength for strength, _ in here], rotation=35, ha="right"
        )
        axes.set(title=name, ylim=(-0.05, 1.6))
        axes.grid(alpha=0.3)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    drawn.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False
    )
    drawn.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--budget", default="45s")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--share", default="1/1", help="K/N: every Nth run from the Kth on, for N processes at once"
    )
    parser.add_argument("--table", type=Path, help="a folder of --out, or a file of its rows")
    parser.add_argument("--figure", type=Path)
    parser.add_argument(
        "--rows", type=Path, help="write the rows of --table to this file, one JSON a line"
    )
    options = parser.parse_args()
    if options.table:
        lines = options.table.read_text().splitlines() if options.table.is_file() else []
        rows = [json.loads(line) for line in lines] or rows_of(options.table)
        if options.rows:
            options.rows.write_text("".join(json.dumps(row) + "\n" for row in rows))
        if options.figure:
            figure(options.figure, rows)
        if not options.rows and not options.figure:
            table(rows)
        return
    if options.out is None:
        parser.error("--out or --table is needed")
    which, of = (int(number) for number in options.share.split("/"))
    for seed, case in itertools.islice(
        itertools.product(range(options.seeds), cases()), which - 1, None, of
    ):
        name = f"{case.defence} {case.strength} {seed}".replace(" ", "-").replace("–", "plain")
        folder = options.out / name
        if (folder / "row.json").exists():
            continue
        print(name, flush=True)
        (folder / "row.json").write_text(json.dumps(run(case, seed, folder, options.budget)))


if __name__ == "__main__":
    main()
