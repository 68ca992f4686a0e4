"""A x = b by conjugate gradients (Hestenes & Stiefel 1952), for a positive semidefinite A."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from recollect.shapes import Float, Tensor


@dataclass(frozen=True)
class Solution:
    """Where the iteration ended, after how many steps, and whether it reached the tolerance."""

    x: Float[Tensor, "*b"]
    iterations: int
    converged: bool


@dataclass(frozen=True)
class Directions:
    """The directions p_j that an iteration went along, and A p_j."""

    P: Float[Tensor, "k b"]
    AP: Float[Tensor, "k b"]

    @classmethod
    def of(cls, visited: list[tuple[Tensor, Tensor]]) -> Directions | None:
        """What `conjugate_gradients` has noted; None if that is nothing."""
        if not visited:
            return None
        P, AP = (torch.stack(parts).flatten(1) for parts in zip(*visited, strict=True))
        return cls(P, AP)

    def shifted(
        self, b: Float[Tensor, "*b"], shift: float
    ) -> tuple[Float[Tensor, "*b"], Float[Tensor, "*b"]]:
        """x and b − (A + σI)x for the best x in the span of the directions, without a product.

        x = Pᵀy with P(A + σI)Pᵀy = Pb (Galerkin). The larger σ is, the better conditioned the
        system, and the fewer directions it needs. Where they are not independent x is zero.
        """
        P, AP = self.P, self.AP
        M = P @ AP.T + shift * (P @ P.T)
        size = M.diagonal().clamp_min(torch.finfo(M.dtype).tiny).rsqrt()
        scaled = size[:, None] * M * size
        scaled.diagonal().add_(_LOADING)
        factor, info = torch.linalg.cholesky_ex(scaled)
        y = size * torch.cholesky_solve((size * (P @ b.reshape(-1)))[:, None], factor)[:, 0]
        y = torch.where((info == 0) & torch.isfinite(y).all(), y, 0.0)
        x = (y @ P).view(b.shape)
        return x, b - (y @ AP).view(b.shape) - shift * x


_ROOM = 2**22
"""Numbers that the directions may have together: 32 MB in float64, and as much for the products."""
_LOADING = 1e-12
"""Relative to the diagonal. What it changes is part of the residual that is returned."""


def conjugate_gradients(
    A: Callable[[Tensor], Tensor],
    b: Float[Tensor, "*b"],
    *,
    tolerance: float,
    most: int,
    inverse: Tensor | float = 1.0,
    start: tuple[Tensor, Tensor] | None = None,
    visited: list[tuple[Tensor, Tensor]] | None = None,
) -> Solution:
    """x with ‖Ax − b‖ ≤ tolerance·‖b‖, in at most `most` steps.

    Parameters
    ----------
    A, b
        The system. A singular A does no harm, since the iteration stays in its range. Where
        rounding makes A indefinite, the iteration stops with what it has. Where A or b contains
        NaN, so does x.
    tolerance, most
        When to stop.
    inverse
        A diagonal preconditioner, an approximation of A⁻¹.
    start
        Where to begin, and b − Ax there. The iteration begins at zero if this is left out.
    visited
        A list to which each direction p is added, together with Ap, while there is room.
    """
    x, residual = start if start is not None else (b.new_zeros(b.shape), b)
    conditioned = inverse * residual
    direction, agreement = conditioned, (residual * conditioned).sum()
    goal = tolerance * float(b.norm())
    for iteration in range(most):
        if float(residual.norm()) <= goal:
            return Solution(x, iteration, True)
        image = A(direction)
        curvature = (direction * image).sum()
        if not float(curvature) > 0:  # also for NaN
            return Solution(torch.where(curvature.isnan(), torch.nan, x), iteration, False)
        if visited is not None and (len(visited) + 1) * b.numel() <= _ROOM:
            visited.append((direction, image))
        length = agreement / curvature
        x, residual = x + length * direction, residual - length * image
        conditioned = inverse * residual
        before, agreement = agreement, (residual * conditioned).sum()
        direction = conditioned + agreement / before * direction
    return Solution(x, most, float(residual.norm()) <= goal)
