"""How often the exact attack finds every point, and why it fails where it does: small tasks, many
seeds.

    python benchmarks/search.py --out choose.jsonl --half choose [--share 0/2] [--only NAME]
    python benchmarks/search.py --out report.jsonl --half report [--share 0/2] [--only NAME]
    python benchmarks/search.py --table report.jsonl

Each task has twenty seeds. The first ten, on one half of the data sets, are for choosing constants
and moves (`choose`); the other ten, on the other half, are for reporting (`report`). One line of
JSON per run; runs that are in the file already are not repeated. `--share K/N` runs every N-th of
them, so that N processes can share the work. `--seeds K` runs only the first K seeds of a half.
Each process uses one thread.

A run succeeds if every point is within 0.1 of its training point (up to sign where signs are
open). The width of each network is chosen so that the task has the stated number of effective
equations per free coordinate (`examine/counting.py`). With the truth in view, which only this
benchmark has, a failure has one of three reasons:

    search      a descent from the data ends at a lower loss: the search missed it
    alias       a descent from the data ends at the data, but not at a lower loss
    inaccurate  a descent from the data leaves the data: even the best fit is too far off
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import beta
from sklearn.datasets import load_breast_cancer, load_digits, load_sample_image, load_wine

import recollect as rc
from recollect.attacks.problem import Problem
from recollect.auditing.verdict import called
from recollect.examine.counting import effective_equations, largest
from recollect.objective.base import ExactObjective
from recollect.objective.endpoints import Endpoints
from recollect.shapes import Tensor
from recollect.simulate.training import minimum_norm, train_network
from recollect.solve.levenberg_marquardt import LevenbergMarquardt
from recollect.solve.loop import minimise, start
from recollect.system.seeds import stream
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features

SEEDS = {"choose": range(10), "report": range(10, 20)}
CLOSE = 0.1
Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A kind of victim. `ratio`: effective equations per coordinate, which sets the width."""

    name: str
    data: str
    n: int
    ratio: float
    kind: str = "trained"
    """trained, gradient (one gradient of the cross-entropy) or features (random features)."""
    depth: int = 2
    bias: bool = False
    parameters: str = "last"
    classes: bool = False
    """One output per class; else one output, ±1 for two groups of classes."""


TASKS = (
    Task("features 1.2", "synthetic", 20, 1.2, "features"),
    Task("features 1.6", "synthetic", 20, 1.6, "features"),
    Task("features 2.0", "synthetic", 20, 2.0, "features"),
    Task("features with bias 2.0", "synthetic", 20, 2.0, "features", bias=True),
    Task("features of digits 2.4", "digits", 20, 2.4, "features"),
    Task("features of digits, ten classes 3", "digits", 20, 3.0, "features", classes=True),
    Task("features of a table with bias 3", "table", 12, 3.0, "features", bias=True),
    Task("2 layers, synthetic 4", "synthetic", 20, 4.0),
    Task("2 layers, photographs 8", "photographs", 10, 8.0),
    Task("2 layers with bias, digits 8", "digits", 20, 8.0, bias=True, classes=True),
    Task("2 layers with bias, table 4", "table", 12, 4.0, bias=True),
    Task("3 layers with bias, digits 12", "digits", 20, 12.0, depth=3, bias=True, classes=True),
    Task("5 layers, digits 16", "digits", 10, 16.0, depth=5, classes=True),
    Task("all of 2 layers, digits 16", "digits", 10, 16.0, parameters="all", classes=True),
    Task(
        "all of 2 layers with bias, digits 16", "digits", 10, 16.0, "trained", 2, True, "all", True
    ),
    Task("all of 3 layers with bias, table 40", "table", 8, 40.0, "trained", 3, True, "all"),
    Task("gradient of 2 layers 4", "digits", 10, 4.0, "gradient", 2, False, "all", True),
    Task("gradient of 3 layers with bias 8", "photographs", 8, 8.0, "gradient", 3, True, "all"),
    Task("gradient of 6 layers 12", "digits", 8, 12.0, "gradient", 6, False, "all", True),
    Task("one point, 2 layers with bias", "table", 1, 100.0, bias=True),
    Task("two points, 3 layers", "photographs", 2, 100.0, depth=3),
    Task("gradient of one point", "digits", 1, 20.0, "gradient", 2, True, "all", True),
    Task("two points with bias, all layers", "digits", 2, 100.0, "trained", 2, True, "all"),
)


