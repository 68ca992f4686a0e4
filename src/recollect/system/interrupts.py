"""Whether the user asked a run to stop, by Ctrl-C or by a signal that ends a process.

An attack that is interrupted returns the best that it has found, so whoever calls several attacks
cannot rely on an exception to learn of the interruption.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextmanager
def noticed() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether such a signal has arrived since. Handlers that are
    installed do what they did before."""
    arrived: list[int] = []
    before: dict[int, Any] = {}
    # Python runs signal handlers in its main thread, and only that thread may set them.
    if threading.current_thread() is threading.main_thread():
        handlers = {number: signal.getsignal(number) for number in _SIGNALS}
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
