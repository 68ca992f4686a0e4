"""The paper's three methods with its own solver, on its own tasks: ρ against width, and the time of
a run.

    python benchmarks/paper_gd.py --part speed     --out results.jsonl
    python benchmarks/paper_gd.py --part synthetic --out results.jsonl [--seconds 500]
    python benchmarks/paper_gd.py --part cifar --cifar cifar10.npz --out results.jsonl
    python benchmarks/paper_gd.py --table results.jsonl

Each result is one line of JSON; what is in the file already is not run again, so a part may be cut
short and resumed. Needs torch, numpy, scipy and safetensors alone.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from recollect import (
    Basis,
    FullSpace,
    GradientDescent,
    Projection,
    RecollectWarning,
    Subspace,
    Victim,
    evaluate,
    reconstruct,
)
from recollect.examine.subspace import spectrum
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.simulate.training import train_network
from recollect.system.seeds import stream
from recollect.truth.data.dataset import Dataset
from recollect.truth.data.load import load_dataset
from recollect.victim.mlp import initial_theta, mlp

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MACHINE = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"


def trained(
    data: Dataset, width: int, depth: int, seed: int, dtype: torch.dtype
) -> tuple[Victim, dict[str, Any]]:
    network = mlp(data.inputs.shape[1], width, data.targets.shape[1], depth=depth)
    theta_0 = initial_theta(network, init="fan-in", generator=stream("weights", seed), dtype=dtype)
    theta_0 = {name: tensor.to(DEVICE) for name, tensor in theta_0.items()}
    done = train_network(network, theta_0, data.inputs.to(DEVICE), data.targets.to(DEVICE))
    found = spectrum(done.victim)
    return done.victim, {
        "steps": done.steps,
        "training_seconds": done.seconds,
        "gap_rank": found.rank,
        "gap": found.gap,
    }


def attacked(victim: Victim, data: Dataset, attack: Projection, seed: int) -> dict[str, Any]:
    began = time.perf_counter()
    found = reconstruct(victim, len(data.inputs), attack, seed=seed)
    seconds = time.perf_counter() - began
    score = evaluate(found, data.inputs)
    return {
        "rho": score.rho,
        "rho_up_to_sign": score.rho_up_to_sign,
        "median_error": float(score.errors.median()),
        "recovered": score.recovered,
        "loss": found.loss,
        "rank": found.rank,
        "seconds": seconds,
        "chance_span": score.chance["span"],
    }


def spaces(data: Dataset) -> dict[str, FullSpace | Subspace | Basis]:
    # As in the paper, the dimension of the subspace is taken as known.
    return {
        "full": FullSpace(),
        "subspace": Subspace(rank=data.basis.shape[1]),
        "true": Basis(U=data.basis),
    }


def synthetic_part(dtypes: list[str], widths: list[int]) -> Iterator[tuple[dict[str, Any], Any]]:
    for dtype in dtypes:
        for width in widths:
            for seed in range(3):
                data = load_dataset("synthetic", 100, seed=seed)
                yield from victims("synthetic", data, width, 2, seed, dtype, spaces(data), 10_000)


def cifar_part(path: Path) -> Iterator[tuple[dict[str, Any], Any]]:
    data = load_dataset(str(path), 10)
    for dtype in ("float64", "float32"):
        for depth in (2, 3, 5):
            for seed in range(3):
                yield from victims(
                    "cifar10",
                    data,
                    1000,
                    depth,
                    seed,
                    dtype,
                    {"subspace": Subspace(rank=10)},
                    10_000,
                )


def victims(
    name: str,
    data: Dataset,
    width: int,
    depth: int,
    seed: int,
    dtype: str,
    spaces: dict[str, Any],
    iterations: int,
) -> Iterator[tuple[dict[str, Any], Any]]:
    made: list[tuple[Victim, dict[str, Any]]] = []

    def run(space: Any) -> dict[str, Any]:
        if not made:
            made.append(trained(data, width, depth, seed, getattr(torch, dtype)))
        victim, facts = made[0]
        return {
            **facts,
            **attacked(
                victim,
                data,
                Projection(space=space, solver=GradientDescent(iterations=iterations)),
                seed,
            ),
        }

    for method, space in spaces.items():
        key = {
            "task": name,
            "n": len(data.inputs),
            "width": width,
            "depth": depth,
            "dtype": dtype,
            "seed": seed,
            "method": method,
        }
        yield key, lambda space=space: run(space)


def speed_part(path: Path | None) -> Iterator[tuple[dict[str, Any], Any]]:
    """10⁴ iterations on a victim with random weights: the cost does not depend on what they are."""
    tasks: list[tuple[str, Dataset, int]] = [("synthetic", load_dataset("synthetic", 100), 16_000)]
    if path is not None:
        tasks.append(("cifar10", load_dataset(str(path), 100), 16_000))
    for name, data, width in tasks:
        d, c = data.inputs.shape[1], data.targets.shape[1]

        def run(data: Dataset = data, width: int = width, d: int = d, c: int = c) -> dict[str, Any]:
            network = mlp(d, width, c)
            theta_0, theta_f = (
                {
                    k: v.to(DEVICE)
                    for k, v in initial_theta(
                        network,
                        init="fan-in",
                        generator=torch.Generator().manual_seed(k),
                        dtype=torch.float32,
                    ).items()
                }
                for k in (1, 2)
            )
            victim = Victim(network, theta_0, theta_f)
            space = Basis(U=data.basis)
            short, full = (
                Projection(space=space, solver=GradientDescent(iterations=iterations))
                for iterations in (500, 10_000)
            )
            graphed = reconstruct(victim, 100, short).inputs  # also the warm-up
            seconds = reconstruct(victim, 100, full).stages[0].seconds
            LastLayerObjective.capturable = False
            eager = reconstruct(victim, 100, short)
            LastLayerObjective.capturable = True
            return {
                "seconds": seconds,
                "eager_seconds": eager.stages[0].seconds * 20,
                "graph_equals_eager": bool(torch.equal(graphed, eager.inputs)),
                "peak_bytes": peak_bytes(Evidence.change(victim).restrict(data.basis)),
                "jacobian_bytes": 4 * (100 * c) * (c * width),
            }

        yield {"task": f"speed-{name}", "n": 100, "width": width, "c": c, "iterations": 10_000}, run


def peak_bytes(evidence: Evidence) -> int:
    """Memory that one fit takes beyond the weights themselves."""
    if DEVICE.type != "cuda":
        return 0
    objective = LastLayerObjective(evidence, device=DEVICE, dtype=torch.float32)
    X = torch.randn(100, evidence.d, device=DEVICE)
    objective.fit(X)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    objective.fit(X)
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if "rho" in row:
            groups.setdefault(
                (row["task"], row["n"], row["depth"], row["dtype"], row["width"], row["method"]), []
            ).append(row)
    print(
        "| task | n | L | victim | width | method | ρ up to sign: mean ± sd | ρ signed | recovered "
        "| rank by gap | "
        "seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for (task, n, depth, dtype, width, method), found in groups.items():
        up, rho = ([row[name] for row in found] for name in ("rho_up_to_sign", "rho"))
        ranks = "/".join(str(row["gap_rank"]) for row in found)
        print(
            f"| {task} | {n} | {depth} | {dtype} | {width} | {method} | {_spread(up)} | "
            f"{_spread(rho)} | "
            f"{statistics.mean(row['recovered'] for row in found):.0%} | {ranks} | "
            f"{statistics.median(row['seconds'] for row in found):.1f} |"
        )
    for row in rows:
        if row["task"].startswith("speed"):
            print(
                f"\n{row['task']}: n={row['n']}, width {row['width']}, c={row['c']}: "
                f"{row['iterations']} iterations "
                f"in {row['seconds']:.2f} s on {row['machine']} "
                f"(without CUDA graphs {row['eager_seconds']:.2f} s; the same bits: "
                f"{row['graph_equals_eager']}); a "
                f"fit's peak {row['peak_bytes'] / 1e6:.0f} MB, where the dense Jacobian alone "
                "would take "
                f"{row['jacobian_bytes'] / 1e6:.0f} MB"
            )


def _spread(values: list[float]) -> str:
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return f"{statistics.mean(values):.4f} ± {deviation:.4f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["synthetic", "cifar", "speed"])
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing new after so long"
    )
    parser.add_argument("--dtypes", default="float64")
    parser.add_argument("--widths", default="4000,8000,16000,32000")
    parser.add_argument("--table", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore", RecollectWarning)
    if options.table:
        table(options.table)
        return
    if (
        options.part is None
        or options.out is None
        or (options.part == "cifar" and options.cifar is None)
    ):
        parser.error("--part and --out are needed, and --cifar for its part")
    jobs = {
        "synthetic": lambda: synthetic_part(
            options.dtypes.split(","), [int(width) for width in options.widths.split(",")]
        ),
        "cifar": lambda: cifar_part(options.cifar),
        "speed": lambda: speed_part(options.cifar),
    }[options.part]()
    done = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    began = time.perf_counter()
    for key, run in jobs:
        if any(key.items() <= row.items() for row in done):
            continue
        if time.perf_counter() - began > options.seconds:
            print("out of time; run again to go on")
            break
        row = {**key, **run(), "machine": MACHINE}
        with options.out.open("a") as stream:
            stream.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
