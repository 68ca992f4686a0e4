"""`recollect sweep` on a machine that has torch, numpy, scipy and safetensors and nothing else.

    PYTHONPATH=src python benchmarks/study.py plans/synthetic.toml --out runs
            [--data cifar10=cifar10.npz] [--workers 3]

Stop it as you like; the same command goes on where it stopped. The folder is that of `recollect
sweep`, and `recollect export` makes its table.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from recollect.study.engines import LocalEngine
from recollect.study.plan import read_plan
from recollect.study.store import Store
from recollect.study.sweep import Sweep, SweepProgress, tasks_of
from recollect.system.device import Machine, choose_device, total_memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plans", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device, store = choose_device(options.device), Store(options.out)
    sources = {
        name: str(Path(path).absolute())
        for name, path in (one.split("=", 1) for one in options.data)
    }
    jobs = tuple(dict.fromkeys(job for plan in options.plans for job in read_plan(plan)))
    trainings, attacks = tasks_of(jobs, store, Machine.measured(device, 1), sources)
    told = time.perf_counter()

    def tell(progress: SweepProgress) -> None:
        nonlocal told
        if time.perf_counter() - told > 30:
            told = time.perf_counter()
            left = "?" if progress.left is None else f"{progress.left / 60:.0f}"
            print(
                f"{progress.done} of {progress.total} jobs, {progress.failed} failed, {left} min "
                "left",
                flush=True,
            )

    options.out.mkdir(parents=True, exist_ok=True)
    with LocalEngine(
        options.workers,
        memory=0.8 * total_memory(device),
        gpus=["0"] if device.type == "cuda" else [],
    ) as engine:
        failures = Sweep(store).run(trainings, attacks, engine, tell)
    for job, error in failures.items():
        print(job.name, error)
    print(f"{sum(store.has(job) for job in jobs)} of {len(jobs)} jobs are done")


if __name__ == "__main__":
    main()
