"""A measured value of sup |k_p − k_∞| over pairs of points of the sphere. It is a lower bound,
because no search examines every pair.

    ∇_x (k_p − k_∞)(x, y) = (1/p)Σ_i φ'(V_iᵀx + b_i)φ(V_iᵀy + b_i)V_i − k_∞'(t)·y/d,   t = xᵀy/d,
            k_∞'(t) = E[φ'φ']

The search draws many random pairs and improves the best of them by gradient ascent on the sphere.
Each pair has its own step size, which grows after a success and shrinks after a failure. All draws
of (V, b) are processed together.
"""

from __future__ import annotations

import math

import torch

from recollect.shapes import Float, Tensor
from recollect.system.seeds import stream
from recollect.theory.kernel import Zonal
from recollect.victim.activations import activation

_PAIRS, _CLIMBERS, _STEPS = 512, 8, 60


def features(
    draws: int, p: int, d: int, seed: int
) -> tuple[Float[Tensor, "b p d"], Float[Tensor, "b p"]]:
    """`draws` independent draws of V_ij ~ N(0, 1/d) and b_i ~ N(0, 1)."""
    generator = stream("random features", seed)
    V = torch.randn(draws, p, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    return V, torch.randn(draws, p, generator=generator, dtype=torch.float64)


def deviation(
    name: str,
    V: Float[Tensor, "b p d"],
    b: Float[Tensor, "b p"],
    *,
    seed: int = 0,
    pairs: int = _PAIRS,
    climbers: int = _CLIMBERS,
    steps: int = _STEPS,
) -> Float[Tensor, " b"]:
    """The largest |k_p − k_∞| found for each draw."""
    known, value, slope = activation(name), Zonal(name), Zonal(name, slope=True)
    draws, p, d = V.shape
    radius = math.sqrt(d)

    def at(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The deviation k_p − k_∞, its gradients with respect to x and y, and t."""
        U, W = X @ V.mT + b[:, None, :], Y @ V.mT + b[:, None, :]
        A, B = known.phi(U), known.phi(W)
        t = (X * Y).sum(-1) / d
        flat = t.numpy()
        difference = (A * B).mean(-1) - torch.from_numpy(value(flat))
        rise = torch.from_numpy(slope(flat))[..., None] / d
        in_x = (known.derivative(U) * B) @ V / p - rise * Y
        in_y = (A * known.derivative(W)) @ V / p - rise * X
        return difference, in_x, in_y, t

    generator = stream("pairs", seed)
    best: Tensor | None = None
    X, Y = (
        radius * _unit(torch.randn(draws, pairs, d, generator=generator, dtype=torch.float64))
        for _ in range(2)
    )
    Y[:, : pairs // 4] = X[:, : pairs // 4]  # k_p varies most where x = y
    found = at(X, Y)[0].abs()
    best, which = found.max(1).values, found.topk(min(climbers, pairs), dim=1).indices
    X, Y = (points.gather(1, which[..., None].expand(-1, -1, d)) for points in (X, Y))
    step = torch.full((draws, X.shape[1], 1), 0.3 * radius, dtype=torch.float64)
    here, in_x, in_y, _ = at(X, Y)
    for _ in range(steps):
        sign = here.sign()[..., None]
        along = [
            sign * (g - (g * P).sum(-1, keepdim=True) * P / d) for g, P in ((in_x, X), (in_y, Y))
        ]
        size = torch.cat(along, dim=-1).norm(dim=-1, keepdim=True).clamp_min(1e-300)
        tried = [radius * _unit(P + step * g / size) for P, g in zip((X, Y), along, strict=True)]
        there, new_x, new_y, _ = at(*tried)
        better = (there.abs() > here.abs())[..., None]
        X, Y = (torch.where(better, new, old) for new, old in zip(tried, (X, Y), strict=True))
        in_x, in_y = torch.where(better, new_x, in_x), torch.where(better, new_y, in_y)
        here = torch.where(better[..., 0], there, here)
        step = torch.where(better, 1.5 * step, 0.4 * step)
    return torch.maximum(best, here.abs().max(1).values)


def _unit(X: Tensor) -> Tensor:
    return torch.nn.functional.normalize(X, dim=-1)
