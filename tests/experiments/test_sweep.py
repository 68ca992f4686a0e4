"""Sweeps: resumed after anything, each victim trained once, failures told; the same table whatever happened."""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from sweeps import plan, sweep_command, without_times

from recollect.cli import main
from recollect.errors import FileError, OptionError
from recollect.experiments import perform as perform_file
from recollect.experiments.engines import Ended, LocalEngine, attempt
from recollect.experiments.job import Job
from recollect.experiments.perform import Task
from recollect.experiments.plan import expand, read_plan
from recollect.experiments.store import Store
from recollect.experiments.sweep import Progress, Sweep, tasks_of
from recollect.experiments.table import csv_bytes, read_table, table, write_table
from recollect.files import tensor_bytes
from recollect.machine import Machine

MACHINE = Machine(torch.device("cpu"), 1e10, 1e10)


class Here:
    """An engine of one slot, in this process."""

    def __init__(self, fail: Sequence[str | None] = ()) -> None:
        self.done: list[Task] = []
        self._fail = list(fail)
        self._task: Task | None = None

    def __enter__(self) -> Here:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def full(self) -> bool:
        return self._task is not None

    def room(self, task: Task) -> bool:
        return True

    def submit(self, task: Task) -> None:
        self._task = task

    def wait(self, seconds: float) -> list[Ended]:
        assert self._task is not None
        task, self._task = self._task, None
        self.done.append(task)
        trouble = self._fail.pop(0) if self._fail else None
        if trouble == "lost":
            return [Ended(task, "the worker died", lost=True)]
        return [Ended(task, trouble or attempt(task, 1))]


def run(jobs: Sequence[Job], store: Store, engine: Any, **options: Any) -> dict[Job, str]:
    told: list[Progress] = []
    with engine:
        failures = Sweep(store, **options).run(*tasks_of(jobs, store, MACHINE, {}), engine, told.append)
    if told:
        assert told[-1].done == told[-1].total
        assert all(a.done <= b.done and a.seconds <= b.seconds for a, b in itertools.pairwise(told))
    return failures


def few(**options: object) -> tuple[Job, ...]:
    common = {"dataset": "synthetic", "n": 4, "dim": 5, "rank": 2, "dtype": "float64", "tolerance": 1e-4}
    return expand({"grid": [{**common, "width": 30, "solver": "gd", "iterations": 20, "method": "full", **options}]})


def test_each_victim_is_trained_once_and_goes_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    jobs, store, engine = few(method=["full", "true"], training_seed=[0, 1]), Store(tmp_path), Here()
    assert run(jobs, store, engine) == {}
    assert [task.trains for task in engine.done] == [True, False, False, True, False, False]
    assert all(store.has(job) for job in jobs)
    assert not list((tmp_path / "victims").iterdir())
    again = Here()
    assert run(jobs, store, again) == {}
    assert again.done == []


def test_victims_are_kept_if_asked(tmp_path: Path) -> None:
    jobs, store = few(), Store(tmp_path)
    run(jobs, store, Here(), keep_victims=True)
    assert store.has_victim(jobs[0])
    more, engine = few(reconstruction_seed=[0, 1]), Here()
    run(more, store, engine)
    assert [task.trains for task in engine.done] == [False]


def test_what_fails_is_tried_once_more_and_then_told(tmp_path: Path) -> None:
    jobs, store = few(method=["full", "true"]), Store(tmp_path)
    assert run(jobs, store, Here([None, "Error: once"])) == {}
    store = Store(tmp_path / "other")
    failures = run(jobs, store, Here([None, "Error: one", None, "Error: two"]))
    assert failures == {jobs[0]: "Error: two"}
    assert json.loads((tmp_path / "other" / "failures" / f"{jobs[0].name}.json").read_text())["error"] == "Error: two"
    assert run(jobs, store, Here()) == {}
    assert not list((tmp_path / "other" / "failures").iterdir())


def test_a_lost_worker_is_not_held_against_a_job(tmp_path: Path) -> None:
    jobs = few()
    assert run(jobs, Store(tmp_path), Here(["lost", None, "lost", "lost", "lost", None])) == {}
    assert set(run(jobs, Store(tmp_path / "b"), Here([None, "lost", "lost", "lost", "lost"]))) == set(jobs)
    assert run(jobs, Store(tmp_path / "c"), Here([None, "lost", "Error: once"])) == {}


