"""What a device does in a second, measured on a matrix product; and the bytes it has."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from recollect.memory import total_memory


@dataclass(frozen=True)
class Machine:
    device: torch.device
    single: float
    """Floating-point operations a second in float32."""
    double: float
    memory: float = 1e11

    @classmethod
    def measured(cls, device: torch.device, threads: int | None = None) -> Machine:
        """`threads` None: as many as torch uses."""
        if device.type == "cuda" and not torch.cuda.is_available():  # those of a cluster: what such cards do
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
