"""Whether the two checkpoints were given in the wrong order: the second looks as a network does
before its first step, and the first does not.

Norms do not tell: training may shrink weights as well as enlarge them. What tells is exact. A fresh
tensor is constant (a bias of zeros), or drawn from U(−a, a) with a² ∈ {1, 3, 6}/fan_in or
6/(fan_in + fan_out), so that max|w| lies just below a. One step of training takes some entry beyond
a, or a bias away from zero. If some tensor is fresh in the second checkpoint alone, none in the
first alone, and none left its bounds in the second, then the two were exchanged. A network that was
fine-tuned is fresh in neither, or in the first alone. Weights from a normal distribution cannot
tell. Where BatchNorm has counted its batches, or the files say how many steps were made, that
decides.
"""

from __future__ import annotations

import math

import torch

from recollect.shapes import Tensor, Theta
from recollect.victim.read.checkpoint import COUNTERS, Checkpoint
from recollect.victim.read.infer import Architecture
from recollect.victim.victim import Victim

_FEWEST = 1000
"""A smaller tensor cannot tell, unless it is constant."""
_CHANCE = 5.0
"""max|w| of N draws exceeds a(1 − 5/N) with a probability of 0.993."""
_FOURTH_MOMENT = 9 / 5
"""E w⁴/(E w²)² of a uniform distribution around zero."""
_DEVIATIONS = 4.0
_SPREAD = 1.1
"""Standard deviation of the estimate of that ratio, times √N."""


def exchanged(victim: Victim) -> bool:
    """Whether the checkpoint from before training looks trained and the other one fresh."""
    if victim.theta_0 is None:
        return False
    counters = [name for name in victim.theta_f if name.endswith("num_batches_tracked")]
    if counters and not any(bool(victim.theta_f[name].any()) for name in counters):
        return any(bool(victim.theta_0[name].any()) for name in counters)
    before, after = (
        [fresh(name, theta) for name in victim.network.trained]
        for theta in (victim.theta_0, victim.theta_f)
    )
    pairs = list(zip(before, after, strict=True))
    gained = any(b is not True and a is True for b, a in pairs)
    lost = any(b is True and a is not True for b, a in pairs)
    return gained and not lost and False not in after


def counted_backwards(before: Checkpoint, after: Checkpoint) -> bool:
    """Whether the files say that the first was trained and the second was not.

    A smaller count alone does not tell: fine-tuning begins to count again. An epoch of zero may be
    the first epoch, and then the optimiser has to say so as well: both files hold one, and only the
    first has running averages. Files that `recollect train` made hold the number of steps.
    """
    first, second = ({**one.counts, **_steps(one)} for one in (before, after))

    def reset(key: str) -> bool:
        return first.get(key, 0) > 0 and second.get(key) == 0

    averages = {"exp_avg", "exp_inf", "square_avg", "momentum_buffer"}
    both = "param_groups" in before.beside & after.beside
    stepped = bool(averages & before.beside) and not averages & after.beside
    steps = (key for key in COUNTERS if key != "epoch")
    return any(map(reset, steps)) or (reset("epoch") and both and stepped)


def _steps(checkpoint: Checkpoint) -> dict[str, int]:
    step = Architecture.from_metadata(checkpoint.metadata).step
    return {} if step is None else {"step": step}


def fresh(name: str, theta: Theta) -> bool | None:
    """Whether a tensor looks as if it had never been trained; None where it cannot tell."""
    tensor = theta[name]
    w = tensor.double().flatten()
    if not bool((w - w[:1]).any()):
        return True
    fans = _fans(name, theta)
    if len(w) < _FEWEST or fans is None:
        return None
    return _is_uniform(w, *fans, rounding=torch.finfo(tensor.dtype).eps)


def _is_uniform(w: Tensor, fan_in: int, fan_out: int, *, rounding: float) -> bool | None:
    """Whether w is a draw from a usual uniform distribution; None where it has another shape."""
    N, largest = len(w), float(w.abs().max())
    ratio = float(w.pow(4).mean()) / float(w.square().mean()) ** 2
    if abs(ratio - _FOURTH_MOMENT) > _DEVIATIONS * _SPREAD / math.sqrt(N):
        return None
    bounds = [math.sqrt(k / fan_in) for k in (1, 3, 6)] + [math.sqrt(6 / (fan_in + fan_out))]
    return any(a * (1 - _CHANCE / N) < largest <= a * (1 + rounding) for a in bounds)


def _fans(name: str, theta: Theta) -> tuple[int, int] | None:
    """The inputs and outputs of the layer that a weight or bias belongs to."""
    weight = theta[name]
    if weight.dim() < 2:
        stem, _, kind = name.rpartition(".")
        other = theta.get(f"{stem}.weight") if kind == "bias" else None
        if other is None or other.dim() < 2 or len(other) != len(weight):
            return None
        weight = other
    positions = math.prod(weight.shape[2:])
    return weight.shape[1] * positions, weight.shape[0] * positions
