"""The verdict of an audit: which points are called recovered, and what that means for the model.

    exposed                     at least half of the points are called recovered
    partly exposed              some are recovered or recognisable, beyond chance
    not exposed within budget   none is, by these settings in this time: no proof of safety
    cannot be judged            the method does not fit, no attack ran to its end, no other random
                                start found the points, or null victims look the same
    interrupted                 nothing was found until the audit was interrupted

A point has one of three levels, by its confidence (`attacks/exact/confidence.py`):

    recovered      from `CALLED` on: it should lie within a tenth of a training input
    recognisable   from `RECOGNISABLE` on, or where it is reproduced (`auditing/confirm.py`): it
                   should lie within a quarter of a training input
    none           below that

A point that is withheld is at most recognisable. Points of an attack that was cut off, points that
no other random start has found, and points of a sparse change have no level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Literal

import torch
from scipy.stats import binom

from recollect.attacks.projection import UNFINISHED
from recollect.attacks.result import Reconstruction, Withheld
from recollect.examine.findings import Finding, Severity
from recollect.examine.history import SPARSE
from recollect.shapes import Bool, Tensor
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim

Reason = Literal["time", "misfit", "layer", "adapter", "counting", "no-evidence", "interrupted"]
"""What limits a verdict.

    time          no attack, or no other random start, ran to its end within the budget
    misfit        the method does not fit what made these weights
    layer         the network has a layer that the method has no rule for
    adapter       the change is that of an adapter
    counting      there are fewer equations than unknowns
    no-evidence   the points were found once only, null victims have them too, or a file is missing
    interrupted   the audit was interrupted
"""
Level = Literal["recovered", "recognisable", "none"]

CALLED = 0.8
RECOGNISABLE = 0.5
"""Both levels were chosen on victims whose data are known and on null victims, and tested on others
(`benchmarks/calibration.py`, docs/audit.md)."""
UNCONFIRMED = "no other random start has found the same"
"""Why a point that one random start alone has found is withheld."""
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
WHY: Mapping[Reason, str] = {
    "time": (
        "The time was not enough: no attack, or no second random start, ran to its end; give a "
        "larger --budget."
    ),
    "misfit": "The method does not fit the training that made these weights.",
    "layer": "The network has a layer that the method has no rule for.",
    "adapter": "The change of the weights is that of an adapter.",
    "counting": (
        "There are fewer equations than unknowns: any points would explain the change as well."
    ),
    "no-evidence": (
        "What was found, if anything, is no evidence: it was found by one random start only, null "
        "victims show the same, or something that the audit needs is missing."
    ),
    "interrupted": "The audit was interrupted.",
}
"""Why an audit cannot tell, said after the answer."""
CUT_SHORT = "The audit was interrupted before its end: this is what it had found until then."
"""Said beside the verdict of an audit that was interrupted after it had found something."""


def levels(
    found: Reconstruction, reproduced: Bool[Tensor, " n"] | None = None
) -> tuple[Level, ...]:
    """The level of each point."""
    firm, near = called(found).tolist(), recognisable(found, reproduced).tolist()
    return tuple(
        "recovered" if sure else "recognisable" if close else "none"
        for sure, close in zip(firm, near, strict=True)
    )


def called(found: Reconstruction) -> Bool[Tensor, " n"]:
    """Points that lie within a tenth of a training point, as far as the weights can tell."""
    assert found.confidence is not None
    return (found.confidence.cpu() >= CALLED) & _allowed(found, lambda withheld: True)


def recognisable(
    found: Reconstruction, reproduced: Bool[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"]:
    """Points that lie within a quarter of a training point, as far as the weights can tell.

    Those that are called are among them.
    """
    assert found.confidence is not None
    near = found.confidence.cpu() >= RECOGNISABLE
    near = near if reproduced is None else near | reproduced
    return near & _allowed(found, lambda withheld: withheld.why in (UNCONFIRMED, SPARSE))


def _allowed(found: Reconstruction, bars: Callable[[Withheld], bool]) -> Bool[Tensor, " n"]:
    """Points that no reason for which `bars` is true keeps from counting."""
    allowed = torch.full((len(found.inputs),), found.status not in UNFINISHED)
    for withheld in found.withheld:
        if bars(withheld):
            allowed[list(withheld.points)] = False
    return allowed


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
                code="not-an-mlp",
            )
        ]
    if network.assumed:
        return [
            Finding(
                Severity.LIMITS,
                "the checkpoints do not say which activation the network has",
                f"{network.activation} is assumed, and where it fails others are tried",
                "give --activation if you know it: with a wrong one nothing is found",
                code="activation-assumed",
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
    """The verdict if, of n points, `recovered` are called and `likely` are at least recognisable.

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


def judge_by_truth(
    recovered: int, n: int, by_chance: float, by_weights: Verdict = Verdict.NOT_FOUND
) -> Verdict:
    """The verdict if `recovered` of n training points were found and guessing finds `by_chance`.

    The truth may raise any verdict. It does not turn one that says nothing (`by_weights`: the
    method does not fit, or no attack ran to its end) into an all-clear.
    """
    if recovered > by_chance:
        return Verdict.EXPOSED if recovered >= _MOST * n else Verdict.PARTLY
    if by_weights in (Verdict.UNKNOWN, Verdict.INTERRUPTED):
        return by_weights
    return Verdict.NOT_FOUND