def test_a_failure_that_cannot_be_written_down_is_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "failures").write_text("in the way")
    jobs = few(method=["full", "true"])
    failures = run(jobs, Store(tmp_path), Here([None, "Error", None, "Error"]))
    assert list(failures) == [jobs[0]]


def test_jobs_of_a_victim_that_cannot_be_trained_fail_with_its_error(tmp_path: Path) -> None:
    jobs, store, engine = few(max_steps=1, method=["full", "true"]), Store(tmp_path), Here()
    failures = run(jobs, store, engine)
    assert set(failures) == set(jobs)
    assert all("its victim: TrainingDidNotConverge" in error for error in failures.values())
    assert [task.trains for task in engine.done] == [True, True]


def test_a_job_without_a_result_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perform_file, "_attack", lambda *_: None)
    jobs = few()
    assert run(jobs, Store(tmp_path), Here()) == {jobs[0]: "no result was written"}


def test_damaged_and_foreign_files_are_run_again(tmp_path: Path) -> None:
    jobs, store = few(), Store(tmp_path)
    run(jobs, store, Here(), keep_victims=True)
    path = tmp_path / "results" / f"{jobs[0].name}.json"
    whole = path.read_bytes()
    for damaged in (
        b"",
        whole[:-20],
        b"[]",
        b'{"job": {}}',
        whole.replace(b'"n": 4', b'"n": 5'),
        whole.replace(b'"rho": ', b'"rho": "a", "other": '),
        whole.replace(b'"rho": ', b'"other": '),
        whole.replace(b'"status": ', b'"status": 3, "other": '),
        whole.replace(b'"width": 30', b'"width": ' + b"9" * 400),
    ):
        assert damaged != whole
        path.write_bytes(damaged)
        assert not store.has(jobs[0])
        with pytest.raises(FileError, match="expected"):
            table(store)
    # Of before there was that option.
    path.write_bytes(whole.replace(b'    "keep_points": false', b'    "momentum": 0.9'))
    assert store.has(jobs[0])
    path.rename(path.with_name("other.json"))
    with pytest.raises(FileError, match="expected the result of job other"):
        table(store)
    path.with_name("other.json").unlink()
    run(jobs, store, Here(), keep_victims=True)
    first, second = (json.loads(content)["result"] for content in (whole, path.read_bytes()))
    assert first == second
    (store.victim(jobs[0]) / "trained.safetensors").write_bytes(b"junk")
    path.unlink()
    engine = Here()
    assert run(jobs, store, engine, keep_victims=True) == {}  # trained again at the second try
    assert len(engine.done) == 2
    (store.victim(jobs[0]) / "train.json").write_text("{}")
    assert not store.has_victim(jobs[0])


def test_points_are_kept_where_the_plan_asks(tmp_path: Path) -> None:
    (job,), store = few(), Store(tmp_path)
    run([job], store, Here())
    assert not store.points(job).exists()
    (kept,) = few(keep_points=True)
    assert not store.has(kept)
    run([kept], store, Here())
    assert store.has(kept)
    store.points(kept).write_bytes(b"junk")
    assert not store.has(kept)


