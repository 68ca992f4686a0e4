"""Progress, as the long loops see it: open a task, report how far it is. The command line draws a bar from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Report(Protocol):
    def __call__(self, done: int, message: str) -> None:
        """`done` units of the task are done."""


@runtime_checkable
class Progress(Protocol):
    def __call__(self, task: str, total: int | None) -> AbstractContextManager[Report]:
        """Open a task of `total` units (None: not known)."""


@contextmanager
def quiet(task: str, total: int | None) -> Iterator[Report]:
    """Progress for nobody."""
    yield lambda done, message: None


class OutOfTime(KeyboardInterrupt):
    """The time is over: a run ends as it would on Ctrl-C, with the best it has found."""


def until(deadline: float, progress: Progress) -> Progress:
    """The same progress, whose reports end the run once `time.monotonic()` has passed the deadline."""

    @contextmanager
    def limited(task: str, total: int | None) -> Iterator[Report]:
        with progress(task, total) as report:

            def checked(done: int, message: str) -> None:
                report(done, message)
                if time.monotonic() > deadline:
                    raise OutOfTime

            yield checked

    return limited