# Data: (inputs, labels). The two halves share no record.


def data_of(task: Task, seed: int, half: str) -> tuple[Tensor, Tensor, int]:
    """Inputs as a practitioner scales them, targets, and the number of outputs."""
    draw = np.random.default_rng([seed, len(task.name)])
    if task.data == "synthetic":
        made = synthetic(n=task.n, dim=20, rank=10, noise=0.5, seed=seed)
        return made.inputs, made.targets, 1
    load = {"digits": _digits, "table": _table, "photographs": photographs}[task.data]
    inputs, all_labels = load(half)
    chosen = draw.permutation(len(inputs))[: task.n]
    X = torch.from_numpy(inputs[chosen]).double()
    labels = torch.from_numpy(all_labels[chosen]).long()
    if not task.bias:  # norms do not show, and are set to √d as in the paper
        X = math.sqrt(X.shape[1]) * X / X.norm(dim=1, keepdim=True)
    if not task.classes:
        return X, 2.0 * (labels % 2)[:, None].double() - 1, 1
    scores = torch.nn.functional.one_hot(labels, int(all_labels.max()) + 1).double()
    return X, scores, scores.shape[1]


def _digits(half: str) -> tuple[np.ndarray, np.ndarray]:
    all_of = load_digits()
    some = slice(0, 898) if half == "choose" else slice(898, None)
    X, labels = all_of.data[some] / 16, all_of.target[some]
    return (X - X.mean()) / X.std(), labels


def _table(half: str) -> tuple[np.ndarray, np.ndarray]:
    """Wine (13 columns, 3 classes) to choose, breast cancer (30 columns, 2 classes) to report."""
    table = load_wine() if half == "choose" else load_breast_cancer()
    return (table.data - table.data.mean(0)) / table.data.std(0), table.target


def photographs(half: str) -> tuple[np.ndarray, np.ndarray]:
    """Crops of one photograph, 16×16×3; the class says which side of the photograph it is from."""
    photograph = load_sample_image("china.jpg" if half == "choose" else "flower.jpg") / 255.0
    small = photograph[:424, :640].reshape(106, 4, 160, 4, 3).mean((1, 3))
    crops = [
        (small[i : i + 16, j : j + 16], int(j > 72))
        for i in range(0, 90, 16)
        for j in range(0, 160, 16)
    ]
    crops = [(crop, side) for crop, side in crops if crop.std() > 0.06]
    X = np.stack([crop.transpose(2, 0, 1).ravel() for crop, _ in crops])
    return (X - X.mean()) / X.std(), np.array([side for _, side in crops])


# Victims.


def network_of(task: Task, d: int, width: int, c: int) -> MLP:
    if task.kind == "features":
        return random_features(d, width, c, bias=task.bias)
    return mlp(d, width, c, depth=task.depth, bias=task.bias)


def width_for(task: Task, r: int, c: int, rank: int) -> int:
    """The smallest width with the task's effective equations per coordinate."""
    sliced = task.bias and task.kind != "features"
    free = r if task.bias else r - 1  # r: dimension of the span, or of the affine hull plus one
    free = free - 1 if sliced else free
    families = 2 if task.kind == "trained" else 1

    def too_narrow(width: int) -> bool:
        network = network_of(task, max(1, r - 1) if sliced else r, width, c)
        network = network.augmented() if sliced else network
        sizes = zip(network.layers, network.widths[:-1], network.widths[1:], strict=True)
        theta = {}
        for layer, a, b in sizes:
            theta[layer.weight] = torch.empty(b, a, device="meta")
            if layer.bias is not None:
                theta[layer.bias] = torch.empty(b, device="meta")
        names = network.last.names if task.parameters == "last" else network.trained
        equations = effective_equations(network, theta, names, task.n, rank=rank, families=families)
        return equations < task.ratio * max(1, task.n * free)

    return largest(too_narrow, 100_000) + 1


