"""The paper's synthetic data: points on √d·S^{d−1} within a random r-dimensional subspace, y_i =
gᵀx_i + ε_i."""

from __future__ import annotations

import math

import torch

from recollect.errors import OptionError
from recollect.system.seeds import stream
from recollect.truth.data.dataset import Dataset


def synthetic(
    *, n: int = 100, dim: int = 60, rank: int = 30, noise: float = 0.5, seed: int = 0
) -> Dataset:
    """x_i = √d·Uz_i/‖z_i‖ with z_i ~ N(0, I_r), U random orthonormal, g_j ~ N(0, 1/d), ε_i ~ N(0,
    σ²)."""
    if not (1 <= n <= 10**8 and 1 <= dim <= 10**8):
        raise OptionError(
            f"expected --n and --dim between 1 and 10⁸, got {n:.6g} and {dim:.6g}; give other sizes"
        )
    if not 1 <= rank <= dim:
        raise OptionError(
            f"expected --rank between 1 and --dim {dim}, got {rank}; a subspace of R^{dim} has no "
            "other"
        )
    if not (math.isfinite(noise) and noise >= 0):
        raise OptionError(
            f"expected --noise of zero or more, got {noise}; give a standard deviation"
        )
    generator = stream("data", seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    U = torch.linalg.qr(normal(dim, rank)).Q
    Z = normal(n, rank)
    X = math.sqrt(dim) * Z / torch.linalg.vector_norm(Z, dim=1, keepdim=True) @ U.T
    g = normal(dim) / math.sqrt(dim)
    y = X @ g + noise * normal(n)
    return Dataset(X, y[:, None], U, torch.full((n,), math.sqrt(dim), dtype=torch.float64))
