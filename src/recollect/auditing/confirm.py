"""Which points an independent random start has found too.

A search that is stuck ends somewhere else from each random start, and what it ends with may still
look firm. A training input is where several starts end. So a point counts only if an attack with
other random numbers has a point within a tenth of it, relative to its norm, up to sign where either
attack leaves signs open. Whether that attack ran to its end does not matter here: it decides
nothing by itself, and that it came to the same point by another way is evidence either way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from recollect.attacks.result import Reconstruction, Withheld
from recollect.auditing.attempt import Attempt
from recollect.auditing.verdict import UNCONFIRMED
from recollect.shapes import Bool, Tensor

SAME = 0.1
"""Two points are the same if they are no further apart than this share of their norm."""


def confirmed(best: Attempt, attempts: Iterable[Attempt]) -> Bool[Tensor, " n"]:
    """Points of the best attempt that an attempt with other random numbers has found too."""
    found = best.found
    assert found is not None
    seen = torch.zeros(len(found.inputs), dtype=torch.bool)
    for other in attempts:
        if independent(best, other) and other.found is not None:
            seen |= _near(found, other.found)
    return seen


def independent(best: Attempt, other: Attempt) -> bool:
    """Whether the other attempt attacked the same network from other random numbers."""
    same = other.setting.victim.network.identity == best.setting.victim.network.identity
    return same and other.setting.seed != best.setting.seed


def marked(found: Reconstruction, seen: Bool[Tensor, " n"]) -> Reconstruction:
    """The result, with the points withheld that no other random start has found."""
    alone = tuple((~seen).nonzero().flatten().tolist())
    if not alone:
        return found
    return replace(found, withheld=(*found.withheld, Withheld(alone, UNCONFIRMED)))


def _near(found: Reconstruction, other: Reconstruction) -> Bool[Tensor, " n"]:
    X, Y = found.inputs.cpu().double(), other.inputs.cpu().double()
    if not len(Y):
        return torch.zeros(len(X), dtype=torch.bool)
    if not found.norms_identifiable:
        X, Y = (torch.nn.functional.normalize(points, dim=1) for points in (X, Y))
    distances = torch.cdist(X, Y)
    if not (found.signs_settled and other.signs_settled):
        distances = torch.minimum(distances, torch.cdist(X, -Y))
    near: Bool[Tensor, " n"] = distances.min(dim=1).values <= SAME * X.norm(dim=1)
    return near
