"""The device for the computations: which one, how much memory may be used, how fast it is, and how
many threads to use."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch

from recollect.errors import OptionError


def choose_device(device: torch.device | str) -> torch.device:
    """The device named `auto`, `cpu` or `cuda`; `auto` is a GPU where there is one."""
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise OptionError(
            f"expected --device auto, cpu or cuda, got {device!r}; choose one of those"
        )
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionError("expected a CUDA device, got none on this machine; use --device cpu")
    return torch.device(device)


_LIMIT: ContextVar[int | None] = ContextVar("memory limit", default=None)
"""Bytes of memory that a computation may use. The limit does not depend on how much memory is free,
because the same machine must always make the same choices."""


def readable_bytes(size: int | float) -> str:
    """A size in a unit that people read easily: 17 MB, 1.2 GB."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.2g} {unit}" if size < 10 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.0f} TB"


def total_memory(device: torch.device) -> int:
    """All the memory of the device, or the limit that `memory_limit` sets if that is lower."""
    installed = _installed_memory(device)
    limit = _LIMIT.get()
    return installed if limit is None else min(installed, limit)


def _installed_memory(device: torch.device) -> int:
    if device.type == "cuda":
        if not torch.cuda.is_available():  # no GPU here: assume a typical cluster GPU
            return int(Machine.memory)
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@contextmanager
def memory_limit(bytes: int | None) -> Iterator[None]:
    """Inside this context every choice of algorithm is made as if the machine had only this much
    memory."""
    token = _LIMIT.set(bytes)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out. The CPU allocator of torch raises a plain
    RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(
        word in str(error) for word in ("alloc", "overflow")
    )


@dataclass(frozen=True)
class Machine:
    """A device and its measured speed. Cost estimates divide operations by these rates."""

    device: torch.device
    single: float
    """Floating-point operations per second in float32."""
    double: float
    """Floating-point operations per second in float64."""
    memory: float = 1e11
    """Bytes of memory."""

    @classmethod
    def measured(cls, device: torch.device, threads: int | None = None) -> Machine:
        """Time a matrix product in both precisions, with `threads` threads.

        If `threads` is None, the number of threads is the one that torch uses now.
        """
        if (
            device.type == "cuda" and not torch.cuda.is_available()
        ):  # no GPU here: assume the rates of a typical cluster GPU
            return cls(device, 2e13, 1e13)
        before = torch.get_num_threads()
        torch.set_num_threads(threads or before)
        try:
            rates = (_rate(device, torch.float32), _rate(device, torch.float64))
            return cls(device, *rates, float(total_memory(device)))
        finally:
            torch.set_num_threads(before)


def _rate(device: torch.device, dtype: torch.dtype) -> float:
    size = 1024 if device.type == "cpu" else 8192
    A = torch.ones(size, size, device=device, dtype=dtype)
    best = 1e300
    for _ in range(3):
        began = time.perf_counter()
        float((A @ A)[0, 0])
        best = min(best, time.perf_counter() - began)
    return 2.0 * size**3 / best


ONE_THREAD_FLOPS = 2e8
"""Work below this many floating-point operations runs on one thread.

Measured on two cores, one of them busy: a fit of 1.3e8 operations takes 1.8 ms on one thread and 64
ms on two, because each of its twenty short parallel regions waits for the slower core. On two idle
cores the second thread saves a fifth of the time at that size, and nothing at a quarter of it.
"""


@contextmanager
def threads_for(flops: float, device: torch.device) -> Iterator[None]:
    """Inside this context torch uses one thread if the work is small and on the CPU. The setting is
    restored afterwards."""
    before = torch.get_num_threads()
    if device.type == "cpu" and flops < ONE_THREAD_FLOPS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
