"""`recollect sweep` and `recollect export`: studies of many runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from recollect.cli.common import Count, Device, Flag, Json, app
from recollect.console import Terminal
from recollect.errors import OptionError
from recollect.experiments.engines import Engine, LocalEngine
from recollect.experiments.estimate import Machine
from recollect.experiments.job import Job
from recollect.experiments.perform import Task
from recollect.experiments.plan import read_plan
from recollect.experiments.store import Store
from recollect.experiments.sweep import Progress, Sweep, tasks_of
from recollect.experiments.table import table, write_table
from recollect.files import check_writable
from recollect.memory import total_memory
from recollect.reconstruct import choose_device

_TELL_SECONDS = 30.0
_SHARE = 0.8
"""Of the memory of the machine that jobs may take together."""


@app.command
def sweep(
    plan: Path,
    *,
    out: Path,
    engine: Literal["local", "ray"] = "local",
    workers: Count | None = None,
    threads: Count = 1,
    address: str | None = None,
    cpus_per_job: float = 1.0,
    gpus_per_job: float | None = None,
    data: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    keep_victims: Annotated[bool, Flag] = False,
    dry_run: Annotated[bool, Flag] = False,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Run every job of a plan that is not done yet. Stop it as you like: the same command goes on where it stopped.

    Example: recollect sweep plans/quick.toml --out quick

    Parameters
    ----------
    plan
        A TOML file of grids of options; see plans/quick.toml.
    out
        Folder for the results. On a cluster every node must see it.
    engine
        local: processes of this machine. ray: workers of a Ray cluster.
    workers
        Processes at once; as many as cores, or as GPUs, unless given.
    threads
        Threads of each.
    address
        Of a Ray cluster that is running; one is started here unless given.
    cpus_per_job
        What Ray reserves for a job.
    gpus_per_job
        What Ray reserves for a job; 1 with --device cuda, 0 otherwise.
    data
        NAME=PATH: where a data set of the plan lies, for example cifar10=cifar10.npz.
    keep_victims
        Keep the trained networks when all their jobs are done.
    dry_run
        List the jobs with estimates of time and memory, and run none.
    """
    terminal = Terminal(json=json)
    jobs, sources, where = read_plan(plan), _sources(data or []), choose_device(device)
    for name, value in (("--workers", workers), ("--threads", threads)):
        if value is not None and not 1 <= value <= 10_000:
            raise OptionError(f"expected {name} between 1 and 10000, got {value}; choose another")
    store, began = Store(out), time.perf_counter()
    check_writable(out)
    machine = Machine.measured(where, threads)
    trainings, attacks = tasks_of(jobs, store, machine, sources)
    todo = sum(len(task.jobs) for task in attacks)
    slots = workers or _slots(where.type, threads)
    work = [*trainings.values(), *attacks]
    seconds = sum(task.seconds for task in work) / slots
    terminal.say(
        f"{len(jobs)} jobs on {len({job.victim_name for job in jobs})} victims, {todo} to run: about "
        f"{_duration(seconds)} with {slots} worker{'s' if slots > 1 else ''}."
    )
    if dry_run:
        for task in work:
            terminal.say(f"{len(task.jobs):4} × {task!s:90} {_duration(task.seconds):>8} {task.bytes / 1e9:7.2f} GB")
        told = [{"task": str(t), "jobs": len(t.jobs), "seconds": t.seconds, "bytes": t.bytes} for t in work]
        terminal.answer({"jobs": len(jobs), "to_run": todo, "estimated_seconds": seconds, "tasks": told})
        return 0
    out.mkdir(parents=True, exist_ok=True)
    carrier = _engine(engine, address, slots, threads, cpus_per_job, gpus_per_job, where.type, out)
    try:
        failures = _carried_out(terminal, Sweep(store, keep_victims), trainings, attacks, carrier) if work else {}
    except KeyboardInterrupt:
        done = sum(store.has(job) for job in jobs)
        terminal.note(f"recollect: interrupted; {done} of {len(jobs)} jobs are done: run the same command to go on")
        return 130
    for job, error in failures.items():
        terminal.note(f"failed: {job.name} ({Task((job,), False, out, where.type)}): {error}")
    done = sum(store.has(job) for job in jobs)
    terminal.say(
        f"{done} of {len(jobs)} jobs are done, {len(failures)} failed, {_duration(time.perf_counter() - began)}."
    )
    terminal.say(f"The table: recollect export {out} --out {out}.csv")
    failed = [{"job": job.name, "error": error} for job, error in failures.items()]
    terminal.answer({"jobs": len(jobs), "done": done, "run": todo, "failed": failed})
    return 1 if failures else 0


@app.command
def export(folder: Path, *, out: Path, json: Json = False) -> int:
    """Write the results of a sweep as one table: a row a job, in an order of its own; times in columns *_seconds.

    Example: recollect export quick --out quick.csv

    Parameters
    ----------
    folder
        Folder that `sweep` wrote.
    out
        FILE.csv or FILE.parquet.
    """
    terminal = Terminal(json=json)
    rows = table(Store(folder))
    if not rows:
        raise OptionError(f"expected the results of a sweep in {folder}, got none; run `recollect sweep` first")
    write_table(rows, out)
    terminal.say(f"{len(rows)} rows written to {out}.")
    terminal.answer({"rows": len(rows), "out": str(out)})
    return 0


def _carried_out(
    terminal: Terminal, state: Sweep, trainings: dict[str, Task], attacks: list[Task], engine: Engine
) -> dict[Job, str]:
    total = sum(len(task.jobs) for task in attacks)
    told = time.perf_counter()
    with engine, terminal.progress("sweep", total) as report:

        def tell(progress: Progress) -> None:
            nonlocal told
            left = "" if progress.left is None else f", about {_duration(progress.left)} left"
            failed = f", {progress.failed} failed" if progress.failed else ""
            text = f"{progress.done} of {progress.total} jobs{failed}{left}"
            report(progress.done, text)
            if not terminal.interactive and time.perf_counter() - told > _TELL_SECONDS:
                terminal.note(text)
                told = time.perf_counter()

        return state.run(trainings, attacks, engine, tell)


def _engine(
    kind: str, address: str | None, slots: int, threads: int, cpus: float, gpus: float | None, device: str, out: Path
) -> Engine:
    if kind == "ray":
        from recollect.experiments.ray_engine import RayEngine

        wanted = (1.0 if device == "cuda" else 0.0) if gpus is None else gpus
        return RayEngine(address=address, workers=slots, threads=threads, cpus=cpus, gpus=wanted, folder=out.absolute())
    if address is not None:
        raise OptionError("expected --address with --engine ray, got --engine local; leave it out")
    names = _gpus() if device == "cuda" else []
    memory = _SHARE * total_memory(choose_device(device)) * max(1, len(names))
    return LocalEngine(slots, threads=threads, memory=memory, gpus=names)


def _slots(device: str, threads: int) -> int:
    if device == "cuda":
        return max(1, len(_gpus()))
    return max(1, len(os.sched_getaffinity(0)) // threads)


def _gpus() -> list[str]:
    import torch

    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",") if shown else [str(k) for k in range(torch.cuda.device_count())]


def _sources(given: list[str]) -> dict[str, str]:
    sources = dict(one.split("=", 1) for one in given if "=" in one)
    if len(sources) < len(given) or not all(sources) or not all(sources.values()):
        raise OptionError(f"expected --data NAME=PATH, got {' '.join(given)}; for example cifar10=cifar10.npz")
    return {name: str(Path(path).absolute()) for name, path in sources.items()}


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
