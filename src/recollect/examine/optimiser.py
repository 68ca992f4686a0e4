"""Whether an optimiser may have rescaled gradients entry by entry: Adam, RMSprop, Adagrad, signs.

Such an optimiser moves all weights by similar amounts. Two statistics show it, each of which
overlaps by itself:

    e = (mean |Δ|)²/mean Δ²   of the entries of ΔW_1: 1 if all are of one size, 0.64 for a Gaussian
    q = smallest/largest      of the root mean squares of Δ of all tensors

Gradient descent moves some tensors far more than others, in the proportion of their gradients, and
an optimiser that rescales them does not. The sum e + 0.2 ln q and its limit were chosen on some
seeds and tested on others (`benchmarks/detectors.py`, docs/audit.md). They are a suspicion and no
proof, and what the user says of the optimiser decides.
"""

from __future__ import annotations

import math

from recollect.examine.findings import Finding, Severity
from recollect.shapes import Tensor
from recollect.victim.victim import Victim

_WEIGHT = 0.2
_LIMIT = 0.42
"""e + 0.2 ln q above which an optimiser is suspected."""
_LIMIT_ALONE = 0.67
"""The same for e alone, where a single tensor was trained."""
PLAIN = "sgd"
"""The optimiser, by its option, whose change is a sum of gradients, with or without momentum."""


def rescaled(victim: Victim) -> list[Finding]:
    """The finding that an optimiser may have rescaled the entries of the change."""
    found = evenness(victim)
    if found is None:
        return []
    e, q = found
    alone = q is None
    if (e <= _LIMIT_ALONE) if q is None else (e + _WEIGHT * math.log(q) <= _LIMIT):
        return []
    sizes = "" if alone else f", and all tensors changed by similar amounts (1 to {q:.2g})"
    return [
        Finding(
            Severity.LIMITS,
            f"the entries of the first layer's change are rather alike in size ({e:.2f}, where "
            f"gradient descent often leaves 0.5){sizes}",
            "an optimiser may have rescaled gradients one by one (Adam, RMSprop, signs); Δθ is "
            "then no combination of gradients, and the method does not fit",
            "say which it was (--optimizer sgd if it was plain or had momentum), and do not take a "
            "failure for safety",
            misfit=True,
            code="rescaled-entries",
        )
    ]


def told(optimizer: str) -> list[Finding]:
    """The finding that follows from what the user says of the optimiser."""
    if optimizer == PLAIN:
        return []
    return [
        Finding(
            Severity.LIMITS,
            f"the weights were trained by {optimizer}, as you say",
            "it rescales gradients entry by entry; Δθ is then no combination of gradients, and the "
            "method does not fit",
            "expect little, and do not take a failure for safety",
            misfit=True,
            code="named-optimiser",
        )
    ]


def evenness(victim: Victim) -> tuple[float, float | None] | None:
    """(e, q) of a victim; q is None where one tensor was trained, and all is None where W_1 was
    not."""
    delta = victim.delta_W1()
    if delta is None or not bool(delta.any()):
        return None
    entries = delta[:, delta.any(0)]
    entries = entries[entries.any(1)]
    e = float(entries.abs().mean().square() / entries.square().mean())
    changes = victim.delta(victim.network.trained).values()
    sizes = [_size(change) for change in changes if bool(change.any())]
    return e, min(sizes) / max(sizes) if len(sizes) > 1 else None


def _size(change: Tensor) -> float:
    return float(change.double().square().mean().sqrt())
