"""What the 15 runs of a cell (three victims, five starts each) cost beside one run: their products are shared.

    python benchmarks/cell.py [--device cuda] [--iterations 2000] [--repeats 3] [--profile]

The victims have random weights: the cost of a step does not depend on what they are. The ratios are of medians in one
process; `--profile` says which operations a step of all 15 spends its time on. Needs torch, numpy, scipy and
safetensors alone.
"""

from __future__ import annotations

import argparse
import statistics
import warnings

import torch

from recollect import Basis, GradientDescent, Projection, RecollectWarning, Victim
from recollect.cell import reconstruct_cell
from recollect.reconstruct import choose_device
from recollect.victim import initial_theta, mlp

TASKS = {
    # name: n, d, r, c, width
    "synthetic, n = 100, width 4000": (100, 60, 30, 1, 4000),
    "synthetic, n = 100, width 16000": (100, 60, 30, 1, 16_000),
    "images, n = 10, width 1000": (10, 3072, 10, 10, 1000),
    "images, n = 10, width 4000": (10, 3072, 10, 10, 4000),
}
SEEDS = range(5)


def victims(d: int, c: int, width: int, device: torch.device) -> list[Victim]:
    network = mlp(d, width, c)

    def weights(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        theta = initial_theta(network, init="fan-in", generator=generator, dtype=torch.float32)
        return {name: tensor.to(device) for name, tensor in theta.items()}

    return [Victim(network, weights(2 * k), weights(2 * k + 1)) for k in range(3)]


def seconds(some: list[Victim], n: int, attack: Projection, seeds: list[int], device: torch.device) -> float:
    """Of the descent itself, as its stages tell."""
    found = reconstruct_cell(some, n, [attack] * len(some), seeds=seeds, device=device)
    return sum(stage.seconds for runs in found for run in runs for stage in run.stages)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore", RecollectWarning)
    device = choose_device(options.device)
    machine = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{machine}, torch {torch.__version__}, {options.iterations} steps, median of {options.repeats} (range)\n")
    print("| task | one run, ms a step | five starts | fifteen runs | fifteen over one |")
    print("|---|---|---|---|---|")
    for name, (n, d, r, c, width) in TASKS.items():
        some = victims(d, c, width, device)
        U = torch.linalg.qr(torch.randn(d, r, dtype=torch.float64, generator=torch.Generator().manual_seed(9))).Q
        attack = Projection(space=Basis(U=U), solver=GradientDescent(iterations=options.iterations))
        cases = [(some[:1], [0]), (some[:1], list(SEEDS)), (some, list(SEEDS))]
        times: list[list[float]] = [[], [], []]
        for _ in range(options.repeats + 1):  # one after the other, so that all see the same machine
            for place, (chosen, seeds) in zip(times, cases, strict=True):
                place.append(1e3 / options.iterations * seconds(chosen, n, attack, seeds, device))
        one, five, fifteen = (values[1:] for values in times)  # the first was the warm-up
        ratio = statistics.median(fifteen) / statistics.median(one)
        print(f"| {name} | {_spread(one)} | {_spread(five)} | {_spread(fifteen)} | {ratio:.1f}× |", flush=True)
        if options.profile:
            _profiled(some, n, attack, device)


def _profiled(some: list[Victim], n: int, attack: Projection, device: torch.device) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as profile:
        seconds(some, n, Projection(space=attack.space, solver=GradientDescent(iterations=50)), list(SEEDS), device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(profile.key_averages().table(sort_by=order, row_limit=20, max_name_column_width=80))


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}–{max(values):.2f})"


if __name__ == "__main__":
    main()
