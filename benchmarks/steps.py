"""How long a step of Levenberg–Marquardt takes, and at what share of the processor's speed.

    python benchmarks/steps.py [--earlier SRC] [--threads 1,2] [--steps 5]
    python benchmarks/steps.py --whole 3 [--earlier SRC] [--threads 1,2]

A hundred points on a sphere in a hundred dimensions, ten classes: the last layer of a network of
width 4000, and all layers of one of width 1000, both trained, with gradients at both ends. The
first steps from a random start are timed. Their matrix products are counted by torch, and their
rate is given as a share of that of a product of two 2000×2000 matrices (float64, the same threads):
the rest is element-wise work, factorisations, and products too narrow to be fast. `--earlier` is
the `src` folder of another version, which is measured in the same run. `--whole` times the attacks
of `exact.py --part small` from beginning to end, so many times each, one version after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

TASKS = {"last layer, width 4000": ("last", 4000), "all layers, width 1000": ("all", 1000)}
N, D, CLASSES = 100, 100, 10
SEEDS = 12
"""Seeds of `--whole`."""


def kept() -> AbstractContextManager[None]:
    """What `reconstruct` does about freed memory, in versions that do something."""
    try:
        from recollect.system.allocation import freed_memory_kept
    except ModuleNotFoundError:
        return nullcontext()
    return freed_memory_kept()


def measure(steps: int) -> None:
    """Print one line of JSON for each task, measured with the package that is first on the path."""
    import recollect as rc
    from recollect.attacks.problem import Problem
    from recollect.geometry import random_start
    from recollect.objective.endpoints import Endpoints
    from recollect.simulate.training import train_network
    from recollect.solve.levenberg_marquardt import LevenbergMarquardt
    from recollect.solve.loop import minimise, start
    from recollect.victim.mlp import initial_theta, mlp

    memory = kept()
    memory.__enter__()
    A = torch.randn(2000, 2000, dtype=torch.float64)
    A @ A
    began = time.perf_counter()
    for _ in range(3):
        A @ A
    peak = 3 * 2 * 2000**3 / (time.perf_counter() - began)
    for name, (parameters, width) in TASKS.items():
        drawn = torch.Generator().manual_seed(0)
        X = torch.randn(N, D, generator=drawn, dtype=torch.float64)
        X = 10 * X / X.norm(dim=1, keepdim=True)
        Y = torch.nn.functional.one_hot(torch.arange(N) % CLASSES, CLASSES).double()
        network = mlp(D, width, CLASSES, depth=2)
        theta = initial_theta(network, init="fan-in", generator=drawn, dtype=torch.float64)
        victim = train_network(network, theta, X, Y, tolerance=1e-4).victim
        attack = rc.Exact(parameters=parameters, space=rc.FullSpace())
        problem = Problem.of(victim, attack, torch.device("cpu"))
        if parameters == "last":
            objective = problem.last_layer(Endpoints.BOTH)
        else:
            objective = problem.layerwise(Endpoints.BOTH, balanced=True)
        Z = random_start(problem.geometry, N, D, drawn)

        def descend(steps: int) -> int:
            solver = LevenbergMarquardt(iterations=steps)
            (ended,) = minimise(
                solver,
                objective,  # noqa: B023
                problem.geometry,  # noqa: B023
                start(solver, Z),  # noqa: B023
                tolerance=0.0,
                report=lambda *_: None,
                save=lambda *_: None,
            )
            return ended.iterations

        descend(1)
        began = time.perf_counter()
        made = descend(steps)
        seconds = (time.perf_counter() - began) / made
        with FlopCounterMode(display=False) as counted:
            descend(steps)
        flops = counted.get_total_flops() / made
        row = {"task": name, "seconds": seconds, "flops": flops, "share": flops / seconds / peak}
        print(json.dumps({**row, "peak": peak}), flush=True)


def answer() -> None:
    """Read numbers of victims from standard input; attack each, and print its seconds and ρ."""
    import exact

    exact.DEVICE = torch.device("cpu")
    cells = list(exact.cells("small", ["float64"], None, SEEDS // 2))
    cells[0].attacked("auto", 0)  # the first of a process takes longer
    print("ready", flush=True)
    for line in sys.stdin:
        row = cells[int(line)].attacked("auto", int(line))
        print(row["seconds"], row["rho"], flush=True)


def whole(versions: dict[str, Path], threads: str, times: int) -> None:
    """The attacks one by one, each version in turn."""
    running = {
        version: subprocess.Popen(
            [sys.executable, __file__, "--answer"],
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": threads},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for version, source in versions.items()
    }
    seconds: dict[str, list[float]] = {version: [] for version in versions}
    rho: dict[str, list[float]] = {version: [] for version in versions}
    for process in running.values():
        assert process.stdout is not None
        process.stdout.readline()
    for seed in [*range(SEEDS)] * times:
        for version, process in running.items():
            assert process.stdin is not None
            assert process.stdout is not None
            print(seed, file=process.stdin, flush=True)
            spent, distance = map(float, process.stdout.readline().split())
            seconds[version].append(spent)
            rho[version].append(distance)
    for process in running.values():
        process.communicate()
    first = next(iter(seconds.values()))
    for version in versions:
        ratios = sorted(one / other for one, other in zip(seconds[version], first, strict=True))
        print(
            f"| {threads} | {version} | {sum(seconds[version]) / times:.1f} | "
            f"{sum(seconds[version]) / sum(first):.2f} (median {statistics.median(ratios):.2f}, "
            f"{ratios[0]:.2f} to {ratios[-1]:.2f}) | {statistics.median(rho[version]):.5f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--earlier", type=Path, help="The `src` folder of another version.")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--whole", type=int, metavar="TIMES")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.answer:
        answer()
        return
    if given.measure:
        measure(given.steps)
        return
    versions = {"present": Path(__file__).parents[1] / "src"}
    if given.earlier is not None:
        versions = {"earlier": given.earlier, **versions}
    if given.whole:
        print(f"| threads | version | s for {SEEDS} seeds | over the first version | median ρ |")
        print("|---|---|---|---|---|")
        for threads in given.threads.split(","):
            whole(versions, threads, given.whole)
        return
    print("| task | threads | version | s per step | GFLOP per step | share of the product rate |")
    print("|---|---|---|---|---|---|")
    for threads in given.threads.split(","):
        for version, source in versions.items():
            done = subprocess.run(
                [sys.executable, __file__, "--measure", "--steps", str(given.steps)],
                env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": threads},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            for row in map(json.loads, done.stdout.splitlines()):
                print(
                    f"| {row['task']} | {threads} | {version} | {row['seconds']:.2f} | "
                    f"{row['flops'] / 1e9:.1f} | {row['share']:.0%} of "
                    f"{row['peak'] / 1e9:.0f} GFLOP/s |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
