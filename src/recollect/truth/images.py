"""Pixel space: how images become the network's inputs, and inputs become images for display.

    x = √d · u/‖u‖,   u = (pixels/255 − mean)/std,   one scalar mean and std for the whole set

Flat inputs are laid out channels first, as in torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from recollect.shapes import Float, Tensor


@dataclass(frozen=True)
class PixelSpace:
    """How images of `shape` (channels, height, width) were standardised."""

    shape: tuple[int, int, int]
    mean: float
    std: float

    def standardise(self, pixels: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return (pixels - self.mean) / self.std

    def pixels(self, X: Float[Tensor, "n d"], norms: Float[Tensor, " n"]) -> np.ndarray:
        """n×H×W×3 bytes. `norms` are the ‖u_i‖, which scaling to √d removed. For a reconstruction,
        they are the norms of the matched true points."""
        direction = X / torch.linalg.vector_norm(X, dim=1, keepdim=True).clamp_min(1e-300)
        unit = (self.mean + self.std * direction * norms[:, None]).clamp(0, 1)
        return _to_bytes(unit, self.shape)


def guess_shape(d: int) -> tuple[int, int, int] | None:
    """(3, s, s) for d = 3s², (1, s, s) for d = s² (s ≥ 8), else None (not an image)."""
    for channels in (3, 1):
        side = math.isqrt(d // channels)
        if side >= 8 and channels * side * side == d:
            return channels, side, side
    return None


def stretch(X: Float[Tensor, "n d"], shape: tuple[int, int, int]) -> np.ndarray:
    """Pixels if nothing is known about the data: the range from the 1st to the 99th percentile of
    each image is stretched to the full range of brightness."""
    low, high = torch.quantile(X, X.new_tensor([0.01, 0.99]), dim=1, keepdim=True)
    return _to_bytes(((X - low) / (high - low).clamp_min(1e-12)).clamp(0, 1), shape)


def _to_bytes(unit: Tensor, shape: tuple[int, int, int]) -> np.ndarray:
    array = (
        (255 * unit.reshape(-1, *shape)).round().to(torch.uint8).permute(0, 2, 3, 1).cpu().numpy()
    )
    return np.repeat(array, 3, axis=3) if array.shape[3] == 1 else array
