"""ê_i = √(σ² tr (JᵀJ)⁻¹_ii)/m: how far off a point is likely to be, without truth.

This is the textbook error of a least-squares estimate, relative to the median norm m of the points,
as if the residual were noise of variance σ². With ν effective equations more than coordinates
(`examine/counting.py`), noise leaves a loss of at least σ²χ²(ν) with a probability of 95 %, where
χ²(ν) is a quantile of the chi-squared distribution. Hence σ² = L/χ²(ν): with few equations to spare
a residual may be small by chance.

The residual is not noise. It is what the linearisation of training leaves, and what wrong points do
not explain. But a point that nothing holds has a large ê whatever the residual is made of, and in a
search that is stuck those are the wrong ones. Where JᵀJ is not formed, its inverse is estimated
with random signs (`objective/normal.py`), with an error of some ten per cent.

ê says nothing of a point that cannot move, such as the only point of a rank of one. What counts
there, and everywhere, is that the points explain the change by what they are: their gradients at
one end of training alone must explain at least half of it. The difference between a point's
gradients at the two ends is not made of the point alone. It repeats what training did to the other
layers, and a change of W_L that only repeats the change of W_1 (in the same units) is explained by
the difference at almost any point.
"""

from __future__ import annotations

import math

import torch
from scipy.special import chdtri

from recollect.geometry import Geometry
from recollect.objective.base import ExactObjective
from recollect.objective.endpoints import Endpoints
from recollect.shapes import Bool, Float, Tensor

DOUBTFUL = 0.1
"""A point whose ê is larger is more likely wrong than right."""
_CERTAINTY = 0.95
"""σ² is such that noise of that variance leaves a larger residual with this probability."""
_UNKNOWN = 1e6
"""ê where nothing can be said of a point."""
_UNHELD = 1e9
"""A point is not held if tr (JᵀJ)⁻¹_ii exceeds this multiple of 1/mean(diag JᵀJ). A null
direction of JᵀJ reaches 1e12, the inverse of the relative loading of JᵀJ."""
_LARGEST_LOSS_AT_ONE_END = 0.5
"""If gradients at either end alone leave more than this share of the change, the points are not
called. In small networks (width 150, 1 to 5 records) right points that were called left at most
0.2, and points that explained two edited entries left 0.88 to 0.93."""
_FAR = 4.0
"""A point longer than this multiple of the median norm is taken to be running away."""


def expected_errors(
    objective: ExactObjective,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    jitter: Float[Tensor, ""] | None = None,
    *,
    least: float = 0.0,
) -> Float[Tensor, " n"]:
    """ê of each point. `least`: a loss below which the objective does not show what is wrong."""
    fit, normal = objective.linearise(Z, geometry, jitter)
    n, r = Z.shape
    spare = objective.effective_equations(n) - n * geometry.free_dimensions(r)
    if spare <= 0:  # any points explain as much: nothing can be said of these
        return torch.full((n,), _UNKNOWN, dtype=Z.dtype, device=Z.device)
    variances = normal.variances().clamp_min(0)
    variance = fit.loss.clamp_min(least) / chdtri(spare, _CERTAINTY) * variances
    norms = geometry.norms(Z)
    usual = norms.median()
    errors: Tensor = (variance.sqrt() / usual.clamp_min(1e-300)).nan_to_num(_UNKNOWN, _UNKNOWN)
    # A loss near zero would hide directions in which nothing holds a point at all.
    errors = errors.where(variances * normal.scales.mean() < _UNHELD, _UNKNOWN)
    errors = errors.where(norms < _FAR * usual, errors.clamp_min(norms / usual))
    return errors.nan_to_num(_UNKNOWN, _UNKNOWN)  # all points at the origin, or at infinity


def doubtful(errors: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Points more likely wrong than right, and points held far less than the others are."""
    return (errors > DOUBTFUL) | ((errors > DOUBTFUL / 5) & (errors > 10 * errors.median()))


def confidence(
    objective: ExactObjective,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    jitter: Float[Tensor, ""] | None = None,
    *,
    least: float = 0.0,
) -> Float[Tensor, " n"]:
    """w · cost/(cost + L) / (1 + (ê/0.1)²): held firmly, explaining much, in a search that worked.

    All are zero where only differences between the two ends explain the change. The last factor is
    one half where a point is as likely wrong as right. cost/(cost + L) is what a fit to noise
    lacks: with equations to spare its points are held firmly as well, but each of them explains
    less than remains. w is the share of all points for which the product of the two is at
    least one half: where the search failed for many points, those that seem right are often a
    little off, because they stand in for the others. `least` is a loss below which the objective
    does not show what is wrong.
    """
    errors = expected_errors(objective, geometry, Z, jitter, least=least)
    cost = objective.costs(Z, jitter).nan_to_num(0.0).clamp_min(0.0)
    loss = objective.fit(Z, gradient=False, jitter=jitter).loss.clamp_min(least)
    share = cost / (cost + loss).clamp_min(1e-300)
    alone = (share * from_errors(errors)).nan_to_num(0.0)
    if not loss_at_one_end(objective, Z, jitter) <= _LARGEST_LOSS_AT_ONE_END:
        return torch.zeros_like(alone)
    return alone * (alone >= 0.5).to(alone).mean()


def from_errors(errors: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """1/(1 + (ê/0.1)²): one half where a point is as likely wrong as right."""
    return 1 / (1 + (errors / DOUBTFUL).square())


def loss_at_one_end(
    objective: ExactObjective, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
) -> float:
    """The share of the change that gradients at θf alone leave, or those at θ0 alone if it is less.

    NaN where neither could be solved.
    """
    ends = [objective]
    if objective.endpoints.several:
        ends = [objective.at(end) for end in (Endpoints.FINAL, Endpoints.INITIAL)]
    losses = torch.stack([end.fit(Z, gradient=False, jitter=jitter).loss for end in ends])
    return float(losses[torch.isfinite(losses)].min()) if losses.isfinite().any() else math.nan
