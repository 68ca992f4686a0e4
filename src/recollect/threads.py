"""One thread for small work: there, threads spend their time waiting for one another.

Measured on two cores, one of them busy with something else: a fit of 130 million operations takes 1.8 ms on one
thread and 64 ms on two, since each of its twenty short parallel regions ends with a wait for the slower core. On two
idle cores the second thread gains a fifth at that size, and nothing at a quarter of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL = 2e8
"""Floating-point operations between two waits below which one thread is the better choice."""


@contextmanager
def threads_for(flops: float, device: torch.device) -> Iterator[None]:
    """Within, torch uses one thread if the work is small and on the CPU; its setting is put back afterwards."""
    before = torch.get_num_threads()
    if device.type == "cpu" and flops < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
