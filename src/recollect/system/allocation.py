"""Freed memory is kept while an attack runs.

A step of the solver allocates and frees arrays of megabytes, over and over. By default glibc gives
such memory back to the system at once, and the system clears every page when it is asked for the
memory again. That took a third of the time of small problems (docs/benchmarks.md). Other C
libraries have no such setting, and there nothing is changed.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""The numbers of these parameters in malloc.h."""
_KEPT = 2**30
"""Larger arrays, and more free memory than this, are given back all the same."""
_USUAL = 2**25
"""Where glibc's own adjustment of both thresholds ends up once an array of this size was freed."""

_lock = threading.Lock()
_inside = 0


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Inside this context the process keeps the memory that it frees. At the end it is given back.

    The setting belongs to the process. Where several threads are inside, the last one ends it.
    """
    global _inside
    with _lock:
        _inside += 1
        if _inside == 1:
            _set(_KEPT)
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _set(_USUAL)
                _give_back()


def _set(size: int) -> None:
    if _LIBRARY is None:
        return
    # Older versions take no more than 32 MB. The second setting alone would do harm: it ends the
    # adjustment of the first, which would stay at 128 KB.
    if _LIBRARY.mallopt(_MMAP_THRESHOLD, size) or _LIBRARY.mallopt(_MMAP_THRESHOLD, _USUAL):
        _LIBRARY.mallopt(_TRIM_THRESHOLD, size)


def _give_back() -> None:
    if _LIBRARY is not None:
        _LIBRARY.malloc_trim(0)


def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it has these functions."""
    try:
        library = ctypes.CDLL(None)
        library.mallopt, library.malloc_trim  # noqa: B018
    except (OSError, TypeError, AttributeError):  # TypeError: Windows has no library without a name
        return None
    return library


_LIBRARY = _glibc()
