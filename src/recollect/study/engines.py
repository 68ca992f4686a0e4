"""Engines, which carry out the tasks of a sweep.

An engine accepts tasks and reports how each one ended; it decides nothing else. `LocalEngine` uses
processes on this machine, each with its own share of the cores and one GPU if there are GPUs.
`RayEngine` (`ray_engine.py`) uses the workers of a Ray cluster.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Protocol, runtime_checkable

from recollect.study.perform import Task, perform
from recollect.system.signals import blocked, leave_to_parent


@dataclass(frozen=True)
class Ended:
    """A task that has ended. `error` is None if it succeeded. `lost` means that its worker died,
    which may not be the task's fault."""

    task: Task
    error: str | None = None
    lost: bool = False


@runtime_checkable
class Engine(Protocol):
    def __enter__(self) -> Engine: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def full(self) -> bool:
        """Whether no task at all can be placed now."""

    def room(self, task: Task) -> bool:
        """Whether there is enough free memory for this task."""

    def submit(self, task: Task) -> None: ...

    def wait(self, seconds: float) -> list[Ended]:
        """The tasks that have ended: at least one, unless the time runs out first."""


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    task: Task | None = None


class LocalEngine:
    """Worker processes that live as long as the engine; a worker that dies is replaced.

    Each worker uses a fixed number of threads, one by default: there are many small jobs, results
    do not depend on the number of cores, and workers do not compete for cores. A task waits while
    the memory estimates of the running tasks leave no room for it.
    """

    def __init__(
        self, workers: int, *, threads: int = 1, memory: float, gpus: Sequence[str] = ()
    ) -> None:
        self._count, self._threads, self._memory, self._gpus = workers, threads, memory, tuple(gpus)
        self._workers: list[_Worker] = []

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.join()
            worker.pipe.close()

    @property
    def full(self) -> bool:
        return sum(worker.task is not None for worker in self._workers) >= self._count

    def room(self, task: Task) -> bool:
        busy = [worker.task for worker in self._workers if worker.task]
        # A task whose estimate exceeds the memory is tried alone: the estimate may be wrong.
        return not busy or sum(one.bytes for one in [*busy, task]) <= self._memory

    def submit(self, task: Task) -> None:
        worker = next((one for one in self._workers if one.task is None), None)
        if worker is None:
            worker = self._hired(len(self._workers))
            self._workers.append(worker)
        worker.task = task
        with contextlib.suppress(OSError):  # the worker has died; `wait` will report it
            worker.pipe.send(task)

    def wait(self, seconds: float) -> list[Ended]:
        busy = {worker.pipe: worker for worker in self._workers if worker.task}
        ended = []
        for pipe in wait(list(busy), timeout=seconds):
            worker = busy[pipe]  # type: ignore[index]
            task, worker.task = worker.task, None
            assert task is not None
            try:
                ended.append(Ended(task, worker.pipe.recv()))
            except (EOFError, OSError):
                worker.process.join()
                worker.pipe.close()
                code = worker.process.exitcode
                place = self._workers.index(worker)
                self._workers[place] = self._hired(place)
                how = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
                ended.append(Ended(task, f"the worker died ({how})", lost=True))
        return ended

    def _hired(self, place: int) -> _Worker:
        # Spawn, not fork: it is unsafe to fork a process that uses threads and CUDA.
        context = multiprocessing.get_context("spawn")
        here, there = context.Pipe()
        gpu = self._gpus[place % len(self._gpus)] if self._gpus else None
        process = context.Process(
            target=work, args=(there, self._threads, gpu, os.getpid()), daemon=True
        )
        resource_tracker.ensure_running()  # it would unblock signals if it were started below
        with blocked():  # until the worker says what it does about them
            process.start()
        there.close()
        return _Worker(process, here)


def work(pipe: Connection, threads: int, gpu: str | None, parent: int) -> None:
    """Main loop of a local worker: receive a task, carry it out, and send back the error or None.

    The worker ends when its parent process ends, for whatever reason.
    """
    leave_to_parent()
    _end_with(parent)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    while True:
        try:
            task = pipe.recv()
        except (EOFError, OSError):
            return
        pipe.send(attempt(task, threads))


def attempt(task: Task, threads: int) -> str | None:
    """Carry out a task; returns the error message, or None if the task succeeded."""
    import torch

    torch.set_num_threads(threads)
    try:
        perform(task)
    except Exception as error:  # any error concerns this task only
        return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
    return None


def _end_with(parent: int) -> None:
    """End this process with its parent, so that no worker of a killed sweep goes on computing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, on Linux

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
