"""Sweeps: a victim is trained once, failures are told, and the table is always the same."""

from __future__ import annotations

import csv
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
import torch
from sweeps import plan, sweep_command, without_times

from recollect.cli import main
from recollect.errors import FileError, OptionError
from recollect.solve.loop import Status
from recollect.study import perform as perform_file
from recollect.study.engines import Ended, LocalEngine, attempt
from recollect.study.job import Job, column_kinds
from recollect.study.perform import Task
from recollect.study.plan import expand, read_plan
from recollect.study.store import RESULTS, Store
from recollect.study.sweep import Sweep, SweepProgress, tasks_of
from recollect.study.table import SECONDS, csv_bytes, read_table, table, write_table
from recollect.system.device import Machine
from recollect.system.files import json_bytes, tensor_bytes, write_bytes

ROOT = Path(__file__).parents[2]
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
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
    told: list[SweepProgress] = []
    with engine:
        failures = Sweep(store, **options).run(
            *tasks_of(jobs, store, MACHINE, {}), engine, told.append
        )
    if told:
        assert told[-1].done == told[-1].total
        assert all(a.done <= b.done and a.seconds <= b.seconds for a, b in itertools.pairwise(told))
    return failures


def few(**options: object) -> tuple[Job, ...]:
    common = {
        "dataset": "synthetic",
        "n": 4,
        "dim": 5,
        "rank": 2,
        "dtype": "float64",
        "tolerance": 1e-4,
    }
    return expand(
        {
            "grid": [
                {
                    **common,
                    "width": 30,
                    "solver": "gd",
                    "iterations": 20,
                    "method": "full",
                    **options,
                }
            ]
        }
    )


def test_each_victim_is_trained_once_and_goes_when_it_is_no_longer_needed(tmp_path: Path) -> None:
    jobs, store, engine = (
        few(method=["full", "true"], training_seed=[0, 1]),
        Store(tmp_path),
        Here(),
    )
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
    assert (
        json.loads((tmp_path / "other" / "failures" / f"{jobs[0].name}.json").read_text())["error"]
        == "Error: two"
    )
    assert run(jobs, store, Here()) == {}
    assert not list((tmp_path / "other" / "failures").iterdir())


def test_a_lost_worker_is_not_held_against_a_job(tmp_path: Path) -> None:
    jobs = few()
    assert run(jobs, Store(tmp_path), Here(["lost", None, "lost", "lost", "lost", None])) == {}
    assert set(
        run(jobs, Store(tmp_path / "b"), Here([None, "lost", "lost", "lost", "lost"]))
    ) == set(jobs)
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


def test_each_job_is_a_task_of_its_own_with_estimates(tmp_path: Path) -> None:
    jobs = (
        *few(reconstruction_seed=[0, 1], method=["full", "subspace"]),
        *few(reconstruction_seed=[0, 1], solver="auto", iterations=50),
        *few(training_seed=1, parameters="all"),
    )
    store = Store(tmp_path)
    trainings, attacks = tasks_of([*jobs, *jobs], store, MACHINE, {})
    assert [task.job for task in attacks] == list(jobs)  # none twice
    assert [task.job.recipe.seed for task in trainings.values()] == [0, 1]
    assert set(trainings) == {job.victim_name for job in jobs}
    for task in (*trainings.values(), *attacks):
        assert task.seconds > 0
        assert task.bytes > 0
    # Gradient descent with more iterations takes longer, a wider network takes more memory.
    (small, *_), (long,), (wide,) = (
        tasks_of(few(**more), store, MACHINE, {})[1]
        for more in ({}, {"iterations": 10**5}, {"width": 10**6})
    )
    assert long.seconds > 10 * small.seconds
    assert wide.bytes > 1.5 * small.bytes  # most of the small one is torch


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_work_for_the_gpus_of_a_cluster_is_estimated_on_a_machine_without_one(
    tmp_path: Path,
) -> None:
    machine = Machine.measured(torch.device("cuda"))
    jobs = [job for solver in ("gd", "lm", "auto") for job in few(solver=solver)]
    trainings, attacks = tasks_of(jobs, Store(tmp_path), machine, {})
    assert len(attacks) == 3
    assert all(task.device == "cuda" for task in (*trainings.values(), *attacks))


