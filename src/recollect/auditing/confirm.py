"""Which points an independent random start has found too.

A search that is stuck ends somewhere else from each random start, and what it ends with may still
look firm. A training input is where several starts end. So a point counts only if an attack with
other random numbers has a point within a tenth of it, relative to its norm, up to sign where either
attack leaves signs open. Whether that attack ran to its end does not matter here: it decides
nothing by itself, and that it came to the same point by another way is evidence either way.

A point is *reproduced* where more can be said: another start finds it, and the points explain far
more of the change than the same attack explains of the change of null victims,

    L ≤ L_null/2    for each null victim whose attack ran to its end.

Then the search is not stuck, and what it found is not what any change of these sizes would show.
What remains unexplained is what the linearisation of training leaves. Confidence takes it for
noise, which is too strict after training with large steps or in mini-batches: there points within a
tenth of the data have confidence zero. Where a search is stuck, wrong points may explain as much,
but two starts do not end at the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch

from recollect.attacks.result import Reconstruction, Withheld
from recollect.auditing.attempt import Attempt, NullRun
from recollect.auditing.verdict import UNCONFIRMED
from recollect.shapes import Bool, Tensor

SAME = 0.1
"""Two points are the same if they are no further apart than this share of their norm."""
FAR_LESS = 0.5
"""Of a null victim an attack leaves 0.75 to 1.3 times what it leaves of another null victim, and of
small networks trained in mini-batches a sixth to a quarter of it."""


def confirmed(best: Attempt, attempts: Iterable[Attempt]) -> Bool[Tensor, " n"]:
    """Points of the best attempt that an attempt with other random numbers has found too."""
    found = best.found
    assert found is not None
    seen = torch.zeros(len(found.inputs), dtype=torch.bool)
    for other in attempts:
        if independent(best, other) and other.found is not None:
            seen |= _near(found, other.found)
    return seen


def explains_far_more(best: Attempt, nulls: Sequence[NullRun]) -> bool:
    """Whether the attempt explains far more of the change than of that of any null victim, as far
    as attacks on null victims ran to their end. True where none did and it explains half."""
    found = best.found
    least = min((run.loss for run in nulls if run.whole), default=1.0)
    return found is not None and found.loss <= FAR_LESS * least


def reproduced(
    best: Attempt, seen: Bool[Tensor, " n"], nulls: Sequence[NullRun]
) -> Bool[Tensor, " n"]:
    """Points that another random start has found too (`seen`), if they explain far more than chance
    does and a null victim has shown what that is."""
    tested = any(run.whole for run in nulls)
    return seen & (tested and explains_far_more(best, nulls))


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
