"""Random streams for the different uses of one seed. No two uses may share random numbers."""

from __future__ import annotations

import hashlib

import torch


def stream(use: str, seed: int) -> torch.Generator:
    """A generator for this use of the seed.

    A hash of the use and the seed distinguishes the uses. Shifted seeds (seed + 2³²) would repeat
    one another, because torch's CPU generator uses only the low 32 bits of a seed.
    """
    digest = hashlib.sha256(f"{use} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