def victim_of(task: Task, seed: int, half: str) -> tuple[rc.Victim, Tensor, int]:
    X, scores, c = data_of(task, seed, half)
    d = X.shape[1]
    augmented = torch.cat([X, torch.ones(len(X), 1).double()], dim=1) if task.bias else X
    r = int(torch.linalg.matrix_rank(augmented if task.kind != "features" else X))
    rank = int(torch.linalg.matrix_rank(scores)) if task.kind == "features" else c
    network = network_of(task, d, width_for(task, r, c, rank), c)
    theta_0 = initial_theta(
        network, init="torch", generator=stream("weights", seed), dtype=torch.float64
    )
    if task.kind == "features":
        return minimum_norm(network, theta_0, X, scores).victim, X, network.widths[1]
    if task.kind == "trained":
        return train_network(network, theta_0, X, scores).victim, X, network.widths[1]
    theta = {name: value.clone().requires_grad_() for name, value in theta_0.items()}
    outputs = network(theta, X)
    if c == 1:
        loss = torch.nn.functional.soft_margin_loss(outputs, scores)
    else:
        loss = torch.nn.functional.cross_entropy(outputs, scores)
    slopes = torch.autograd.grad(loss, list(theta.values()))
    # A gradient is a change whose gradients are all taken at θf.
    before = {name: theta_0[name] + 1e-3 * slope for name, slope in zip(theta, slopes, strict=True)}
    return rc.Victim(network, before, theta_0), X, network.widths[1]


# Runs.


def attack_of(task: Task, X: Tensor) -> rc.Exact:
    if task.kind == "features":
        U = torch.linalg.svd(X, full_matrices=False)
        basis = U.Vh[: int(torch.linalg.matrix_rank(X))].T.contiguous()
        return rc.Exact(space=rc.Basis(U=basis))
    ends = Endpoints.FINAL if task.kind == "gradient" else None
    return rc.Exact(parameters=task.parameters, endpoints=ends)


def judged(problem: Problem, n: int) -> ExactObjective:
    """The objective by which found and true points are compared."""
    several = problem.evidence.moving and problem.search.endpoints is None
    last = problem.search.parameters == "last"

    def objective(ends: Endpoints) -> ExactObjective:
        return problem.last_layer(ends) if last else problem.layerwise(ends, balanced=True)

    both = objective(Endpoints.BOTH) if several else None
    if both is not None and problem.determined(n, both):
        return both
    return objective(Endpoints.FINAL)


def descended(problem: Problem, objective: ExactObjective, Z: Tensor) -> tuple[Tensor, float]:
    solver = LevenbergMarquardt()
    (ended,) = minimise(
        solver,
        objective,
        problem.geometry,
        start(solver, Z),
        tolerance=1e-24,
        report=lambda *_: None,
        save=lambda *_: None,
    )
    return ended.Z, ended.loss


def coordinates(problem: Problem, X: Tensor) -> Tensor:
    """The points of the search nearest to X."""
    if problem.whole.d > problem.victim.d:
        X = torch.cat([X, X.new_full((len(X), 1), problem.geometry.radius)], dim=1)
    return problem.geometry.project(X if problem.U is None else X @ problem.U)


def run(task: Task, seed: int, half: str) -> Row:
    victim, X, width = victim_of(task, seed, half)
    attack = attack_of(task, X)
    began = time.perf_counter()
    found = rc.reconstruct(victim, task.n, attack, seed=seed)
    seconds = time.perf_counter() - began
    score = rc.evaluate(found, X)
    errors = score.errors if found.signs_settled else score.errors_up_to_sign
    success = bool((errors <= CLOSE).all())
    problem = Problem.of(victim, attack, torch.device("cpu"))
    objective = judged(problem, task.n)
    mine, truth = coordinates(problem, found.inputs), coordinates(problem, X)
    loss = min(found.loss, descended(problem, objective, mine)[1])
    ended, loss_truth = descended(problem, objective, truth)
    moved = (problem.inputs(ended) - X).norm(dim=1) / X.norm(dim=1)
    why = ""
    if not success:
        stays = bool((moved <= CLOSE).all())
        lower = loss_truth < 0.99 * loss
        why = "search" if lower else "alias" if stays else "inaccurate"
        why = "inaccurate" if lower and not stays else why
    confidence = found.confidence if found.confidence is not None else torch.zeros(task.n)
    would_be_called = called(found) if found.confidence is not None else confidence > 1
    matched = _error_of_each(found.inputs, X, signed=found.signs_settled)
    return {
        "task": task.name,
        "half": half,
        "seed": seed,
        "width": width,
        "ratio": objective.effective_equations(task.n) / max(1, problem.coordinates(task.n)),
        "success": success,
        "rho": score.rho,
        "rho_up_to_sign": score.rho_up_to_sign,
        "within": float((errors <= CLOSE).double().mean()),
        "why": why,
        "loss": loss,
        "loss_truth": loss_truth,
        "flagged": bool((confidence < 0.5).any()),
        "wrong_called": int(((matched > CLOSE) & would_be_called).sum()),
        "points": [
            [round(float(e), 5), round(float(c), 4)]
            for e, c in zip(matched, confidence, strict=True)
        ],
        "seconds": seconds,
        "status": found.status.name.lower(),
    }


