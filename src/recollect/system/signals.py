"""The signals that ask a command to end: SIGINT (Ctrl-C), SIGTERM and SIGHUP.

Inside `interrupts` each of them raises `Interrupted`, which is a KeyboardInterrupt, so that a
search keeps its best result so far. Python runs the handlers of signals between two bytecodes: a
single long call of torch, such as the decomposition of a very large ΔW1, ends before the signal is
noticed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SAME_SECONDS = 1.0
"""Signals that follow each other faster than this are one request to end. A terminal that is
closed, and `timeout`, send two at once."""


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


def exit_code(stop: KeyboardInterrupt) -> int:
    """The exit status for an interruption: 130 for SIGINT, 143 for SIGTERM, 129 for SIGHUP."""
    return stop.exit_code if isinstance(stop, Interrupted) else 128 + signal.SIGINT


@dataclass
class Received:
    """What happened since the handlers were installed."""

    first: int | None = None
    """The number of the first signal; None if there was none."""
    written: list[Path] = field(default_factory=list)
    """The files that were written."""
    over: bool = False
    """Whether the work is over, so that a signal is noted and raises nothing."""
    _last: float = 0.0
    _holds: int = 0
    _waiting: bool = False

    @property
    def exit_code(self) -> int | None:
        """The exit status that the first signal asks for."""
        return None if self.first is None else 128 + self.first

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The handler of the signals."""
        now = time.monotonic()
        again = self.first is not None
        if again and now - self._last < _SAME_SECONDS:
            return
        self.first, self._last = self.first or number, now
        if self._holds:
            self._waiting = True
        elif not self.over:
            raise Interrupted(self.first)

    def hold(self) -> None:
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self._waiting and not self._holds and self.first is not None:
            self._waiting = False
            if not self.over:
                raise Interrupted(self.first)


_received: Received | None = None
"""None where the handlers of this module are not installed."""


@contextmanager
def interrupts() -> Iterator[Received]:
    """Inside this context the three signals raise `Interrupted`.

    A signal that is ignored stays ignored: `nohup`, and shells that start a command in the
    background, ask for that. A handler that the caller installed is kept. The context has no effect
    outside the main thread, where Python allows no handlers.
    """
    global _received
    received, outer = Received(), _received
    ours = (signal.SIG_DFL, signal.default_int_handler)
    here = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ENDING} if here else {}
    before = {number: handler for number, handler in before.items() if handler in ours}
    _received = received
    try:
        for number in before:
            signal.signal(number, received.handle)
        yield received
    finally:
        received.over = True
        for number, handler in before.items():
            signal.signal(number, handler)
        _received = outer


@contextmanager
def postponed() -> Iterator[None]:
    """A signal that comes inside this context raises `Interrupted` at its end. Files are written
    inside it, so that not even a second Ctrl-C leaves some of them old and others new."""
    received = _received
    if received is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    received.hold()
    try:
        yield
    finally:
        received.release()


def note_written(paths: Iterable[Path]) -> None:
    """Note that these files were written, for the message of an interrupted command."""
    if _received is not None:
        _received.written += paths


@contextmanager
def blocked() -> Iterator[None]:
    """The three signals wait until the end of this context, also for a process that is started
    inside it, until that process unblocks them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_to_parent() -> None:
    """In a worker process: ignore Ctrl-C and the end of the terminal, which the parent process
    gets too and answers by ending its workers."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether one of the three signals has arrived since. Handlers that
    are installed do what they did before.

    An attack that is interrupted returns the best that it has found, so whoever calls several
    attacks cannot rely on an exception to learn of the interruption.
    """
    arrived: list[int] = []
    before: dict[int, Any] = {}
    # Python runs signal handlers in its main thread, and only that thread may set them.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in ENDING}
        before = {number: handler for number, handler in handlers.items() if callable(handler)}

    def handle(number: int, frame: FrameType | None) -> None:
        arrived.append(number)
        before[number](number, frame)

    try:
        for number in before:
            signal.signal(number, handle)
        yield lambda: bool(arrived)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
