"""(GGᵀ) α = GΔθ (eq:linear_system_for_alpha): the small dense solve behind every span that can form its Gram."""

from __future__ import annotations

import torch

from recollect.shapes import Float, Tensor


def solve_gram(
    K: Float[Tensor, "k k"], B: Float[Tensor, "k c"], jitter: Float[Tensor, ""] | None = None
) -> Float[Tensor, "k c"]:
    """α with (K + jitter·diag K) α = B, by Cholesky in float64; NaN throughout where K is not positive definite.

    Failure is a value and not an exception so that nothing waits for the device: the loop undoes such a step and
    raises the jitter, on the device as well (`solve/loop.py`).
    """
    K, B = K.to(torch.float64, copy=True), B.double()
    if jitter is not None:
        K.diagonal().mul_(1 + jitter)
    factor, info = torch.linalg.cholesky_ex(K)
    alpha = torch.cholesky_solve(B, factor)
    return torch.where(info == 0, alpha, torch.nan)
