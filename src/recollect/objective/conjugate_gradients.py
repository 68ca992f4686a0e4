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


def conjugate_gradients(
    A: Callable[[Tensor], Tensor],
    b: Float[Tensor, "*b"],
    *,
    tolerance: float,
    most: int,
    inverse: Tensor | float = 1.0,
) -> Solution:
    """x with ‖Ax − b‖ ≤ tolerance·‖b‖, in at most `most` steps.

    `inverse` is a diagonal preconditioner, an approximation of A⁻¹. The iteration starts from zero
    and stays in the range of A, so a singular A does no harm. Where rounding makes A indefinite,
    the iteration stops with what it has. Where A or b contains NaN, so does x.
    """
    x = b.new_zeros(b.shape)
    residual, conditioned = b, inverse * b
    direction, agreement = conditioned, (b * conditioned).sum()
    goal = tolerance * float(b.norm())
    for iteration in range(most):
        if float(residual.norm()) <= goal:
            return Solution(x, iteration, True)
        image = A(direction)
        curvature = (direction * image).sum()
        if not float(curvature) > 0:  # also for NaN
            return Solution(torch.where(curvature.isnan(), torch.nan, x), iteration, False)
        length = agreement / curvature
        x, residual = x + length * direction, residual - length * image
        conditioned = inverse * residual
        before, agreement = agreement, (residual * conditioned).sum()
        direction = conditioned + agreement / before * direction
    return Solution(x, most, float(residual.norm()) <= goal)
