"""Run tasks on the workers of a Ray cluster: an existing cluster, given by its address, or one that
is started here.

Ray places a task where its CPUs, GPUs and estimated memory are free, and waits while they are not.
A task whose worker or node fails is returned as lost. The folder of the sweep must be visible to
every node under the same path.
"""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from recollect.errors import OptionError, RunError
from recollect.study.engines import Ended, attempt
from recollect.study.perform import Task


class RayEngine:
    def __init__(
        self,
        *,
        address: str | None,
        workers: int,
        threads: int = 1,
        cpus: float = 1.0,
        gpus: float = 0.0,
        folder: Path,
    ) -> None:
        try:
            import ray
        except ImportError:
            raise OptionError(
                "expected the package ray for --engine ray, got none; pip install 'recollect[ray]'"
            ) from None
        self._ray: Any = ray
        self._address, self._workers, self._threads, self._folder = (
            address,
            workers,
            threads,
            folder,
        )
        self._needs = {"num_cpus": cpus, "num_gpus": gpus}
        self._running: dict[Any, Task] = {}

    def __enter__(self) -> RayEngine:
        ray = self._ray
        os.environ.setdefault(
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0"
        )  # the behaviour of Ray's next version; without it, Ray warns
        quiet = {"log_to_driver": False, "logging_level": "error", "configure_logging": False}
        polite = signal.getsignal(signal.SIGTERM)  # Ray replaces this handler
        try:
            if self._address is None:
                ray.init(address="local", num_cpus=self._workers, include_dashboard=False, **quiet)
            else:
                ray.init(address=self._address, **quiet)
        except Exception as error:  # Ray has no common error class for a missing cluster
            what = " ".join(str(error).split())[:200]
            where = self._address or "this machine"
            raise RunError(
                f"expected a Ray cluster at {where}, got: {what}; check --address"
            ) from None
        finally:
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, polite)
        self._attempt = ray.remote(_attempt_in)
        most = [
            max((node.get(kind, 0.0) for node in self._nodes()), default=0.0)
            for kind in ("CPU", "GPU")
        ]
        if self._needs["num_cpus"] > most[0] or self._needs["num_gpus"] > most[1]:
            ray.shutdown()
            cpus, gpus = self._needs["num_cpus"], self._needs["num_gpus"]
            raise OptionError(
                f"expected a node with {cpus:g} CPUs and {gpus:g} GPUs for a job, "
                f"got {most[0]:g} and {most[1]:g} at most; lower --cpus-per-job or --gpus-per-job"
            )
        return self

    def _nodes(self) -> list[dict[str, float]]:
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._ray.shutdown()

    @property
    def full(self) -> bool:
        # Accept more tasks than can run now: Ray has the next one at hand, and nodes may join.
        slots = self._ray.cluster_resources().get("CPU", 1.0) / max(self._needs["num_cpus"], 0.01)
        return len(self._running) >= 2 * float(slots)

    def room(self, task: Task) -> bool:
        return True  # Ray waits until there is enough memory

    def submit(self, task: Task) -> None:
        # A task that asks for more memory than any node has would wait forever. The request is
        # limited to the largest node, because the estimate may be wrong.
        most = max((node.get("memory", task.bytes) for node in self._nodes()), default=task.bytes)
        options = {**self._needs, "memory": int(min(task.bytes, most)), "max_retries": 0}
        self._running[
            self._attempt.options(**options).remote(task, self._threads, str(self._folder))
        ] = task

    def wait(self, seconds: float) -> list[Ended]:
        ray = self._ray
        done, _ = ray.wait(list(self._running), num_returns=1, timeout=seconds)
        ended = []
        for reference in done:
            task = self._running.pop(reference)
            try:
                ended.append(Ended(task, ray.get(reference)))
            except ray.exceptions.RayError as error:
                what = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
                ended.append(Ended(task, f"the worker was lost ({what})", lost=True))
        return ended


def _attempt_in(task: Task, threads: int, folder: str) -> str | None:
    if not Path(folder).is_dir():
        return (
            f"FileError: expected the folder {folder} on every node, got none here; use shared "
            "storage for --out"
        )
    return attempt(task, threads)
