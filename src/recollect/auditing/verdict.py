"""The verdict of an audit: which points are called recovered, and what that means for the model.

    exposed                     at least half of the points are called recovered
    partly exposed              some are, or many are likely to be, beyond chance
    not exposed within budget   none is, by these settings in this time: no proof of safety
    cannot be judged            the method does not fit, or null victims look the same
    interrupted                 nothing was found until the audit was interrupted

A point is called recovered if its confidence (`attacks/exact/confidence.py`) is at least `CALLED`
and it is not withheld. It is then assumed to lie within a tenth of a training point. Of the
points with a confidence between `LIKELY` and `CALLED` about half do. Almost no point of a null
victim reaches `LIKELY`.
"""

from __future__ import annotations

from enum import Enum

import torch
from scipy.stats import binom

from recollect.attacks.result import Reconstruction
from recollect.examine.findings import Finding, Severity
from recollect.shapes import Bool, Tensor
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim

CALLED = 0.8
"""This level was chosen on victims whose data are known and on null victims
(`benchmarks/calibration.py`, docs/audit.md)."""
LIKELY = 0.6
FALSE_CALLS = 0.01
"""Upper limit for the share of points in null victims that are called recovered."""
_TOO_MANY = 0.05
_BY_CHANCE, _SURELY_NOT = 0.1, 1e-3
_MOST = 0.5


class Verdict(Enum):
    """The answer of an audit."""

    EXPOSED = "exposed"
    PARTLY = "partly exposed"
    NOT_FOUND = "not exposed within budget"
    UNKNOWN = "cannot be judged"
    INTERRUPTED = "interrupted"


ANSWERS = {
    Verdict.EXPOSED: "Training data can be read out of these weights.",
    Verdict.PARTLY: "Some training data can be read out of these weights, closely or roughly.",
    Verdict.NOT_FOUND: (
        "No training data were found in these weights, by this method and in this time."
    ),
    Verdict.UNKNOWN: "This audit cannot tell.",
    Verdict.INTERRUPTED: (
        "This audit was interrupted before its end, and had found no training data until then."
    ),
}
CUT_SHORT = "The audit was interrupted before its end: this is what it had found until then."
"""Said beside the verdict of an audit that was interrupted after it had found something."""


def called(found: Reconstruction) -> Bool[Tensor, " n"]:
    """Points that lie within a tenth of a training point, as far as the weights can tell."""
    assert found.confidence is not None
    allowed = torch.ones(len(found.inputs), dtype=torch.bool)
    for withheld in found.withheld:
        allowed[list(withheld.points)] = False
    return (found.confidence >= CALLED) & allowed


def likely(found: Reconstruction) -> Bool[Tensor, " n"]:
    """Points with a confidence that null victims do not reach, whether they are called or not."""
    assert found.confidence is not None
    return found.confidence >= LIKELY


def caveats(victim: Victim) -> list[Finding]:
    """Findings that limit any verdict on this network."""
    network = victim.network
    if not isinstance(network, MLP):
        return [
            Finding(
                Severity.LIMITS,
                "the network is not a plain MLP",
                "confidence was tested on MLPs alone, and is too high in others: no point is "
                "called recovered, and the "
                "verdict is at most partly exposed",
                "give --truth to learn how many of the points are right",
            )
        ]
    if network.assumed:
        return [
            Finding(
                Severity.LIMITS,
                "the checkpoints do not say which activation the network has",
                f"{network.activation} is assumed, and where it fails others are tried",
                "give --activation if you know it: with a wrong one nothing is found",
            )
        ]
    return []


def judge(
    recovered: int,
    n: int,
    null_called: int = 0,
    null_points: int = 0,
    *,
    likely: int = 0,
    null_likely: int = 0,
) -> Verdict:
    """The verdict if, of n points, `recovered` are called and `likely` have a high confidence.

    `null_called` and `null_likely` are these counts for the `null_points` points of null victims.
    """
    if null_called and float(binom.sf(null_called - 1, null_points, FALSE_CALLS)) < _TOO_MANY:
        return Verdict.UNKNOWN
    if recovered >= _MOST * n:
        return Verdict.EXPOSED
    if recovered and float(binom.sf(recovered - 1, n, FALSE_CALLS)) < _BY_CHANCE:
        return Verdict.PARTLY
    rate = max(FALSE_CALLS, (null_likely + 1) / (null_points + 1)) if null_likely else FALSE_CALLS
    if likely and float(binom.sf(likely - 1, n, rate)) < _SURELY_NOT:
        return Verdict.PARTLY
    return Verdict.NOT_FOUND


def judge_by_truth(recovered: int, n: int, by_chance: float) -> Verdict:
    """The verdict if `recovered` of n training points were found and guessing finds `by_chance`."""
    if recovered > by_chance:
        return Verdict.EXPOSED if recovered >= _MOST * n else Verdict.PARTLY
    return Verdict.NOT_FOUND
