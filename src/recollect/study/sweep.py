"""Run all jobs of a plan: finished jobs are skipped, each victim is trained once, and a task that
fails is tried once more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recollect.study.engines import Ended, Engine
from recollect.study.estimate import Estimate, attack_cost, dimensions, training_cost
from recollect.study.job import Job
from recollect.study.perform import Task
from recollect.study.store import Store
from recollect.system.device import Machine

_TRIES, _TRIES_IF_LOST = 2, 4
"""How often a task is tried in all. A task whose worker died is tried more often, because that need
not be the task's fault."""
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class SweepProgress:
    """The progress of a sweep."""

    done: int
    total: int
    failed: int
    seconds: float
    """Estimated seconds of the finished tasks."""
    all_seconds: float
    """Estimated seconds of all tasks."""
    elapsed: float

    @property
    def left(self) -> float | None:
        """Estimated seconds left, at the rate so far; None if nothing is finished."""
        return self.elapsed * (self.all_seconds / self.seconds - 1) if self.seconds > 0 else None


def tasks_of(
    jobs: Sequence[Job], store: Store, machine: Machine, sources: Mapping[str, str]
) -> tuple[dict[str, Task], list[Task]]:
    """The tasks of unfinished jobs: trainings by the name of their victim, and attacks."""
    # Workers may have another working directory.
    paths = {job.recipe.dataset for job in jobs if Path(job.recipe.dataset).exists()}
    sources = {**{path: str(Path(path).absolute()) for path in paths}, **sources}
    sizes = dimensions(tuple(jobs), sources)

    def task(job: Job, trains: bool, cost: Estimate) -> Task:
        folder, device = store.folder.absolute(), machine.device.type
        return Task(job, trains, folder, device, dict(sources), cost.bytes, cost.seconds)

    chosen = [job for job in {job.name: job for job in jobs}.values() if not store.has(job)]
    trainings: dict[str, Task] = {}
    for job in chosen:
        if job.victim_name not in trainings and not store.has_victim(job):
            trainings[job.victim_name] = task(job, True, training_cost(job, sizes, machine))
    return trainings, [task(job, False, attack_cost(job, sizes, machine)) for job in chosen]


@dataclass
class Sweep:
    """The state of a sweep: which tasks wait for a victim, are ready, are running, or failed."""

    store: Store
    keep_victims: bool = False
    _ready: list[Task] = field(default_factory=list)
    _waiting: dict[str, list[Task]] = field(default_factory=dict)
    """Attacks whose victim is not trained yet, by the name of the victim."""
    _left: dict[str, int] = field(default_factory=dict)
    """Number of unfinished attacks on each victim."""
    _tries: dict[tuple[Job, bool, bool], int] = field(default_factory=dict)
    _running: int = 0
    _failures: dict[Job, str] = field(default_factory=dict)

    def run(
        self,
        trainings: Mapping[str, Task],
        attacks: Iterable[Task],
        engine: Engine,
        report: Callable[[SweepProgress], None],
    ) -> dict[Job, str]:
        """Carry out all tasks; returns the jobs that failed, with their errors."""
        attacks = list(attacks)
        for task in attacks:
            victim = task.job.victim_name
            self._left[victim] = self._left.get(victim, 0) + 1
            if victim not in trainings:
                self._ready.append(task)
                continue
            if victim not in self._waiting:
                self._waiting[victim] = []
                self._ready.append(trainings[victim])
            self._waiting[victim].append(task)
        cost = sum(task.seconds for task in [*attacks, *trainings.values()])
        began, done, spent = time.perf_counter(), 0, 0.0
        while self._ready or self._running:
            self._place(engine)
            for ended in engine.wait(_POLL_SECONDS):
                self._running -= 1
                for task in self._over(ended):
                    spent += task.seconds
                    done += not task.trains
            elapsed = time.perf_counter() - began
            report(SweepProgress(done, len(attacks), len(self._failures), spent, cost, elapsed))
        return self._failures

    def _place(self, engine: Engine) -> None:
        left = []
        for k, task in enumerate(self._ready):
            if engine.full:
                left += self._ready[k:]
                break
            if engine.room(task):
                self._running += 1
                engine.submit(task)
            else:
                left.append(task)
        self._ready = left

    def _over(self, ended: Ended) -> list[Task]:
        """Handle the end of a task; returns the tasks that are finished by it.

        There are none if the task is tried again. If a training has failed for good, all
        attacks that waited for its victim are finished too.
        """
        task, error, victim = ended.task, ended.error, ended.task.job.victim_name
        if error is None and not task.trains and not self.store.has(task.job):
            error = "no result was written"
        if error is None:
            if task.trains:  # its attacks come next, while the victim may be in the disk cache
                self._ready[:0] = self._waiting.pop(victim)
            else:
                self._released(task)
            return [task]
        key = (task.job, task.trains, ended.lost)
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        if tries < (_TRIES_IF_LOST if ended.lost else _TRIES):
            self._ready.append(task)
            return []
        failed = self._waiting.pop(victim) if task.trains else [task]
        for one in failed:
            if not self.store.has(one.job):
                self._failures[one.job] = f"its victim: {error}" if task.trains else error
                self.store.fail(one.job, self._failures[one.job])
            self._released(one)
        return [task, *failed] if task.trains else failed

    def _released(self, task: Task) -> None:
        victim = task.job.victim_name
        self._left[victim] -= 1
        if not self._left[victim] and not self.keep_victims:
            self.store.drop_victim(task.job)
