"""How many zeros the first layer's change has, and which points are read off them.

    python benchmarks/zeros.py --part shares [--seeds 10]
    python benchmarks/zeros.py --part points [--half report] [--seeds 20] [--only KIND]

shares: digits, n = 10, networks of depth 2 to 5 with PyTorch's initialisation, trained to 1e-7. Of
the units that a point closes before and after training, the share whose entry d_ui vanishes; and
of all other units.

points: victims of `situations.py`, made by plain PyTorch in float32: ordinary training with
something to find, and models with nothing. Points are read off without any search
(`attacks/exact/unmix.py`), with the number of points given by the rank of ΔW_1. Weight decay is not
undone. Chosen on `--half choose`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
import warnings

import torch
from detectors import victim_of
from situations import NULLS, REAL, Situation
from sklearn.datasets import load_digits

import recollect as rc
from recollect.attacks.exact.first_layer import first_layer
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.exact.unmix import Unmixed, Unmixing
from recollect.attacks.problem import Problem
from recollect.shapes import Tensor
from recollect.simulate.training import train_network
from recollect.system.seeds import stream
from recollect.victim.mlp import initial_theta, mlp

CPU = torch.device("cpu")


def shares(seeds: int) -> None:
    digits = load_digits()
    X_all = torch.from_numpy((digits.data - digits.data.mean()) / digits.data.std())
    print("| depth | width | closed at both ends: zeros | by seed | others: zeros |")
    print("|---|---|---|---|---|")
    for depth in (2, 3, 4, 5):
        among_closed, among_others = [], []
        for seed in range(seeds):
            some = torch.randperm(len(X_all), generator=stream("digits", seed))[:10]
            X = X_all[some].double()
            X = 8 * X / X.norm(dim=1, keepdim=True)
            Y = torch.nn.functional.one_hot(torch.from_numpy(digits.target)[some], 10).double()
            network = mlp(64, 200, 10, depth=depth)
            weights = stream("weights", seed)
            theta = initial_theta(network, init="torch", generator=weights, dtype=torch.float64)
            victim = train_network(network, theta, X, Y).victim
            assert victim.theta_0 is not None
            change = victim.delta([network.first.weight])[network.first.weight]
            D = torch.linalg.lstsq(X.T, change.T).solution
            zero = D.abs() < 1e-6 * D.abs().amax(0)
            ends = (victim.theta_0, victim.theta_f)
            closed = torch.stack([X @ one[network.first.weight].T < 0 for one in ends]).all(0)
            among_closed.append(float(zero[closed].double().mean()))
            among_others.append(float(zero[~closed].double().mean()))
        print(
            f"| {depth} | 200 | {statistics.mean(among_closed):.1%} | {min(among_closed):.1%}–"
            f"{max(among_closed):.1%} | {statistics.mean(among_others):.1%} |"
        )


def read_off(case: Situation, seed: int) -> tuple[Unmixed, Problem] | None:
    problem = Problem.of(victim_of(case.before, case.after), rc.Exact(), CPU)
    first, tuning = first_layer(problem), Tuning()
    if first is None:
        return None
    unmixing = Unmixing(first, first.change.shape[1])
    found = unmixing.complete(
        None,
        stream("unmixing", seed),
        starts=min(tuning.unmixing_starts, int(tuning.unmixing_flops / unmixing.flops)),
        rounds=tuning.unmixing_rounds,
    )
    return None if found is None else (found, problem)


def distances(found: Tensor, truth: Tensor, *, directions: bool) -> Tensor:
    if directions:  # without biases norms do not show
        found, truth = (torch.nn.functional.normalize(one, dim=1) for one in (found, truth))
    return (torch.cdist(found, truth) / truth.norm(dim=1)).min(dim=1).values


def points(half: str, seeds: int, only: str) -> None:
    print("| model | models | all read off | points | wrong | error, median (worst) | s |")
    print("|---|---|---|---|---|---|---|")
    for kind, make in {**REAL, **NULLS}.items():
        if only not in kind:
            continue
        complete, errors, seconds, models = 0, [], [], 0
        for number in range(seeds):
            case = make(random.Random(f"{half}, zeros, {kind}, {number}"))
            models += 1
            began = time.perf_counter()
            try:
                done = read_off(case, number)
            except (ValueError, rc.RecollectError):
                continue
            if done is None:
                continue
            seconds.append(time.perf_counter() - began)
            found, problem = done
            X = problem.inputs(found.Z[found.trusted])
            complete += bool(found.trusted.all())
            homogeneous = problem.victim.network.homogeneous
            if len(X):
                errors += distances(X, case.X.double(), directions=homogeneous).tolist()
        wrong = sum(error > 0.1 for error in errors)
        size = f"{statistics.median(errors):.1e} ({max(errors):.1e})" if errors else "–"
        spent = f"{statistics.median(seconds):.1f}" if seconds else "–"
        name = kind if kind in REAL else f"nothing to find: {kind}"
        print(
            f"| {name} | {models} | {complete} | {len(errors)} | {wrong} | {size} | {spent} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=("shares", "points"), required=True)
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", default="", help="Part of the name of a kind of model.")
    given = parser.parse_args()
    warnings.simplefilter("ignore", rc.RecollectWarning)
    torch.set_num_threads(1)
    if given.part == "shares":
        shares(given.seeds)
    else:
        points(given.half, given.seeds, given.only)


if __name__ == "__main__":
    main()
