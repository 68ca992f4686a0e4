"""`--solver auto` against the paper's gradient descent, on the same victims: ρ, time, where
recovery starts.

    python benchmarks/exact.py --part synthetic --out results.jsonl [--seconds 500]
            [--dtypes float64,float32]
    python benchmarks/exact.py --part features  --out results.jsonl
    python benchmarks/exact.py --part images --cifar cifar10.npz --out results.jsonl
    python benchmarks/exact.py --part small     --out results.jsonl --device cpu
    python benchmarks/exact.py --part stuck     --out results.jsonl --device cpu --solvers auto
    python benchmarks/exact.py --part threshold --out results.jsonl [--ratios 2.0,1.8]
    python benchmarks/exact.py --part count --cifar cifar10.npz --out results.jsonl
    python benchmarks/exact.py --table results.jsonl
    python benchmarks/exact.py --figure exact.png --table results.jsonl     (needs matplotlib)
    python benchmarks/exact.py --figure threshold.png --table results.jsonl --part threshold

Each result is one line of JSON; what is in the file already is not run again, so a part may be cut
short and resumed. `--solvers auto` leaves the baseline out, `--solvers gd` runs it alone, `--shard
0/8` every eighth victim (several such processes may share a GPU, but then their seconds mean
nothing; of `--part threshold` none are reported). Needs torch, numpy, scipy and safetensors, and
python-flint for the signs of the synthetic task. Seconds are of `reconstruct` as a whole, after a
warm-up of the same shape.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from recollect import (
    Basis,
    Exact,
    GradientDescent,
    Projection,
    RecollectWarning,
    Subspace,
    Victim,
    evaluate,
)
from recollect import reconstruct as attack_victim
from recollect.simulate.training import minimum_norm, train_network
from recollect.system.seeds import stream
from recollect.truth.data.dataset import Dataset
from recollect.truth.data.load import load_dataset
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import initial_theta, mlp, random_features

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Row = dict[str, Any]


@dataclass
class Cell:
    """A victim to be, and how it is attacked. The key names it in the file of results."""

    task: str
    data: Callable[[int], Dataset]
    width: int
    depth: int = 2
    dtype: str = "float64"
    seed: int = 0
    features: str = ""
    """Random features with this activation; `+bias` for biases."""
    known_basis: bool = False
    known_n: bool = True

    @property
    def key(self) -> Row:
        keep = ("task", "width", "depth", "dtype", "seed", "features", "known_n")
        return {name: getattr(self, name) for name in keep}

    @cached_property
    def made(self) -> tuple[Victim, Dataset, Row]:
        data = self.data(self.seed)
        X, Y = data.inputs.to(DEVICE), data.targets.to(DEVICE)
        d, c = X.shape[1], Y.shape[1]
        if self.features:
            activation, _, bias = self.features.partition("+")
            network = random_features(d, self.width, c, bias=bool(bias), activation=activation)
        else:
            network = mlp(d, self.width, c, depth=self.depth)
        dtype = getattr(torch, self.dtype)
        theta_0 = initial_theta(
            network, init="fan-in", generator=stream("weights", self.seed), dtype=dtype
        )
        theta_0 = {name: tensor.to(DEVICE) for name, tensor in theta_0.items()}
        done = (
            minimum_norm(network, theta_0, X, Y)
            if self.features
            else train_network(network, theta_0, X, Y)
        )
        return done.victim, data, {"steps": done.steps, "training_seconds": done.seconds}

    def attacked(self, solver: str, seed: int) -> Row:
        victim, data, facts = self.made
        n = len(data.inputs)
        space = Basis(U=data.basis) if self.known_basis else Subspace()
        if (
            solver == "gd" and not self.known_basis
        ):  # as in the paper, the dimension is taken as known
            space = Subspace(rank=data.basis.shape[1])
        attack = (
            Exact(space=space)
            if solver == "auto"
            else Projection(space=space, solver=GradientDescent(iterations=10_000))
        )
        began = time.perf_counter()
        found = attack_victim(victim, n if self.known_n else None, attack, seed=seed, device=DEVICE)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        score = evaluate(found, data.inputs)
        errors = score.errors_up_to_sign
        return {
            **facts,
            "n": n,
            "n_found": len(found.inputs),
            "equations_per_coordinate": found.equations / (n * found.rank),
            "rho": score.rho,
            "rho_up_to_sign": score.rho_up_to_sign,
            "worst": float(errors.max()),
            "recovered": score.recovered,
            "loss": found.loss,
            "status": found.status.name.lower(),
            "rank": found.rank,
            "seconds": seconds,
            "chance_span": score.chance["span"],
            "wrong": float((errors > 0.1).double().mean()),
            "confidence": None if found.confidence is None else float(found.confidence.min()),
            "spearman": _spearman(found.confidence, found.inputs, data.inputs),
            "stages": [(s.name, s.loss, s.iterations, round(s.seconds, 3)) for s in found.stages][
                :12
            ],
            "notes": list(found.notes),
        }


def _spearman(
    confidence: torch.Tensor | None, found: torch.Tensor, truth: torch.Tensor
) -> float | None:
    """How well confidence ranks the errors, each found point's to the true one it is closest to, up
    to sign."""
    from scipy.stats import spearmanr

    if confidence is None or len(found) < 3:
        return None
    found, truth = (
        torch.nn.functional.normalize(points.double().cpu(), dim=1) for points in (found, truth)
    )
    errors = torch.minimum(torch.cdist(found, truth), torch.cdist(-found, truth)).min(1).values
    value = float(spearmanr(confidence, -errors).statistic)
    return value if math.isfinite(value) else None


def paper_data(seed: int) -> Dataset:
    return load_dataset("synthetic", 100, seed=seed)


def small_data(seed: int) -> Dataset:
    return synthetic(n=20, dim=20, rank=10, noise=0.5, seed=seed)


def images(path: Path, n: int) -> Callable[[int], Dataset]:
    data = load_dataset(str(path), n)
    return lambda seed: data


RATIOS = (4.0, 3.2, 2.8, 2.6, 2.4, 2.2, 2.0, 1.8, 1.6, 1.4, 1.2)
"""p / (n r) of `--part threshold`."""


def cells(
    part: str, dtypes: list[str], cifar: Path | None, seeds: int, ratios: Iterable[float] = RATIOS
) -> Iterator[Cell]:
    if part == "small":
        for seed in range(2 * seeds):
            yield Cell("small", small_data, 1000, seed=seed)
    if part in ("small", "images") and cifar is not None:
        ten = images(cifar, 10)
        for dtype in dtypes:
            for depth in (2, 3, 5) if part == "images" else (2,):
                for seed in range(seeds):
                    yield Cell("cifar10-10", ten, 1000, depth, dtype, seed)
    if part == "images" and cifar is not None:
        hundred = images(cifar, 100)
        for dtype in dtypes:
            for width, depth in ((4000, 2), (8000, 2), (6000, 3)):
                for seed in range(seeds):
                    yield Cell("cifar10-100", hundred, width, depth, dtype, seed)
    if part == "synthetic":
        for dtype in dtypes:
            for seed in range(seeds):
                yield Cell("synthetic", paper_data, 10_000, 2, dtype, seed)
    if part == "stuck":  # too narrow to succeed: does confidence know which points are wrong?
        for width in (250, 300, 350, 400):
            for seed in range(2 * seeds):
                yield Cell("stuck", small_data, width, seed=seed)
    if part == "features":
        for kind in ("relu", "relu+bias", "tanh+bias"):
            for seed in range(seeds):
                yield Cell("features", paper_data, 9000, seed=seed, features=kind, known_basis=True)
    if part == "threshold":
        for ratio in ratios:
            for seed in range(2 * seeds):
                yield Cell(
                    "threshold",
                    paper_data,
                    round(ratio * 3000),
                    seed=seed,
                    features="relu",
                    known_basis=True,
                )
    if part == "count":
        for seed in range(seeds):
            yield Cell("synthetic", paper_data, 10_000, seed=seed, known_n=False)
        if cifar is not None:
            for depth in (2, 3, 5):
                for seed in range(seeds):
                    yield Cell(
                        "cifar10-10", images(cifar, 10), 1000, depth, seed=seed, known_n=False
                    )


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    threshold = [row for row in rows if row["task"] == "threshold"]
    rows = [row for row in rows if row["task"] != "threshold"]
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        where = "H200" if "H200" in row["machine"] else row["machine"]
        shape = (
            row["task"],
            row["n"],
            row["width"],
            row["depth"],
            row["features"] or "–",
            row["dtype"],
        )
        groups.setdefault(
            (*shape, "given" if row["known_n"] else "auto", row["solver"], where), []
        ).append(row)
    print(
        "| task | n | width | L | random features | victim | `--n` | solver | machine | ρ signed: "
        "median (range) | ",
        end="",
    )
    print("ρ up to sign | recovered | n found | seconds | seeds |\n|" + "---|" * 15)
    for key in sorted(groups, key=str):
        found = groups[key]
        rho, up, seconds = (
            [row[name] for row in found] for name in ("rho", "rho_up_to_sign", "seconds")
        )
        share = statistics.median(row["recovered"] for row in found)
        right = sum(row["n_found"] == row["n"] for row in found)
        counted = f"{right} of {len(found)}" if key[6] == "auto" else "–"
        cells = [
            *map(str, key),
            _spread(rho),
            _spread(up),
            f"{share:.0%}",
            counted,
            _spread(seconds),
            str(len(found)),
        ]
        print("| " + " | ".join(cells) + " |")
    stuck = [row for row in rows if row["spearman"] is not None and row.get("wrong", 0) >= 0.2]
    if stuck:
        some = [row["spearman"] for row in stuck if row["wrong"] < 1]
        print(
            f"\nConfidence against errors, runs with a fifth or more of the points wrong: Spearman "
            f"{_spread([row['spearman'] for row in stuck])} over {len(stuck)} runs; "
            f"{_spread(some)} over the "
            f"{len(some)} of them that had any point right."
        )

    threshold_table(threshold)


FOUND = 0.01
"""A run of the threshold sweep succeeded if ρ up to sign is below this."""


def by_ratio(rows: list[Row], solver: str) -> dict[float, list[Row]]:
    """The threshold's runs by p / (n r), equations over unknown coordinates."""
    groups: dict[float, list[Row]] = {}
    for row in rows:
        if row["solver"] == solver:
            groups.setdefault(round(row["width"] / (row["n"] * row["rank"]), 2), []).append(row)
    return dict(sorted(groups.items(), reverse=True))


