"""Whether the change is that of adapters merged into the weights: ΔW_l = B_l A_l of one rank r.

Low rank alone does not tell: training on n records changes W_1 by a matrix of rank n as well, and a
single step changes every layer so. What tells is what the rows of ΔW_l lie in. Gradient descent
adds combinations of what enters the layer, ΔW_l = Σ b_i h_iᵀ. Where W_1 was trained, the training
inputs that produced these features h_i lie in the row space of ΔW_1. The rows of A_l, by contrast,
are initialised at random and are no combinations of features. So the features of random points in
that row space are computed at both ends of training. Their leading directions contain nearly all of
ΔW_l after gradient descent, and little of it after a merge. The first layer has no such test:
nobody knows its inputs. Adapters of the first layer alone are therefore not recognised.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from recollect.errors import VictimError
from recollect.examine.findings import Finding, Severity
from recollect.examine.subspace import rounding, spectrum
from recollect.shapes import Float, Tensor, Theta
from recollect.system.seeds import stream
from recollect.victim.mlp import MLP
from recollect.victim.victim import Victim

_ROUNDINGS = 10.0
"""Singular values below this multiple of what storing the weights once leaves count as zero."""
_POINTS = 512
"""Random points whose features are compared with the change."""
_ENERGY = 0.99
"""Share of the features' energy that their leading directions hold."""
_MOST_DIRECTIONS = 0.5
"""If it takes more than this share of all directions, the features fill the layer: no test."""
_MOST_OUTSIDE = 0.25
"""Largest share of ΔW_l outside those directions that fits gradient descent (docs/audit.md)."""
_ACTIVATIONS = ("relu", "tanh", "gelu", "sigmoid")
"""Where the activation was only assumed, each of these kinds must leave that much outside."""


def merged_adapters(victim: Victim) -> list[Finding]:
    """The finding that the change is a merged product of low rank, if it is."""
    rank, network = common_rank(victim), victim.network
    if rank is None or not isinstance(network, MLP):
        return []
    names = _ACTIVATIONS if network.assumed else (network.activation,)
    if not all(outside_features(victim, name, min(rank, 2)) > _MOST_OUTSIDE for name in names):
        return []
    return [
        Finding(
            Severity.LIMITS,
            f"every weight matrix that changed did so with rank {rank} exactly, and the change is "
            "not made of what enters the layers",
            "adapters (LoRA) may have been merged into the weights: the rank is then that of the "
            "adapters and says nothing of the data, and the change is no combination of gradients",
            "do not take a failure for safety; no attack here fits merged adapters",
            misfit=True,
            code="merged-adapters",
            reason="adapter",
        )
    ]


def common_rank(victim: Victim) -> int | None:
    """r, if all matrices that changed have rank r, or as near to r as their sizes allow, and
    nothing but matrices changed."""
    network = victim.network
    if not isinstance(network, MLP) or victim.theta_0 is None:
        return None
    delta = victim.delta(network.trained)
    changed = {name: change for name, change in delta.items() if bool(change.any())}
    if len(changed) < 2 or any(change.dim() != 2 for change in changed.values()):
        return None
    ranks = {
        name: _rank(change, rounding(victim.theta_f[name])) for name, change in changed.items()
    }
    r = max(ranks.values())
    full = all(ranks[name] == min(change.shape) for name, change in changed.items())
    exact = all(ranks[name] == min(r, *change.shape) for name, change in changed.items())
    return r if exact and not full else None


def _rank(change: Float[Tensor, "b a"], floor: float) -> int:
    return int((torch.linalg.svdvals(change) > _ROUNDINGS * floor).sum())


def outside_features(victim: Victim, activation: str, least_rank: int = 1) -> float:
    """The largest share of any ΔW_l, l > 1, outside the leading directions of what enters layer l.

    0 where there is nothing to compare. A ΔW_l of a rank below `least_rank` is left out: if several
    records have nearly the same features, a single row may hold the difference of these alone.
    """
    network = victim.network
    if not isinstance(network, MLP) or victim.theta_0 is None:
        return 0.0
    network, points = replace(network, activation=activation), _points(victim)
    largest = 0.0
    features = [_entering(network, theta, points) for theta in (victim.theta_0, victim.theta_f)]
    for layer, *ends in zip(network.layers[1:], *features, strict=True):
        if layer.weight not in network.trained:
            continue
        change = victim.delta([layer.weight])[layer.weight]
        H = torch.cat(ends)
        _, s, Vh = torch.linalg.svd(H, full_matrices=False)
        held = (s.square().cumsum(0) / s.square().sum() < _ENERGY).sum() + 1
        if _rank(change, rounding(victim.theta_f[layer.weight])) < least_rank:
            continue
        if not bool(change.any()) or int(held) > _MOST_DIRECTIONS * H.shape[1]:
            continue
        inside = float((change @ Vh[:held].T).square().sum() / change.square().sum())
        largest = max(largest, 1 - inside)
    return largest


def _points(victim: Victim) -> Float[Tensor, "m d"]:
    """Random points of the span of ΔW_1, of norm √d on average; of R^d where it was not trained."""
    try:
        U = spectrum(victim, augmented=False).basis()
    except VictimError:
        U = torch.eye(victim.d, dtype=torch.float64)
    drawn = torch.randn(_POINTS, U.shape[1], generator=stream("adapters", 0), dtype=torch.float64)
    points: Tensor = (victim.d / U.shape[1]) ** 0.5 * drawn @ U.double().T.cpu()
    return points


def _entering(network: MLP, theta: Theta, X: Float[Tensor, "m d"]) -> Sequence[Tensor]:
    """What enters layers 2 to L."""
    theta = {name: value.cpu().double() for name, value in theta.items()}
    taps = replace(network, frozen=frozenset()).taps(theta, X)[1]
    return [tap.A[:, 0] for tap in taps[1:]]