def test_seeds_of_gradient_descent_are_one_task_and_always_all_on_a_gpu_or_if_small(tmp_path: Path) -> None:
    jobs = (
        *few(reconstruction_seed=[0, 1, 2], method=["full", "subspace"]),
        *few(reconstruction_seed=[0, 1], solver="auto", iterations=50),
        *few(reconstruction_seed=[0, 1], parameters="all"),
    )
    store = Store(tmp_path)
    cuda = Machine(torch.device("cuda"), 1e13, 1e13)

    def sizes(jobs: Sequence[Job], machine: Machine) -> list[int]:
        return [len(task.jobs) for task in tasks_of(jobs, store, machine, {})[1]]

    assert sizes(jobs, cuda) == sizes(jobs, MACHINE) == [3, 3, 1, 1, 2]
    run(jobs[1:2], store, Here())
    assert sizes(jobs, cuda) == sizes(jobs, MACHINE) == [3, 3, 1, 1, 2]
    large = few(reconstruction_seed=[0, 1, 2], width=10**7, training_seed=[0, 1])
    assert sizes(large, cuda) == [3, 3]
    assert sizes(large, MACHINE) == [1] * 6


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: victims that were trained alike share their products."""
    for file in ("cell", "experiments.estimate"):
        monkeypatch.setattr(f"recollect.{file}.pays", lambda *_: True)


@pytest.mark.usefixtures("company")
def test_victims_trained_alike_are_attacked_together_where_that_pays(tmp_path: Path) -> None:
    jobs = (
        # Few iterations: rounding grows from step to step.
        *few(reconstruction_seed=[0, 1], training_seed=[0, 1, 2], method=["full", "true"], iterations=3),
        *few(reconstruction_seed=[0, 1], training_seed=[0, 1], parameters="all", iterations=3),
        *few(training_seed=[0, 1], reconstruction_seed=5, step=3.0, iterations=3),
        *few(training_seed=3, reconstruction_seed=[0, 1], iterations=3),
        *few(training_seed=[0, 1], solver="lm", iterations=3),
        *few(training_seed=[0, 1], solver="lm", iterations=3),
    )
    store, engine = Store(tmp_path), Here()
    assert run(jobs, store, engine) == {}
    attacks = [task for task in engine.done if not task.trains]
    told = {(task.jobs[0].method, task.jobs[0].parameters, task.jobs[0].solver, len(task.jobs)) for task in attacks}
    assert told == {
        ("full", "last", "gd", 8),
        ("true", "last", "gd", 6),
        ("full", "all", "gd", 2),
        ("full", "last", "gd", 2),
        ("full", "last", "lm", 1),
    }
    assert sum(len(task.jobs) for task in attacks) == len(jobs) - 2  # none twice
    assert sum(task.trains for task in engine.done) == 4
    assert not list((tmp_path / "victims").iterdir())
    assert "seed 0, 1, 2" in str(next(task for task in attacks if len(task.jobs) == 6))
    alone = Store(tmp_path / "alone")
    for job in jobs:
        assert run([job], alone, Here(), keep_victims=True) == {}
    for ours, own in zip(table(store), table(alone), strict=True):
        assert ours["job"] == own["job"]
        assert ours["rho"] == pytest.approx(own["rho"], rel=1e-4)
        assert ours["residual"] == pytest.approx(own["residual"], rel=1e-3)


@pytest.mark.usefixtures("company")
def test_a_victim_that_cannot_be_trained_does_not_take_others_along(tmp_path: Path) -> None:
    jobs, store = few(reconstruction_seed=[0, 1], training_seed=[0, 1, 2]), Store(tmp_path)
    engine = Here(["Error: no", None, None, "Error: never"])
    failures = run(jobs, store, engine)
    assert failures == {job: "its victim: Error: never" for job in jobs if job.recipe.seed == 0}
    assert [len(task.jobs) for task in engine.done if not task.trains] == [4]
    assert all(store.has(job) for job in jobs if job.recipe.seed != 0)
    assert not list((tmp_path / "victims").iterdir())
    everything = Here(["Error"] * 6)
    assert len(run(jobs, Store(tmp_path / "b"), everything)) == 6
    assert all(task.trains for task in everything.done)


@pytest.mark.usefixtures("company")
def test_nor_does_one_that_cannot_be_attacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, store = few(reconstruction_seed=[0, 1], training_seed=[0, 1, 2]), Store(tmp_path)
    attack = perform_file._attack

    def bad(store: Store, cell: Sequence[Sequence[Job]], device: torch.device) -> None:
        if any(jobs[0].recipe.seed == 1 for jobs in cell):
            raise ValueError("not this one")
        attack(store, cell, device)

    monkeypatch.setattr(perform_file, "_attack", bad)
    engine = Here()
    failures = run(jobs, store, engine)
    assert failures == {job: "ValueError: not this one" for job in jobs if job.recipe.seed == 1}
    assert [len(task.jobs) for task in engine.done if not task.trains] == [6, 6, 2, 2, 2, 2]
    assert not list((tmp_path / "victims").iterdir())


@pytest.mark.usefixtures("company")
def test_damaged_victims_of_a_cell_are_all_trained_again_at_once(tmp_path: Path) -> None:
    jobs, store = few(training_seed=[0, 1, 2]), Store(tmp_path)
    run(jobs, store, Here(), keep_victims=True)
    for job in jobs:
        (tmp_path / "results" / f"{job.name}.json").unlink()
    for job in jobs[:2]:
        (store.victim(job) / "trained.safetensors").write_bytes(b"junk")
    engine = Here()
    assert run(jobs, store, engine) == {}
    assert [len(task.jobs) for task in engine.done] == [3, 3]


@pytest.mark.usefixtures("company")
def test_two_runs_of_a_cell_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A victim was lost, so the other ran alone; the cell is run again, and killed while it keeps its results."""
    jobs = few(reconstruction_seed=[0, 1], training_seed=[0, 1], iterations=200)
    whole = Store(tmp_path / "whole")
    run(jobs, whole, Here())
    for kept in (1, 2, 4):
        store = Store(tmp_path / f"killed after {kept}")
        assert len(run(jobs, store, Here(["Error", None, "Error"]))) == 2
        keep, count = Store.keep, itertools.count()

        def until_killed(*arguments: Any, kept: int = kept, keep: Any = keep, count: Any = count) -> None:
            if next(count) >= kept:
                raise KeyboardInterrupt
            keep(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Store, "keep", until_killed)
            if kept < 4:
                with pytest.raises(KeyboardInterrupt):
                    run(jobs, store, Here())
            else:
                run(jobs, store, Here())
        run(jobs, store, Here())
        plain = [
            [{name: row[name] for name in row if not name.endswith("_seconds")} for row in table(one)]
            for one in (store, whole)
        ]
        assert plain[0] == plain[1]


