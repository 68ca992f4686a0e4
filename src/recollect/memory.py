"""How much memory a computation may take. Not what is free now: the same machine and limit must always decide alike."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_LIMIT: ContextVar[int | None] = ContextVar("memory limit", default=None)


def spoken(size: int | float) -> str:
    """A size as people say it: 17 MB, 1.2 GB."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.2g} {unit}" if size < 10 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.0f} TB"


def total_memory(device: torch.device) -> int:
    """All the machine has, or the limit that `at_most` set."""
    there = _there(device)
    limit = _LIMIT.get()
    return there if limit is None else min(there, limit)


def _there(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def at_most(bytes: int | None) -> Iterator[None]:
    """Within, every choice between a fast path and a small one is made as if the machine had no more than this."""
    token = _LIMIT.set(bytes)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def is_out_of_memory(error: BaseException) -> bool:
    """Python, CUDA and torch's allocator on the CPU each say it in their own way; the last as a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("alloc", "overflow"))
