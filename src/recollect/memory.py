"""How much memory a machine has. All of it, not what is free now: the same machine must always decide alike."""

from __future__ import annotations

import os

import torch


def total_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