def threshold_table(rows: list[Row]) -> None:
    if not rows:
        return
    print(
        "\n| p / (n r) | p | auto: found | ρ up to sign: median (range) | gd: found | ρ up to "
        "sign: median (range) |"
    )
    print("|" + "---|" * 6)
    auto, gd = by_ratio(rows, "auto"), by_ratio(rows, "gd")
    for ratio in sorted(auto.keys() | gd.keys(), reverse=True):
        cells = [str(ratio), str((auto | gd)[ratio][0]["width"])]
        for group in (auto.get(ratio, []), gd.get(ratio, [])):
            rho = [row["rho_up_to_sign"] for row in group]
            cells += (
                [f"{sum(r < FOUND for r in rho)} of {len(rho)}", _spread(rho)]
                if rho
                else ["–", "–"]
            )
        print("| " + " | ".join(cells) + " |")


def threshold_figure(path: Path, rows: list[Row]) -> None:
    """Share of runs that found the data against p / (n r), with the 95 % interval of a binomial
    (Wilson)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from scipy.stats import binomtest

    shown, axes = pyplot.subplots(figsize=(8, 3.8), layout="constrained")
    styles = {
        "gd": ("#c2571a", "o", "the paper's gradient descent, 10⁴ steps"),
        "auto": ("#1f6f8b", "D", "auto"),
    }
    for solver, (colour, marker, label) in styles.items():
        groups = by_ratio([row for row in rows if row["task"] == "threshold"], solver)
        tests = [
            binomtest(sum(r["rho_up_to_sign"] < FOUND for r in g), len(g)) for g in groups.values()
        ]
        share = [test.k / test.n for test in tests]
        ends = [test.proportion_ci(method="wilson") for test in tests]
        axes.fill_between(
            list(groups),
            [e.low for e in ends],
            [e.high for e in ends],
            color=colour,
            alpha=0.15,
            lw=0,
        )
        axes.plot(list(groups), share, marker=marker, color=colour, label=label)
    axes.axvline(1, color="#777777", linestyle="--", label="as many equations as coordinates")
    axes.set(
        xlabel="p / (n r): equations over unknown coordinates",
        ylabel=f"share of runs with ρ < {FOUND}",
    )
    axes.set(
        ylim=(-0.05, 1.05),
        yticks=[0, 0.25, 0.5, 0.75, 1],
        yticklabels=["0", "25 %", "50 %", "75 %", "100 %"],
    )
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    shown.legend(loc="outside upper center", ncols=3, frameon=False)
    shown.savefig(path, dpi=150)


def figure(path: Path, rows: list[Row]) -> None:
    """Every seed of every task as a dot: auto beside gradient descent, ρ signed, with chance."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = {
        ("synthetic", 10_000, 2, "", "float64"): "synthetic n=100, width 10,000",
        ("features", 9000, 2, "relu", "float64"): "random features, ReLU, width 9,000",
        ("features", 9000, 2, "relu+bias", "float64"): "random features, ReLU with bias",
        ("features", 9000, 2, "tanh+bias", "float64"): "random features, tanh with bias",
        ("cifar10-10", 1000, 2, "", "float64"): "CIFAR-10 n=10, width 1000, 2 layers",
        ("cifar10-10", 1000, 3, "", "float64"): "CIFAR-10 n=10, width 1000, 3 layers",
        ("cifar10-10", 1000, 5, "", "float64"): "CIFAR-10 n=10, width 1000, 5 layers",
        ("cifar10-100", 4000, 2, "", "float64"): "CIFAR-10 n=100, width 4000, 2 layers",
        ("cifar10-100", 8000, 2, "", "float64"): "CIFAR-10 n=100, width 8000, 2 layers",
        ("cifar10-100", 6000, 3, "", "float64"): "CIFAR-10 n=100, width 6000, 3 layers",
    }
    shown, axes = pyplot.subplots(figsize=(9, 4.6), layout="constrained")
    styles = {
        "gd": ("#c2571a", "o", "the paper's gradient descent, 10⁴ steps"),
        "auto": ("#1f6f8b", "D", "auto"),
    }
    for k, key in enumerate(names):
        for row in rows:
            if (
                row["task"],
                row["width"],
                row["depth"],
                row["features"],
                row["dtype"],
            ) != key or not row["known_n"]:
                continue
            colour, marker, _ = styles[row["solver"]]
            axes.plot(
                row["rho"], k, marker, color=colour, alpha=0.65, markersize=7, markeredgewidth=0
            )
            axes.plot(row["chance_span"], k, "|", color="#777777", markersize=14)
    for colour, marker, label in styles.values():
        axes.plot([], [], marker, color=colour, label=label)
    axes.plot([], [], "|", color="#777777", markersize=14, label="guessing in the span")
    axes.set(
        xscale="log", xlabel="ρ: mean error over the norm, signs counted (one mark a training seed)"
    )
    axes.set_yticks(range(len(names)), names.values())
    axes.invert_yaxis()
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right", "left"]].set_visible(False)
    shown.legend(loc="outside upper center", ncols=3, frameon=False)
    shown.savefig(path, dpi=150)


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2g} ({min(values):.2g}–{max(values):.2g})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--part",
        choices=["small", "stuck", "synthetic", "features", "images", "threshold", "count"],
    )
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing new after so long"
    )
    parser.add_argument("--dtypes", default="float64")
    parser.add_argument("--solvers", default="auto,gd")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ratios", default=",".join(map(str, RATIOS)))
    parser.add_argument(
        "--shard", default="0/1", help="K/M: the victims whose number modulo M is K"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RecollectWarning)
    if options.table:
        if options.figure:
            draw = threshold_figure if options.part == "threshold" else figure
            draw(
                options.figure,
                [json.loads(line) for line in options.table.read_text().splitlines()],
            )
        else:
            table(options.table)
        return
    if options.part is None or options.out is None:
        parser.error("--part and --out are needed")
    global DEVICE
    DEVICE = torch.device(options.device) if options.device else DEVICE
    machine = (
        torch.cuda.get_device_name()
        if DEVICE.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    done = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    began = time.perf_counter()
    warm: set[tuple[Any, ...]] = set()
    share, shares = map(int, options.shard.split("/"))
    ratios = [float(ratio) for ratio in options.ratios.split(",")]
    chosen = cells(options.part, options.dtypes.split(","), options.cifar, options.seeds, ratios)
    for cell in itertools.islice(chosen, share, None, shares):
        for solver in options.solvers.split(","):
            key = {**cell.key, "solver": solver}
            if any(key.items() <= row.items() for row in done):
                continue
            if time.perf_counter() - began > options.seconds:
                print("out of time; run again to go on")
                return
            shape = (cell.task, cell.width, cell.depth, cell.features, cell.known_n, solver)
            if shape not in warm and solver == "auto" and options.part != "threshold":
                cell.attacked(solver, cell.seed)
                warm.add(shape)
            row = {**key, **cell.attacked(solver, cell.seed), "machine": machine}
            with options.out.open("a") as stream:
                stream.write(json.dumps(row) + "\n")
            print(
                json.dumps(
                    {**row, "stages": [(s[0], f"{s[1]:.1e}", *s[2:]) for s in row["stages"]]}
                ),
                flush=True,
            )
        del cell


if __name__ == "__main__":
    main()
