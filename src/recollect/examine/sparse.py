"""Whether only chosen entries of the weights changed: a sparse update, or a few edited entries.

Gradient descent changes every weight between units that were active at the same time. With

    Δ(W_{l+1})_ku = Σ_i e_ik h_u(x_i),      Δ(W_l)_u· = Σ_i b_iu h(x_i)ᵀ,

a unit u whose row of ΔW_l is not zero was active at some point, so that its column of ΔW_{l+1} is
not zero either. Rows of zeros are units that were never active, and columns of zeros are inputs
that are always zero: both are usual. Zeros in between are not, in the last layer. In earlier layers
they may be: two units may be active at different points, and an input may be zero wherever a unit
is active. So the last layer is judged by its zeros, and the others by how many units changed at
all: a fresh unit is inactive at a point with a probability of about one half.

An entry whose change was smaller than the resolution of the numbers is stored as zero. Then many
other entries changed by few steps of that resolution, which is how these zeros are told apart.
"""

from __future__ import annotations

import torch
from scipy.stats import binom

from recollect.examine.findings import Finding, Severity
from recollect.shapes import Bool, Float, Tensor
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim

_MOST_ZEROS = 0.1
"""Largest share of zeros between entries that changed. It was at most 0.003 for real victims
of 1 to 20 points, and 0.5 or more where a tenth of the entries was kept (docs/audit.md)."""
_FEW_STEPS = 4.0
"""A change of fewer steps of floating-point resolution may as well have been rounded to zero."""
_FEWEST_UNITS = 0.05
"""Smallest share of the units of a layer that change in training."""
_HARDLY = 1e-6
"""Probability below which it is no accident that so few units changed."""


def unchanged_entries(victim: Victim) -> list[Finding]:
    """Findings on changes that leave out entries which training would have changed."""
    assert victim.theta_0 is not None
    share = zeros_between(victim)
    if share > _MOST_ZEROS:
        return [
            _finding(
                f"{share:.0%} of the weights between units that changed are exactly as they were"
            )
        ]
    if few := _few_units(victim):
        changed, units = few
        return [_finding(f"of the {units} units of the first layer only {changed} changed")]
    return []


def _finding(seen: str) -> Finding:
    return Finding(
        Severity.LIMITS,
        seen,
        "training changes all weights between active units, so this change was made sparse "
        "(masks, pruning, edited weights) or is no training; gradients of whole layers do not "
        "explain it, and no point is called recovered",
        "audit the weights as training left them, before any entry was put back or edited",
        misfit=True,
        code="sparse-change",
    )


def zeros_between(victim: Victim) -> float:
    """The share of zeros among the entries of ΔW_L that should have changed.

    It is 0 where rounding may be the reason, or where the last layer is not trained.
    """
    change = _change(victim, victim.network.last.weight)
    if change is None or victim.theta_0 is None:
        return 0.0
    moved = change != 0
    units = moved.any(0)
    if (rows := _rows_before_last(victim)) is not None and len(rows) == len(units):
        units = units | rows
    within = moved.any(1)[:, None] & units
    entries, zeros = int(within.sum()), int((within & ~moved).sum())
    after = victim.theta_f[victim.network.last.weight]
    step = torch.finfo(after.dtype).eps * after.double().abs()
    near = int((within & moved & (change.abs() <= _FEW_STEPS * step)).sum())
    rounded = near >= min((entries - zeros) / 2, zeros)
    return 0.0 if not zeros or rounded else zeros / entries


def _rows_before_last(victim: Victim) -> Bool[Tensor, " p"] | None:
    """The units that feed the last layer and whose own weights changed; None where this is not
    known."""
    network = victim.network
    if not isinstance(network, MLP) or network.depth < 2:
        return None
    change = _change(victim, network.layers[-2].weight)
    return None if change is None else change.any(1)


def _few_units(victim: Victim) -> tuple[int, int] | None:
    """(units that changed, units) of the first layer, if hardly any did."""
    first = victim.network.first
    change = None if first is None else _change(victim, first.weight)
    if change is None or not isinstance(victim.network, MLP):
        return None
    changed, units = int(change.any(1).sum()), len(change)
    rare = float(binom.cdf(changed, units, 0.5)) < _HARDLY
    return (changed, units) if rare and changed <= _FEWEST_UNITS * units else None


def _change(victim: Victim, name: str) -> Float[Tensor, "b a"] | None:
    """The change of a weight matrix; None where it is not trained or no matrix."""
    if name not in victim.network.trained or victim.theta_f[name].dim() != 2:
        return None
    change: Tensor = victim.delta([name])[name]
    return change
