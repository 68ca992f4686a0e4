"""From points to an answer: which are called recovered, and what that makes of the whole.

    exposed                     half of the points or more were read back
    partly exposed              some were, and more than chance would call
    not exposed within budget   none was, by these settings in this time: that is no proof of safety
    cannot be judged            the method does not fit this model, or what it finds in null victims looks no different

A point is called recovered from a confidence (`solve/confidence.py`) of `CALLED` on.
"""

from __future__ import annotations

from enum import Enum

from scipy.stats import binom

from recollect.result import Reconstruction
from recollect.shapes import Bool, Tensor
from recollect.stages import UNSETTLED

CALLED = 0.8
"""Chosen on victims whose data are known and on null victims (`benchmarks/calibration.py`, docs/audit.md)."""
FALSE_CALLS = 0.01
"""Of points found in null victims, the share that is called at most."""
_MANY_FALSE = 0.05
_BY_CHANCE = 0.1
_MOST = 0.5


class Verdict(Enum):
    EXPOSED = "exposed"
    PARTLY = "partly exposed"
    NOT_FOUND = "not exposed within budget"
    UNKNOWN = "cannot be judged"


ANSWERS = {
    Verdict.EXPOSED: "Training data can be read out of these weights.",
    Verdict.PARTLY: "Some training data can be read out of these weights.",
    Verdict.NOT_FOUND: "No training data were found in these weights, by this method and in this time.",
    Verdict.UNKNOWN: "This audit cannot tell.",
}


def called(found: Reconstruction) -> Bool[Tensor, " n"]:
    """Points that are within a tenth of a training point, as far as the weights can tell."""
    assert found.confidence is not None
    return found.confidence >= CALLED


def up_to_sign(found: Reconstruction) -> bool:
    """Whether x could not be told from −x: what is called recovered may be the negative of a training point."""
    return any(note.startswith(UNSETTLED) for note in found.notes)


def judge(recovered: int, n: int, null_called: int = 0, null_points: int = 0) -> Verdict:
    """`recovered` of n points were called; of `null_points` points of null victims, `null_called` were."""
    if null_points and null_called > max(1, _MANY_FALSE * null_points):
        return Verdict.UNKNOWN
    if recovered >= _MOST * n:
        return Verdict.EXPOSED
    if recovered and float(binom.sf(recovered - 1, n, FALSE_CALLS)) < _BY_CHANCE:
        return Verdict.PARTLY
    return Verdict.NOT_FOUND