def test_a_victim_that_cannot_be_trained_does_not_take_others_along(tmp_path: Path) -> None:
    jobs, store = few(reconstruction_seed=[0, 1], training_seed=[0, 1, 2]), Store(tmp_path)

    class Refusing(Here):
        def wait(self, seconds: float) -> list[Ended]:
            assert self._task is not None
            if self._task.trains and self._task.job.recipe.seed == 0:
                self._fail.insert(0, "Error: never")
            return super().wait(seconds)

    engine = Refusing()
    failures = run(jobs, store, engine)
    assert failures == {job: "its victim: Error: never" for job in jobs if job.recipe.seed == 0}
    assert sum(task.trains for task in engine.done) == 4
    assert sum(not task.trains for task in engine.done) == 4
    assert all(store.has(job) for job in jobs if job.recipe.seed != 0)
    assert not list((tmp_path / "victims").iterdir())
    everything = Here(["Error"] * 6)
    assert len(run(jobs, Store(tmp_path / "b"), everything)) == 6
    assert all(task.trains for task in everything.done)


def test_nor_does_one_that_cannot_be_attacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, store = few(reconstruction_seed=[0, 1], training_seed=[0, 1, 2]), Store(tmp_path)
    attack = perform_file._attack

    def bad(store: Store, job: Job, device: torch.device) -> None:
        if job.recipe.seed == 1:
            raise ValueError("not this one")
        attack(store, job, device)

    monkeypatch.setattr(perform_file, "_attack", bad)
    engine = Here()
    failures = run(jobs, store, engine)
    assert failures == {job: "ValueError: not this one" for job in jobs if job.recipe.seed == 1}
    assert sum(not task.trains for task in engine.done) == 2 + 2 * 2 + 2
    assert not list((tmp_path / "victims").iterdir())


def test_an_interrupted_attack_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, store = few(), Store(tmp_path)
    whole = perform_file.reconstruct
    monkeypatch.setattr(
        perform_file,
        "reconstruct",
        lambda *a, **k: replace(whole(*a, **k), status=Status.INTERRUPTED),
    )
    with pytest.raises(KeyboardInterrupt):
        run(jobs, store, Here())
    assert not store.has(jobs[0])
    monkeypatch.undo()
    assert run(jobs, store, Here()) == {}


def test_a_plan_that_grew_runs_what_is_new(tmp_path: Path) -> None:
    store, engine = Store(tmp_path), Here()
    run(few(training_seed=[0, 1]), store, Here())
    assert run(few(training_seed=[0, 1, 2]), store, engine) == {}
    assert [(task.trains, task.job.recipe.seed) for task in engine.done] == [(True, 2), (False, 2)]


def test_what_version_0_1_0_has_left_in_a_folder_counts(tmp_path: Path) -> None:
    path, store = ROOT / "docs" / "results" / "synthetic.csv", Store(tmp_path)
    with path.open(newline="") as stream:
        header = next(csv.reader(stream))
    rows = read_table(path)[::60]
    for row in rows:
        content = {
            "job": {name: row[name] for name in header if name in column_kinds()},
            "result": {name: row[name] for name in RESULTS},
            "seconds": {**{name: row[name] for name in SECONDS}, "group_seconds": 1.0},
        }
        write_bytes(tmp_path / "results" / f"{row['job']}.json", json_bytes(content))
    jobs = [Job.of({name: row[name] for name in column_kinds()}) for row in rows]
    assert all(store.has(job) for job in jobs)
    assert {row["job"]: row for row in table(store)} == {row["job"]: row for row in rows}
    assert tasks_of(jobs, store, MACHINE, {}) == ({}, [])
    # A victim that it trained: options that came later are not in its file.
    victim = {"recipe": {"dataset": "synthetic", "n": 4, "width": 30}}
    (job,) = few(dim=60, rank=30, dtype="float32", tolerance=1e-7)
    write_bytes(store.victim(job) / "train.json", json_bytes(victim))
    assert store.has_victim(job)


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
    assert parquet.read_table(tmp_path / "t.parquet").column("rho").to_pylist() == [
        row["rho"] for row in rows
    ]
    with pytest.raises(OptionError, match=r"FILE\.csv"):
        write_table(rows, tmp_path / "t.txt")