def test_a_plan_that_grew_trains_what_its_cells_need(tmp_path: Path, company: None) -> None:
    store, engine = Store(tmp_path), Here()
    run(few(training_seed=[0, 1]), store, Here())
    assert run(few(training_seed=[0, 1, 2]), store, engine) == {}
    assert [task.trains for task in engine.done] == [True, True, True, False]


def test_the_table_is_in_an_order_of_its_own_and_reads_back(tmp_path: Path) -> None:
    jobs, store = few(width=[30, 100, 20], method=["full", "true"]), Store(tmp_path)
    run(jobs, store, Here())
    rows = table(store)
    assert [(row["width"], row["method"]) for row in rows] == [
        (width, method) for width in (20, 30, 100) for method in ("full", "true")
    ]
    assert all(name.endswith("_seconds") for name in rows[0] if "second" in name)
    write_table(rows, tmp_path / "t.csv")
    back = read_table(tmp_path / "t.csv")
    assert csv_bytes(back) == (tmp_path / "t.csv").read_bytes()
    assert back == rows
    pytest.importorskip("pyarrow")
    from pyarrow import parquet

    write_table(rows, tmp_path / "t.parquet")
    assert parquet.read_table(tmp_path / "t.parquet").column("rho").to_pylist() == [row["rho"] for row in rows]
    with pytest.raises(OptionError, match=r"FILE\.csv"):
        write_table(rows, tmp_path / "t.txt")


def test_tables_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="expected the columns"):
        read_table(tmp_path / "t.csv")
    jobs, store = few(), Store(tmp_path)
    run(jobs, store, Here())
    (row,) = table(store)
    for bad in ({"rho": "abc"}, {"rho": float("nan")}, {"width": "wide"}, {"width": 1.5}, {"bias": 7}):
        (tmp_path / "t.csv").write_bytes(csv_bytes([{**row, **bad}]))
        with pytest.raises(FileError, match=f"expected {next(iter(bad))}"):
            read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(csv_bytes([{**row, "subspace_rank": "²"}]))  # a digit, and no number
    assert read_table(tmp_path / "t.csv")[0]["subspace_rank"] == "²"
    whole = csv_bytes([row])
    for more in (b"a\n", whole.splitlines()[1] + b",1\n", b"a\n" * 300_000):  # a row of everything for each of these?
        (tmp_path / "t.csv").write_bytes(whole + more)
        with pytest.raises(FileError, match="values in each line"):
            read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(whole + b"\n")
    assert read_table(tmp_path / "t.csv") == [row]
    with pytest.raises(FileError, match="expected a table"):
        read_table(tmp_path / "none.csv")


def test_points_are_there_if_they_can_be_shown(tmp_path: Path) -> None:
    (job,), store = few(keep_points=True), Store(tmp_path)
    run([job], store, Here())
    assert store.has(job)
    for odd in ({"x": torch.ones(2, 2)}, {"inputs": torch.ones(2)}, {"inputs": torch.ones(2, 2, dtype=torch.int8)}):
        store.points(job).write_bytes(tensor_bytes(odd))
        assert not store.has(job)


