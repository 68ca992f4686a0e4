"""d/dt (‖W_l[u,:]‖² + b_l[u]² − ‖W_{l+1}[:,u]‖²) = 0: what the gradient flow of any loss keeps.

For each unit u of a network of homogeneous activations, scaling what enters the unit and unscaling
what leaves it changes no output, so no gradient has a component along that direction (Du, Hu and
Lee 2018). The imbalance of a change is the share that breaks this law,

    B = Σ_u |Δ‖in_u‖² − Δ‖out_u‖²| / Σ_u (|Δ‖in_u‖²| + |Δ‖out_u‖²|)

over the units of all hidden layers: near 0 for small steps of gradient descent, also by
mini-batches, and up to 1 for steps that overshoot, for momentum in large steps, for learning rates
that differ between layers, and for optimisers that rescale entries. Gradients at the two ends
mostly explain a change with a large B poorly, but not always.
"""

from __future__ import annotations

import itertools

import torch

from recollect.examine.findings import Finding, Severity
from recollect.shapes import Float, Tensor
from recollect.victim.activations import activation
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim

_LOST = 0.5
"""From here on gradients at the ends mostly leave a tenth or more of the change at the true inputs,
and below 0.2 hardly ever more than a hundredth."""
_ROUNDED = 100.0
"""Multiple of the rounding error that the changes of the norms exceed where B means anything."""


def imbalance(victim: Victim) -> float | None:
    """B; None where nothing is known: other networks, frozen layers, changes lost in rounding."""
    network = victim.network
    if not isinstance(network, MLP) or victim.theta_0 is None:
        return None
    if not activation(network.activation).homogeneous:
        return None
    layers, moved = network.layers, set(network.trained)
    broken = changed = floor = 0.0
    for layer, following in itertools.pairwise(layers):
        if not {*layer.names, following.weight} <= moved:
            continue
        entering = sum((_gain(victim, name, 0) for name in layer.names), torch.zeros(()))
        leaving = _gain(victim, following.weight, 1)
        broken += float((entering - leaving).abs().sum())
        changed += float(entering.abs().sum() + leaving.abs().sum())
        for name in (*layer.names, following.weight):
            value = victim.theta_f[name]
            floor += torch.finfo(value.dtype).eps * float(value.double().square().sum())
    return broken / changed if changed > _ROUNDED * floor else None


def unbalanced(victim: Victim) -> list[Finding]:
    """The finding that training was no gradient flow."""
    B = imbalance(victim)
    if B is None or B < _LOST:
        return []
    assumed = isinstance(victim.network, MLP) and victim.network.assumed
    other = ", or its activation is not ReLU" if assumed else ""
    return [
        Finding(
            Severity.LIMITS,
            f"training did not keep the layers in balance ({B:.0%} of the change breaks the law "
            "that small steps of gradient descent keep)",
            "its steps overshot, its layers had different learning rates, or momentum, weight "
            f"decay or another optimiser made the change{other}; gradients at its two ends may "
            "then explain it poorly, and what is not found tells nothing",
            "nothing to do about the training; a checkpoint from later in it, as INIT, may be "
            "explained better",
            misfit=True,
            code="unbalanced",
        )
    ]


def _gain(victim: Victim, name: str, dim: int) -> Float[Tensor, " u"]:
    """Δ of the squared norms of rows (0) or columns (1), or of the squares of a bias."""
    assert victim.theta_0 is not None
    after, before = victim.theta_f[name].double(), victim.theta_0[name].double()
    gain = (after - before) * (after + before)
    return gain if gain.dim() == 1 else gain.sum(1 - dim)
