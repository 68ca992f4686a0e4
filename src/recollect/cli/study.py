"""`recollect sweep`, `export`, `figure` and `claims`: studies of many runs."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from recollect.cli.common import Count, Device, Flag, Json, app, duration
from recollect.cli.console import Terminal
from recollect.errors import OptionError

if TYPE_CHECKING:
    from recollect.study.engines import Engine
    from recollect.study.job import Job
    from recollect.study.perform import Task
    from recollect.study.store import Store
    from recollect.study.sweep import Sweep, SweepProgress

_TELL_SECONDS = 30.0
_SHARE = 0.8
"""Share of the machine's memory that all jobs together may use."""


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
    """Run every job of a plan that is not done yet. Stop it as you like: the same command goes on
    where it stopped.

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
        Threads of each process.
    address
        Address of a running Ray cluster; one is started here unless given.
    cpus_per_job
        CPUs that Ray reserves for a job.
    gpus_per_job
        GPUs that Ray reserves for a job; 1 with --device cuda, 0 otherwise.
    data
        NAME=PATH: where a data set of the plan lies, for example cifar10=cifar10.npz.
    keep_victims
        Keep the trained networks when all their jobs are done.
    dry_run
        List the jobs with estimates of time and memory, and run none.
    """
    import torch

    from recollect.study.plan import read_plan
    from recollect.study.store import Store
    from recollect.study.sweep import tasks_of
    from recollect.system.device import Machine, choose_device
    from recollect.system.files import check_writable

    terminal = Terminal(json=json)
    jobs, sources = read_plan(plan), _sources(data or [])
    _check_counts(workers, threads)
    gpus = _reserved(engine, device, cpus_per_job, gpus_per_job)
    # The GPUs of a cluster are not those of this machine.
    where = torch.device("cuda" if gpus else "cpu") if engine == "ray" else choose_device(device)
    check_writable(out)
    machine = Machine.measured(where, threads)
    store, slots = Store(out), workers or _slots(where.type, threads)
    if dry_run:
        _listed(terminal, jobs, tasks_of(jobs, store, machine, sources), slots)
        return 0
    carrier = _engine(engine, address, slots, threads, cpus_per_job, gpus, where.type, out)
    code, told = _run(
        terminal, jobs, store, tasks_of(jobs, store, machine, sources), carrier, slots, keep_victims
    )
    if "interrupted" not in told:
        terminal.say(f"The table: recollect export {out} --out {out}.csv")
    terminal.answer(told)
    return code


@app.command
def export(folder: Path, *, out: Path, json: Json = False) -> int:
    """Write the results of a sweep as one table: one row per job, in a fixed order; times in
    columns *_seconds.

    Example: recollect export quick --out quick.csv

    Parameters
    ----------
    folder
        Folder that `sweep` wrote.
    out
        FILE.csv or FILE.parquet.
    """
    from recollect.study.store import Store
    from recollect.study.table import table as results
    from recollect.study.table import write_table

    terminal = Terminal(json=json)
    rows = results(Store(folder))
    if not rows:
        raise OptionError(
            f"expected the results of a sweep in {folder}, got none; run `recollect sweep` first"
        )
    write_table(rows, out)
    terminal.say(f"{len(rows)} rows written to {out}.")
    terminal.answer({"rows": len(rows), "out": str(out)})
    return 0


