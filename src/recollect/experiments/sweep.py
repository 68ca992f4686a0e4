"""All jobs of a plan: what is done is skipped, each victim is trained once, what fails is tried once more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from recollect.experiments.engines import Ended, Engine
from recollect.experiments.estimate import Cost, attack_cost, dimensions, share, training_cost
from recollect.experiments.job import Job
from recollect.experiments.perform import Task
from recollect.experiments.store import Store
from recollect.machine import Machine

_TRIES, _TRIES_IF_LOST = 2, 4
"""A job is tried once more. One whose worker died is tried more often: that need not be its fault."""
_LOOK = 0.5


@dataclass(frozen=True)
class Progress:
    """How far a sweep is."""

    done: int
    total: int
    failed: int
    seconds: float
    """Estimated of what is done, and of all."""
    all_seconds: float
    elapsed: float

    @property
    def left(self) -> float | None:
        """Seconds left, if it goes on as it did."""
        return self.elapsed * (self.all_seconds / self.seconds - 1) if self.seconds > 0 else None


def tasks_of(
    jobs: Sequence[Job], store: Store, machine: Machine, sources: Mapping[str, str]
) -> tuple[dict[str, Task], list[Task]]:
    """Trainings by the name of their victim, and attacks; of jobs that are not done.

    Jobs that share their products are one task, and always all of them: what comes of each depends, by rounding, on
    which they are.
    """
    # Workers may have another working directory.
    paths = {job.recipe.dataset for job in jobs if Path(job.recipe.dataset).exists()}
    sources = {**{path: str(Path(path).absolute()) for path in paths}, **sources}
    sizes = dimensions(tuple(jobs), sources)

    def task(some: tuple[Job, ...], trains: bool, cost: Cost) -> Task:
        folder, device = store.folder.absolute(), machine.device.type
        return Task(some, trains, folder, device, dict(sources), cost.bytes, cost.seconds)

    together = _together(jobs, lambda some: share(some, sizes, machine))
    chosen = [some for some in together if not all(store.has(job) for job in some)]
    trainings: dict[str, Task] = {}
    for job in (job for some in chosen for job in some):
        if job.victim_name not in trainings and not store.has_victim(job):
            trainings[job.victim_name] = task((job,), True, training_cost(job, sizes, machine))
    attacks = [task(some, False, attack_cost(some, sizes, machine)) for some in chosen]
    return trainings, attacks


def _together(jobs: Sequence[Job], share: Callable[[Sequence[Job]], bool]) -> list[tuple[Job, ...]]:
    """Jobs of victims that were trained alike, or else of one victim, if they share; others alone. In the plan's order.

    Victims go together that have the same reconstruction seeds.
    """
    groups: dict[str, tuple[Job, ...]] = {}
    jobs = list({job.name: job for job in jobs}.values())
    for job in jobs:
        name = job.group.name
        groups[name] = (*groups.get(name, ()), job)
    cells: dict[tuple[str, tuple[int, ...]], list[tuple[Job, ...]]] = {}
    for group in groups.values():
        cells.setdefault((group[0].cell.name, tuple(job.reconstruction_seed for job in group)), []).append(group)

    def split(cell: list[tuple[Job, ...]]) -> Iterator[tuple[Job, ...]]:
        if share(whole := tuple(job for group in cell for job in group)):
            yield whole
            return
        for group in cell:
            yield from [group] if share(group) else [(job,) for job in group]

    place = {job.name: k for k, job in enumerate(jobs)}
    return sorted((some for cell in cells.values() for some in split(cell)), key=lambda some: place[some[0].name])


@dataclass
class _Pending:
    """An attack that cannot begin yet, and the victims it waits for."""

    task: Task
    missing: set[str]


@dataclass
class Sweep:
    """The state of a sweep: what waits for a victim, what can be placed, what is under way, what is over."""

    store: Store
    keep_victims: bool = False
    _ready: list[Task] = field(default_factory=list)
    _waiting: dict[str, list[_Pending]] = field(default_factory=dict)
    """Attacks by the victims that are not trained yet; one may wait for several."""
    _left: dict[str, int] = field(default_factory=dict)
    """Attacks on each victim that are not over."""
    _tries: dict[tuple[tuple[Job, ...], bool, bool], int] = field(default_factory=dict)
    _running: int = 0
    _failures: dict[Job, str] = field(default_factory=dict)

    def run(
        self,
        trainings: Mapping[str, Task],
        attacks: Iterable[Task],
        engine: Engine,
        report: Callable[[Progress], None],
    ) -> dict[Job, str]:
        """Carry all of it out; what failed, and why."""
        attacks = list(attacks)
        for task in attacks:
            pending = _Pending(task, {victim for victim in task.victims if victim in trainings})
            for victim in task.victims:
                self._left[victim] = self._left.get(victim, 0) + 1
                if victim in pending.missing:
                    if victim not in self._waiting:
                        self._waiting[victim] = []
                        self._ready.append(trainings[victim])
                    self._waiting[victim].append(pending)
            if not pending.missing:
                self._ready.append(task)
        total = sum(len(task.jobs) for task in attacks)
        cost = sum(task.seconds for task in [*attacks, *trainings.values()])
        began, done, spent = time.perf_counter(), 0, 0.0
        while self._ready or self._running:
            self._place(engine)
            for ended in engine.wait(_LOOK):
                self._running -= 1
                for task in self._over(ended):
                    spent += task.seconds
                    done += 0 if task.trains else len(task.jobs)
            elapsed = time.perf_counter() - began
            report(Progress(done, total, len(self._failures), spent, cost, elapsed))
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
        """The tasks that are over with it: none if it is tried again; all that waited for a victim that will not be."""
        task, error = ended.task, ended.error
        if error is None and not task.trains and not all(self.store.has(job) for job in task.jobs):
            error = "no result was written"
        if error is None:
            if task.trains:  # its attacks come next, while it may still be in the disk's cache
                self._began(self._waiting.pop(task.jobs[0].victim_name), task.jobs[0].victim_name)
            else:
                self._released(task)
            return [task]
        key = (task.jobs, task.trains, ended.lost)
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        if tries < (_TRIES_IF_LOST if ended.lost else _TRIES):
            self._ready.append(task)
            return []
        if not task.trains and len(task.victims) > 1:  # it may be one of them: each by itself
            seconds = task.seconds / len(task.victims)
            self._ready += [replace(task, jobs=jobs, seconds=seconds) for jobs in task.victims.values()]
            return []
        failed = self._given_up(task.jobs[0].victim_name) if task.trains else [task]
        for one in failed:
            for job in one.jobs:
                if not self.store.has(job):
                    self._failures[job] = f"its victim: {error}" if task.trains else error
                    self.store.fail(job, self._failures[job])
            self._released(one)
        return [task, *failed] if task.trains else failed

    def _began(self, waited: Sequence[_Pending], victim: str) -> None:
        """What waited for this victim alone comes next."""
        for pending in waited:
            pending.missing.discard(victim)
        self._ready[:0] = [pending.task for pending in waited if not pending.missing and pending.task.jobs]

    def _given_up(self, victim: str) -> list[Task]:
        """The jobs of a victim that will not be; what waited with them goes on without."""
        waited = self._waiting.pop(victim)
        failed = []
        for pending in waited:
            jobs, lost = pending.task.jobs, pending.task.victims[victim]
            seconds = pending.task.seconds * len(lost) / len(jobs)
            failed.append(replace(pending.task, jobs=lost, seconds=seconds))
            left = tuple(job for job in jobs if job not in lost)
            pending.task = replace(pending.task, jobs=left, seconds=pending.task.seconds - seconds)
        self._began(waited, victim)
        return failed

    def _released(self, task: Task) -> None:
        for victim, jobs in task.victims.items():
            self._left[victim] -= 1
            if not self._left[victim] and not self.keep_victims:
                self.store.drop_victim(jobs[0])
