"""The interface by which long loops report progress: they open a task and report how much of it is
done. The command line draws a bar from these reports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, runtime_checkable


@runtime_checkable
class Report(Protocol):
    """Called by a loop to report how much of its task is done."""

    def __call__(self, done: int, message: str) -> None:
        """`done` units of the task are done."""


@runtime_checkable
class Progress(Protocol):
    """Called to open a task."""

    def __call__(self, task: str, total: int | None) -> AbstractContextManager[Report]:
        """Open a task of `total` units (None: not known)."""


@contextmanager
def quiet(task: str, total: int | None) -> Iterator[Report]:
    """Show no progress."""
    yield lambda done, message: None
