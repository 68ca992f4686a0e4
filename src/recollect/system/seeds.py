"""Random streams that one seed gives to several uses, none of which may share numbers with
another."""

from __future__ import annotations

import hashlib

import torch


def stream(use: str, seed: int) -> torch.Generator:
    """A generator for this use of the seed.

    The uses are told apart by a hash: torch's CPU generator looks at the low 32 bits of a seed
    alone, so that shifted seeds (seed + 2³²) would repeat one another.
    """
    digest = hashlib.sha256(f"{use} {seed}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "big"))