def _error_of_each(found: Tensor, truth: Tensor, *, signed: bool) -> Tensor:
    """The relative distance of each found point to the nearest training point."""
    near = torch.cdist(found.double(), truth)
    if not signed:
        near = torch.minimum(near, torch.cdist(-found.double(), truth))
    return (near / truth.norm(dim=1)).min(1).values


def jobs(half: str, seeds: int) -> Iterator[tuple[Task, int]]:
    for seed in SEEDS[half][:seeds]:
        for task in TASKS:
            yield task, seed


def interval(successes: int, runs: int) -> tuple[float, float]:
    """Clopper–Pearson, 95 %."""
    low = 0.0 if successes == 0 else float(beta.ppf(0.025, successes, runs - successes + 1))
    high = 1.0 if successes == runs else float(beta.ppf(0.975, successes + 1, runs - successes))
    return low, high


def table(rows: list[Row]) -> None:
    print("| task | ratio | runs | found | 95 % interval | median ρ | s | flagged | failures |")
    print("|---|---|---|---|---|---|---|---|---|")
    for task in TASKS:
        some = [row for row in rows if row["task"] == task.name]
        if not some:
            continue
        good = sum(row["success"] for row in some)
        low, high = interval(good, len(some))
        reasons = [row["why"] for row in some if row["why"]]
        why = ", ".join(f"{reasons.count(kind)} {kind}" for kind in sorted(set(reasons)))
        print(
            f"| {task.name} | {statistics.median(row['ratio'] for row in some):.2g} | {len(some)} "
            f"| {good / len(some):.0%} | {low:.0%}–{high:.0%} "
            f"| {statistics.median(row['rho_up_to_sign'] for row in some):.1e} "
            f"| {statistics.median(row['seconds'] for row in some):.1f} "
            f"| {sum(row['flagged'] for row in some) / len(some):.0%} | {why or '–'} |"
        )
    print()
    for low, high in ((1.0, 2.0), (2.0, 2.4), (2.4, math.inf)):
        some = [row for row in rows if low <= row["ratio"] + 1e-9 < high]
        if some:
            missed = sum(row["why"] == "search" for row in some)
            a, b = interval(missed, len(some))
            print(
                f"effective equations per coordinate {low} to {high}: search failures "
                f"{missed} of {len(some)} ({missed / len(some):.1%}, {a:.1%}–{b:.1%})"
            )
    failed = [row for row in rows if not row["success"]]
    wrong = sum(row["wrong_called"] > 0 for row in failed)
    print(
        f"failed runs that hold a wrong point that would be called recovered: "
        f"{wrong} of {len(failed)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--half", choices=("choose", "report"), default="choose")
    parser.add_argument("--share", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--table", type=Path, nargs="*")
    given = parser.parse_args()
    if given.table:
        rows = [json.loads(line) for path in given.table for line in path.open()]
        table(rows)
        return
    warnings.simplefilter("ignore", rc.RecollectWarning)
    torch.set_num_threads(1)
    part, parts = map(int, given.share.split("/"))
    done = set()
    if given.out.exists():
        done = {
            (row["task"], row["half"], row["seed"]) for row in map(json.loads, given.out.open())
        }
    for k, (task, seed) in enumerate(jobs(given.half, given.seeds)):
        if k % parts != part or given.only not in task.name:
            continue
        if (task.name, given.half, seed) in done:
            continue
        row = run(task, seed, given.half)
        with given.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
