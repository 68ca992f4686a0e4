"""New points where most is left to explain: those whose joining the span would lower the loss
most."""

from __future__ import annotations

import torch

from recollect.geometry import Geometry, random_start
from recollect.objective.base import ExactObjective
from recollect.shapes import Float, Tensor

_DRAWS, _CHUNK, _ASCENT = 2000, 200, 40
_ALIKE = 0.9
"""Two candidates with a larger |cosine| are climbing the same hill."""


def spawn(
    objective: ExactObjective,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    count: int,
    generator: torch.Generator,
    jitter: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "m r"]:
    """At most `count` new points of large gain, no two alike: the best of many draws, each led
    uphill."""
    gains = objective.gains(Z, jitter)
    drawn = random_start(geometry, _DRAWS, Z.shape[1], generator).to(Z)
    with torch.no_grad():
        gain = torch.cat([gains(some) for some in torch.split(drawn, _CHUNK)])
    new = drawn[gain.topk(min(_DRAWS, max(16, 4 * count))).indices]
    for k in range(_ASCENT):
        new = new.detach().requires_grad_()
        (slope,) = torch.autograd.grad(gains(new).sum(), new)
        new = new.detach()
        slope = geometry.tangent(new, slope)
        length = 0.3 * (1 - k / _ASCENT) * geometry.radius
        new = geometry.project(
            new + length * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300)
        )
    with torch.no_grad():
        new = new[gains(new).argsort(descending=True, stable=True)]
    directions = geometry.directions(new)
    alike = (directions @ directions.T).abs().gt(_ALIKE).cpu()
    chosen: list[int] = []
    for i in range(len(new)):
        if len(chosen) < count and not alike[i, chosen].any():
            chosen.append(i)
    return new[chosen]