def test_tables_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="expected the columns"):
        read_table(tmp_path / "t.csv")
    jobs, store = few(), Store(tmp_path)
    run(jobs, store, Here())
    (row,) = table(store)
    for bad in (
        {"rho": "abc"},
        {"rho": float("nan")},
        {"width": "wide"},
        {"width": 1.5},
        {"bias": 7},
    ):
        (tmp_path / "t.csv").write_bytes(csv_bytes([{**row, **bad}]))
        with pytest.raises(FileError, match=f"expected {next(iter(bad))}"):
            read_table(tmp_path / "t.csv")
    (tmp_path / "t.csv").write_bytes(
        csv_bytes([{**row, "subspace_rank": "²"}])
    )  # a digit, and no number
    assert read_table(tmp_path / "t.csv")[0]["subspace_rank"] == "²"
    whole = csv_bytes([row])
    for more in (
        b"a\n",
        whole.splitlines()[1] + b",1\n",
        b"a\n" * 300_000,
    ):  # a row of everything for each of these?
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
    for odd in (
        {"x": torch.ones(2, 2)},
        {"inputs": torch.ones(2)},
        {"inputs": torch.ones(2, 2, dtype=torch.int8)},
    ):
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
            sweep_command(path, killed, "--workers", "2"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
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


def _listening() -> None:
    """Whoever starts the tests in the background has told them to ignore some signals."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _any_of_group(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "code"), [(signal.SIGHUP, 129), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_workers_too_and_keeps_what_is_done(
    number: signal.Signals, code: int, tmp_path: Path
) -> None:
    path, out = plan(tmp_path), tmp_path / "out"
    process = subprocess.Popen(
        sweep_command(path, out, "--workers", "2", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_listening,
    )
    while process.poll() is None and not list(out.glob("results/*.json")):
        time.sleep(0.005)
    os.killpg(process.pid, number)
    answer, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert "interrupted; " in said
    done = json.loads(answer)["done"]
    assert 0 < done <= len(list(out.glob("results/*.json"))) < 20
    until = time.monotonic() + 30
    while _any_of_group(process.pid) and time.monotonic() < until:
        time.sleep(0.02)
    assert not _any_of_group(process.pid)
    assert all(Store(out).has(job) for job, _, _ in Store(out).results())


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


ATTACK = """
from dataclasses import dataclass
from pathlib import Path

import torch

import recollect as rc

Path(__file__).with_name("imported").touch()


@dataclass(frozen=True, kw_only=True)
class Guess:
    word: str = "plain"
    scale: float = 1.0
    restarts: int = 7  # so is an option of the built-in attacks called, which has another default

    @property
    def needs(self):
        return rc.Needs()

    def cost(self, victim, n, machine):
        return rc.Cost()

    def calibrated(self, victim):
        return False

    def run(self, victim, n, context):
        generator = torch.Generator().manual_seed(context.seed)
        points = torch.randn(n, victim.d, generator=generator, dtype=torch.float64)
        told = self.restarts / 10 + (0.01 if self.word == "loud" else 0.0)
        return rc.Reconstruction(inputs=self.scale * points, loss=told, status=rc.Status.ITERATIONS)
"""
OWN_PLAN = """
[common]
dataset = "synthetic"
n = 4
dim = 5
rank = 2
width = 30
tolerance = 1e-4

[[grid]]
attack = "guessing:Guess"
word = ["plain", "loud"]
scale = [1, 2.5]
reconstruction_seed = [0, 1]

[[grid]]
attack = "guessing:Guess"
restarts = 1

[[grid]]
attack = "projection"
iterations = 3
"""


def test_an_attack_of_ones_own_in_a_plan(tmp_path: Path) -> None:
    code, elsewhere, out = tmp_path / "code", tmp_path / "elsewhere", tmp_path / "out"
    code.mkdir()
    elsewhere.mkdir()
    (code / "guessing.py").write_text(ATTACK)
    path = tmp_path / "plan.toml"
    path.write_text(OWN_PLAN)
    there = {**os.environ, "PYTHONPATH": str(code)}
    command = sweep_command(path, out, "--workers", "2", "--json")

    def call(*more: str, env: dict[str, str] = there) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *more], env=env, cwd=elsewhere, capture_output=True, text=True, check=False
        )

    listed = call("--dry-run")
    assert listed.returncode == 0, listed.stderr
    assert sum("guessing:Guess of synthetic" in line for line in listed.stderr.splitlines()) == 9
    done = call()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"jobs": 10, "done": 10, "run": 10, "failed": []}
    assert json.loads(call().stdout)["run"] == 0

    # A record is data: reading results runs nobody's code, even where it could be found.
    (code / "imported").unlink()
    export = [sys.executable, "-m", "recollect", "export", str(out), "--out"]
    for place, env in ((code, there), (elsewhere, dict(os.environ))):
        csv_file = tmp_path / f"{place.name}.csv"
        subprocess.run([*export, str(csv_file)], cwd=place, env=env, check=True)
    assert not (code / "imported").exists()
    rows = read_table(tmp_path / "code.csv")
    assert rows == read_table(tmp_path / "elsewhere.csv") == table(Store(out))
    own = [row for row in rows if row["attack"] == "guessing:Guess"]
    assert len(own) == len({row["job"] for row in own}) == 9
    assert {row["attack"] for row in rows} == {"guessing:Guess", "projection"}
    # What it was given reached it, what it was not given is its own default, the table holds it.
    given = [json.loads(row["attack_options"]) for row in own]
    assert sum("restarts" in one for one in given) == 1
    for row, one in zip(own, given, strict=True):
        told = one.get("restarts", 7) / 10 + (0.01 if one.get("word") == "loud" else 0.0)
        assert row["residual"] == pytest.approx(told)
        assert row["status"] == "iterations"
        assert [row[name] for name in ("solver", "iterations", "restarts", "confidence")] == [
            None
        ] * 4
        job = Job.of({name: row[name] for name in column_kinds()})
        assert job.name == row["job"]
        assert job.columns() == {name: row[name] for name in column_kinds()}
    apart = {(row["attack_options"], row["reconstruction_seed"]): row["rho_closest"] for row in own}
    assert len(apart) == 9

    # Without the module a plan that names it is refused, whatever is done already.
    missing = call(env=dict(os.environ))
    assert missing.returncode == 2
    assert "expected --attack to name a class, got guessing:Guess" in missing.stderr
    for wrong, message in (
        ("speed = 3", "expected options of --attack guessing:Guess (--word, --scale, --restarts)"),
        ('scale = "large"', "expected --scale to be a number, got 'large'"),
        ("word = 1979-05-27", "expected word to be text, a number or true or false"),
        ("scale = nan", "expected scale to be text, a number or true or false"),
    ):
        path.write_text(f"{OWN_PLAN.split('word')[0]}{wrong}")
        refused = call()
        assert refused.returncode == 2
        assert message in refused.stderr


def test_data_sets_by_name_lie_where_one_says(tmp_path: Path) -> None:
    import numpy as np

    generator = np.random.default_rng(0)
    np.savez(
        tmp_path / "mine.npz",
        inputs=generator.normal(size=(9, 5)),
        targets=generator.normal(size=(9, 1)),
    )
    jobs, store = few(dataset="mine"), Store(tmp_path / "out")
    with pytest.raises(OptionError, match="mine"):
        tasks_of(jobs, store, MACHINE, {})
    tasks = tasks_of(jobs, store, MACHINE, {"mine": str(tmp_path / "mine.npz")})
    assert Sweep(store).run(*tasks, Here(), lambda progress: None) == {}