def test_a_killed_worker_loses_its_task_alone(tmp_path: Path) -> None:
    jobs, store = few(reconstruction_seed=[0, 1, 2]), Store(tmp_path)
    trainings, attacks = tasks_of(jobs, store, MACHINE, {})
    with LocalEngine(1, memory=1e10) as engine:
        (training,) = trainings.values()
        assert not engine.full
        engine.submit(training)
        assert engine.full
        os.kill(engine._workers[0].process.pid, signal.SIGKILL)  # type: ignore[arg-type]
        (ended,) = engine.wait(30.0)
        assert ended.lost
        assert "signal 9" in str(ended.error)
        failures = Sweep(store).run(trainings, attacks, engine, lambda progress: None)
    assert failures == {}
    assert all(store.has(job) for job in jobs)


def test_tasks_wait_for_memory(tmp_path: Path) -> None:
    (task, other) = tasks_of(few(method=["full", "true"]), Store(tmp_path), MACHINE, {})[1]
    engine = LocalEngine(4, memory=1.5 * task.bytes)
    assert engine.room(task)
    engine._workers.append(type("W", (), {"task": task})())
    assert not engine.room(other)


def test_killed_ten_times_it_gives_the_same_table(tmp_path: Path) -> None:
    path, whole, killed = plan(tmp_path), tmp_path / "whole", tmp_path / "killed"
    subprocess.run(sweep_command(path, whole), check=True, capture_output=True)
    moments, kills, done = random.Random(0), 0, []
    while kills < 10:
        process = subprocess.Popen(
            sweep_command(path, killed, "--workers", "2"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        before, wanted = len(list(killed.glob("results/*.json"))), moments.choice([0, 0, 1, 2, 3])
        while process.poll() is None and len(list(killed.glob("results/*.json"))) < before + wanted:
            time.sleep(0.005)
        time.sleep(moments.uniform(0.0, 3.0 if wanted == 0 else 0.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        done.append(len(list(killed.glob("results/*.json"))))
        if done[-1] == len(read_plan(path)):  # it was through: a few results less, and on
            for result in list(killed.glob("results/*.json"))[:7]:
                result.unlink()
    subprocess.run(sweep_command(path, killed), check=True, capture_output=True)
    for folder in (whole, killed):
        assert main(["export", str(folder), "--out", str(folder) + ".csv"]) == 0
    assert len(without_times(tmp_path / "whole.csv")) == len(read_plan(path)) == 20
    assert without_times(tmp_path / "whole.csv") == without_times(tmp_path / "killed.csv")
    assert any(0 < count < 20 for count in done)


def test_dry_run_json_and_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = plan(tmp_path), tmp_path / "out"
    assert main(["sweep", str(path), "--out", str(out), "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["to_run"] == 20
    assert all(task["seconds"] > 0 and task["bytes"] > 0 for task in answer["tasks"])
    assert not out.exists()
    for bad in (
        ["sweep", str(tmp_path / "none.toml"), "--out", str(out)],
        ["sweep", str(path), "--out", str(out), "--workers", "0"],
        ["sweep", str(path), "--out", str(out), "--data", "cifar10"],
        ["sweep", str(path), "--out", str(out), "--address", "auto"],
        ["sweep", str(path), "--out", str(out), "--cpus-per-job", "2"],
        ["sweep", str(path), "--out", str(out), "--engine", "ray", "--cpus-per-job", "-1"],
        ["sweep", str(path), "--out", str(out), "--engine", "ray", "--gpus-per-job", "1.5"],
        ["figure", "synthetic", "--quick", "--out", str(out), "--workers", "-3"],
        ["export", str(out), "--out", str(tmp_path / "t.csv")],
    ):
        assert main(bad) == 2
        assert "expected" in capsys.readouterr().err


def test_data_sets_by_name_lie_where_one_says(tmp_path: Path) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    np.savez(tmp_path / "mine.npz", inputs=generator.normal(size=(9, 5)), targets=generator.normal(size=(9, 1)))
    jobs, store = few(dataset="mine"), Store(tmp_path / "out")
    with pytest.raises(OptionError, match="mine"):
        tasks_of(jobs, store, MACHINE, {})
    tasks = tasks_of(jobs, store, MACHINE, {"mine": str(tmp_path / "mine.npz")})
    assert Sweep(store).run(*tasks, Here(), lambda progress: None) == {}
