"""ê_i = √(σ² tr (JᵀJ)⁻¹_ii)/m, σ² = L/(equations − unknowns): how far off a point is likely to be,
without truth.

The textbook error of a least-squares estimate, relative to the points' median norm m, as if the
residual were noise. It is not: it is what the linearisation of training leaves, and the points that
explain nothing. But a point that nothing holds has a large ê whatever the residual is made of, and
in a run that is stuck those are the wrong ones. Where JᵀJ is not formed its inverse is estimated
with random signs (`objective/normal.py`), with an error of some ten per cent.
"""

from __future__ import annotations

import torch

from recollect.geometry import Geometry
from recollect.objective.base import ExactObjective
from recollect.shapes import Bool, Float, Tensor

DOUBTFUL = 0.1
"""A point whose ê is larger is more likely wrong than right."""
_FAR = 4.0
"""Points of a free norm that explain nothing run away; one so many times as long as most is on its
way."""


def expected_errors(
    objective: ExactObjective,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    jitter: Float[Tensor, ""] | None = None,
) -> Float[Tensor, " n"]:
    fit, normal = objective.linearise(Z, geometry, jitter)
    n, r = Z.shape
    spare = objective.equations - objective.unknowns(n, r, geometry)
    if spare <= 0:  # any points explain as much: nothing can be said of these
        return torch.full((n,), 1e6, dtype=Z.dtype, device=Z.device)
    variance = fit.loss / spare * normal.variances().clamp_min(0)
    norms = Z.norm(dim=1)
    usual = norms.median()
    errors: Tensor = (variance.sqrt() / usual.clamp_min(1e-300)).nan_to_num(1e6, 1e6)
    return errors.where(norms < _FAR * usual, errors.clamp_min(norms / usual))


def doubtful(errors: Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Points more likely wrong than right, and points held far less than the others are."""
    return (errors > DOUBTFUL) | ((errors > DOUBTFUL / 5) & (errors > 10 * errors.median()))


def confidence(
    objective: ExactObjective,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    jitter: Float[Tensor, ""] | None = None,
) -> Float[Tensor, " n"]:
    """1/(1 + (ê/0.1)²) · cost/(cost + L): held firmly, and explaining more than all that is left
    unexplained.

    The first factor is one half where a point is as likely wrong as right. The second is what a fit
    to noise lacks: with equations to spare its points are held firmly as well, but each explains
    less than remains.
    """
    errors = expected_errors(objective, geometry, Z, jitter)
    cost = objective.costs(Z, jitter).nan_to_num(0.0).clamp_min(0.0)
    loss = objective.fit(Z, gradient=False, jitter=jitter).loss
    share = cost / (cost + loss).clamp_min(1e-300)
    return (share / (1 + (errors / DOUBTFUL).square())).nan_to_num(0.0)
