"""k(p − F·n) ≥ n·q: equations for the coordinates alone, once the coefficients are eliminated.

For the last layer, k = min(n, rank ΔW_L), p is the width and F the number of θ_e at which gradients
are taken. The change ΔW_L = Σ_i α_i h_iᵀ has k independent rows. In each of them F·n of the p
equations go into the coefficients. With n < c points the change has rank n, however many outputs
there are. A point has q free coordinates (`Geometry.free_dimensions`).

A hidden layer with a inputs and b outputs changes by a sum of n outer products. A matrix of rank m
= min(n, a, b) is determined by m(a + b − m) numbers, so a wide layer gives fewer equations than it
has entries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from recollect.shapes import Theta
from recollect.victim.network import Network

_RANK_TOLERANCE = 1e-6
"""Singular values of ΔW_L below this share of the largest one count as zero."""
_ROUNDINGS = 10.0
"""Singular values below this multiple of the rounding error of the weights count as zero."""


def output_rank(network: Network, target: Theta, theta: Theta) -> int:
    """The numerical rank of the change [ΔW_L | Δb_L] of W_L in θ; c where it did not move.

    Repeated labels may lower it, and so does n < c.
    """
    last = network.last
    if last.weight not in set(target):
        return network.c
    parts = [target[name].double() for name in last.names if name in set(target)]
    delta = torch.cat([part if part.dim() > 1 else part[:, None] for part in parts], dim=1)
    values, W = torch.linalg.svdvals(delta), theta[last.weight]
    rounding = torch.finfo(W.dtype).eps / 2 * float(W.double().norm())
    smallest = max(_RANK_TOLERANCE * float(values[0]), _ROUNDINGS * rounding)
    return int((values > smallest).sum()) or network.c


def effective_equations(
    network: Network,
    theta: Theta,
    names: Sequence[str],
    n: int,
    *,
    rank: int,
    families: int,
    fixed_rows: int = 0,
) -> int:
    """The equations that the parameters `names` leave for the coordinates of n points.

    `rank` is the `output_rank`. `fixed_rows` are rows of the Gram matrix that belong to no point
    (`objective/rows.py`).
    """
    last = network.last
    k = min(n, rank) if last.weight in names else network.c
    count = 0
    for name in names:
        shape, stem = theta[name].shape, name.rpartition(".")[0]
        if name in last.names:
            count += k * (theta[name].numel() // len(theta[name]))
        elif len(shape) == 2:
            a, b = shape[1] + (f"{stem}.bias" in names), shape[0]
            m = min(n, a, b)
            count += m * (a + b - m)
        elif len(shape) > 2 or f"{stem}.weight" not in names:
            # A convolution meets each point at many positions, so its rank says nothing here.
            count += theta[name].numel()
    return max(0, count - k * (families * n + fixed_rows))


def largest(enough: Callable[[int], bool], most: int) -> int:
    """The largest n up to `most` with enough(n), which holds for all smaller n ≥ 1; 0 if none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if enough(middle) else (low, middle - 1)
    return low