@app.command
def figure(
    name: str,
    *,
    out: Path,
    quick: Annotated[bool, Flag] = False,
    table: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    runs: Path | None = None,
    workers: Count | None = None,
    data: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Make a figure of the paper, with the runs it needs: NAME.png, NAME.svg and their table,
    NAME.csv.

    spectrum and synthetic are the two halves of Figure 2, images is Figure 1, depth Figure 3,
    parameters Figure 4; appendix, grid (two images per class), n10 and n100 are of the appendix or
    beyond the paper; guarantees puts the bounds of the theory beside measurements.

    Example: recollect figure synthetic --quick --out figures

    Parameters
    ----------
    name
        spectrum, guarantees, synthetic, depth, parameters, appendix, n10, n100, images or grid.
    out
        Folder for the figure. The runs go to a folder in it, and a later call continues them.
    quick
        A small version, which takes minutes on two cores. The full plans take hours on a GPU.
    table
        Draw from these tables, which `export` made, instead of running anything.
    runs
        Draw from the results of a sweep in this folder instead of running anything. This includes
        pictures, which no table holds.
    workers
        Processes at once; as many as cores, or as GPUs, unless given.
    data
        NAME=PATH: where a data set lies, for example cifar10=cifar10.npz.
    """
    from recollect.study import catalogue
    from recollect.study.plan import read_plan
    from recollect.study.store import Store
    from recollect.study.sweep import tasks_of
    from recollect.study.table import csv_bytes, read_table
    from recollect.study.table import table as results
    from recollect.system.device import Machine, choose_device
    from recollect.system.files import check_writable, write_files

    terminal = Terminal(json=json)
    catalogue.check_name(name)
    check_writable(out)
    _check_counts(workers, 1)
    sources = _sources(data or [])
    if table and (name in catalogue.PICTURES or name in catalogue.MEASURED):
        instead = "give --runs" if name in catalogue.PICTURES else "leave it out"
        raise OptionError(
            f"expected {name} without --table, got one; a table does not hold that: {instead}"
        )
    if runs and (table or name in catalogue.MEASURED):
        what = "with --table" if table else f"for {name}, which is measured at once"
        raise OptionError(f"expected no --runs {what}, got one; leave it out")
    code, told = 0, dict[str, Any]()
    if name in catalogue.MEASURED:
        make = catalogue.spectra if name == "spectrum" else catalogue.bounds_beside_measurements
        rows, files = make(terminal.progress, quick=quick)
        files = {**files, ".csv": rows}
    elif table:
        rows_of = [row for path in table for row in read_table(path)]
        files = catalogue.DRAWINGS[name].draw(rows_of)
    else:
        jobs = tuple(
            job for plan in catalogue.plans_of(name, quick=quick) for job in read_plan(plan)
        )
        store = Store(runs or out / f"{name}-{'quick' if quick else 'full'}-runs")
        if runs is None:
            where = choose_device(device)
            slots = workers or _slots(where.type, 1)
            tasks = tasks_of(jobs, store, Machine.measured(where, 1), sources)
            carrier = _engine("local", None, slots, 1, 1.0, 0.0, where.type, store.folder)
            code, told = _run(terminal, jobs, store, tasks, carrier, slots, False)
        elif not any(store.has(job) for job in jobs):
            plans = " and ".join(plan.name for plan in catalogue.plans_of(name, quick=quick))
            raise OptionError(
                f"expected results of {plans} in {runs}, got none; run `recollect sweep` first"
            )
        if "interrupted" in told:
            terminal.answer(told)
            return code
        if name in catalogue.PICTURES:
            files = catalogue.pictures(name, store, jobs, sources)
        else:
            made = [row for row in results(store) if row["job"] in {job.name for job in jobs}]
            files = catalogue.DRAWINGS[name].draw(made)
            files = {**files, ".csv": csv_bytes(made)}
    write_files({out / f"{name}{ending}": content for ending, content in files.items()})
    paths = [str(out / f"{name}{ending}") for ending in files]
    terminal.say(f"Written: {', '.join(paths)}.")
    terminal.answer({"figure": name, "files": paths, **told})
    return code


@app.command
def claims(*tables: Path, out: Path, json: Json = False) -> int:
    """Test the claims of the paper's Results and appendix on tables that `export` made; writes a
    page of Markdown.

    Example: recollect claims synthetic.csv cifar10.csv --out claims.md

    Parameters
    ----------
    tables
        Tables of runs, .csv.
    out
        The page.
    """
    from recollect.study.claims import judge_claims, markdown
    from recollect.study.table import read_table, scored
    from recollect.system.files import write_bytes

    terminal = Terminal(json=json)
    if not tables:
        raise OptionError(
            "expected tables that `recollect export` made, got none; name them before --out"
        )
    rows = scored([row for path in tables for row in read_table(path)])
    found = judge_claims(rows)
    write_bytes(out, markdown(found, len(rows), [path.name for path in tables]).encode())
    for claim, verdict in found:
        terminal.say(f"{verdict.verdict:14} {claim.sentence}")
    told = [
        {"claim": claim.sentence, "verdict": verdict.verdict, "figures": verdict.figures}
        for claim, verdict in found
    ]
    terminal.answer({"claims": told, "out": str(out)})
    return 0


def _run(
    terminal: Terminal,
    jobs: tuple[Job, ...],
    store: Store,
    tasks: tuple[dict[str, Task], list[Task]],
    engine: Engine,
    slots: int,
    keep_victims: bool,
) -> tuple[int, dict[str, Any]]:
    """The exit code (0 all jobs are done, 1 some failed, or that of an interruption), and the
    content of the JSON answer."""
    from recollect.study.perform import Task
    from recollect.study.sweep import Sweep
    from recollect.system.signals import exit_code

    trainings, attacks = tasks
    began = time.perf_counter()
    _announce(terminal, jobs, tasks, slots)
    store.folder.mkdir(parents=True, exist_ok=True)
    if not keep_victims:  # Remove victims of a run that was killed after their last job.
        needed = {task.job.victim_name for task in attacks}
        for job in {job.victim_name: job for job in jobs if job.victim_name not in needed}.values():
            store.drop_victim(job)
    failures: dict[Job, str] = {}
    try:
        if attacks:
            failures = _carried_out(
                terminal, Sweep(store, keep_victims), trainings, attacks, engine
            )
    except KeyboardInterrupt as stop:
        done = sum(store.has(job) for job in jobs)
        terminal.note(
            f"recollect: interrupted; {done} of {len(jobs)} jobs are done: run the same command to "
            "go on"
        )
        return exit_code(stop), {"jobs": len(jobs), "done": done, "interrupted": True}
    for job, error in failures.items():
        terminal.note(f"failed: {job.name} ({Task(job, False, store.folder, '')}): {error}")
    done, spent = sum(store.has(job) for job in jobs), time.perf_counter() - began
    terminal.say(f"{done} of {len(jobs)} jobs are done, {len(failures)} failed, {duration(spent)}.")
    failed = [{"job": job.name, "error": error} for job, error in failures.items()]
    run = len(attacks)
    return (1 if failures else 0), {"jobs": len(jobs), "done": done, "run": run, "failed": failed}


def _announce(
    terminal: Terminal, jobs: tuple[Job, ...], tasks: tuple[dict[str, Task], list[Task]], slots: int
) -> float:
    work = [*tasks[0].values(), *tasks[1]]
    seconds = sum(task.seconds for task in work) / slots
    terminal.say(
        f"{len(jobs)} jobs on {len({job.victim_name for job in jobs})} victims, "
        f"{len(tasks[1])} to run: about {duration(seconds)} with {slots} "
        f"worker{'s' if slots > 1 else ''}."
    )
    return seconds


def _listed(
    terminal: Terminal, jobs: tuple[Job, ...], tasks: tuple[dict[str, Task], list[Task]], slots: int
) -> None:
    seconds = _announce(terminal, jobs, tasks, slots)
    work = [*tasks[0].values(), *tasks[1]]
    for task in work:
        terminal.say(f"{duration(task.seconds):>8} {task.bytes / 1e9:7.2f} GB   {task}")
    told = [{"task": str(t), "jobs": 1, "seconds": t.seconds, "bytes": t.bytes} for t in work]
    todo = len(tasks[1])
    terminal.answer(
        {"jobs": len(jobs), "to_run": todo, "estimated_seconds": seconds, "tasks": told}
    )


def _carried_out(
    terminal: Terminal,
    state: Sweep,
    trainings: dict[str, Task],
    attacks: list[Task],
    engine: Engine,
) -> dict[Job, str]:
    total = len(attacks)
    told = time.perf_counter()
    with engine, terminal.progress("sweep", total) as report:

        def tell(progress: SweepProgress) -> None:
            nonlocal told
            left = "" if progress.left is None else f", about {duration(progress.left)} left"
            failed = f", {progress.failed} failed" if progress.failed else ""
            text = f"{progress.done} of {progress.total} jobs{failed}{left}"
            report(progress.done, text)
            if not terminal.interactive and time.perf_counter() - told > _TELL_SECONDS:
                terminal.note(text)
                told = time.perf_counter()

        return state.run(trainings, attacks, engine, tell)


def _engine(
    kind: str,
    address: str | None,
    slots: int,
    threads: int,
    cpus: float,
    gpus: float,
    device: str,
    out: Path,
) -> Engine:
    from recollect.study.engines import LocalEngine
    from recollect.system.device import choose_device, total_memory

    if kind == "ray":
        from recollect.study.ray_engine import RayEngine

        return RayEngine(
            address=address,
            workers=slots,
            threads=threads,
            cpus=cpus,
            gpus=gpus,
            folder=out.absolute(),
        )
    if address is not None:
        raise OptionError("expected --address with --engine ray, got --engine local; leave it out")
    names = _gpus() if device == "cuda" else []
    memory = _SHARE * total_memory(choose_device(device)) * max(1, len(names))
    return LocalEngine(slots, threads=threads, memory=memory, gpus=names)


def _slots(device: str, threads: int) -> int:
    if device == "cuda":
        return max(1, len(_gpus()))
    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    return max(1, cores // threads)


def _check_counts(workers: int | None, threads: int) -> None:
    for name, value in (("--workers", workers), ("--threads", threads)):
        if value is not None and not 1 <= value <= 10_000:
            raise OptionError(f"expected {name} between 1 and 10000, got {value}; choose another")


def _reserved(engine: str, device: str, cpus: float, gpus: float | None) -> float:
    """GPUs that Ray reserves for a job."""
    if engine == "local" and (gpus is not None or cpus != 1.0):
        raise OptionError(
            "expected --cpus-per-job and --gpus-per-job with --engine ray, got local; leave them "
            "out"
        )
    wanted = (1.0 if device == "cuda" else 0.0) if gpus is None else gpus
    for name, value in (("--cpus-per-job", cpus), ("--gpus-per-job", wanted)):
        if not 0 <= value <= 10_000 or (value > 1 and value != int(value)):
            raise OptionError(
                f"expected {name} of a whole number, or a part of one, got {value}; choose another"
            )
    if device == "cpu" and wanted:
        raise OptionError(
            f"expected no GPUs with --device cpu, got --gpus-per-job {wanted:g}; leave one of them "
            "out"
        )
    return wanted


def _gpus() -> list[str]:
    import torch

    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    return shown.split(",") if shown else [str(k) for k in range(torch.cuda.device_count())]


def _sources(given: list[str]) -> dict[str, str]:
    sources = dict(one.split("=", 1) for one in given if "=" in one)
    if len(sources) < len(given) or not all(sources) or not all(sources.values()):
        raise OptionError(
            f"expected --data NAME=PATH, got {' '.join(given)}; for example cifar10=cifar10.npz"
        )
    return {name: str(Path(path).absolute()) for name, path in sources.items()}
