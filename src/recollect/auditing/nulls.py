"""Null victims: they hold no training data, so whatever an attack finds in them is a false alarm.

Each is made from the audited victim, so that it has the same sizes and the same precision:

    shuffled        θf = θ0 + ΠΔθ: the change of each unit, with that of its bias, is given to
                    another unit; [ΔW_1 | Δb_1] keeps its rank and its row space
    wrong start     θ0 is replaced by a random permutation of its entries
    random weights  θf = θ0 + noise that has the norm of Δθ in each tensor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from recollect.shapes import Tensor, Theta
from recollect.system.seeds import stream
from recollect.victim.victim import Victim


def shuffled(victim: Victim, seed: int) -> Victim:
    generator = stream("null: shuffled", seed)
    last = set(victim.network.last.names)
    first = victim.network.first
    inputs = set() if first is None else {first.weight}

    orders: dict[tuple[str, int], Tensor] = {}

    def moved(name: str, change: Tensor) -> Tensor:
        if name not in last:
            unit = (name.rpartition(".")[0], len(change))  # a bias goes with its weights
            if unit not in orders:
                orders[unit] = torch.randperm(len(change), generator=generator)
            change = change[orders[unit]]
        if change.dim() > 1 and name not in inputs:
            change = change[:, torch.randperm(change.shape[1], generator=generator)]
        return change

    return _with_change(victim, moved)


def wrong_start(victim: Victim, seed: int) -> Victim:
    generator = stream("null: wrong start", seed)
    theta_0 = _start(victim)
    other = {
        name: value.flatten()[torch.randperm(value.numel(), generator=generator)].reshape(
            value.shape
        )
        if name in victim.network.trained
        else value
        for name, value in theta_0.items()
    }
    return Victim(victim.network, other, victim.theta_f, input_shape=victim.input_shape)


def random_weights(victim: Victim, seed: int) -> Victim:
    generator = stream("null: random weights", seed)

    def noise(name: str, change: Tensor) -> Tensor:
        drawn = torch.randn(change.shape, generator=generator, dtype=change.dtype)
        drawn *= change.norm() / drawn.norm().clamp_min(1e-300)
        return drawn

    return _with_change(victim, noise)


NULLS: Mapping[str, Callable[[Victim, int], Victim]] = {
    "shuffled": shuffled,
    "wrong start": wrong_start,
    "random weights": random_weights,
}


def _start(victim: Victim) -> Theta:
    if victim.theta_0 is None:
        raise TypeError("a victim without θ0 has no change to disturb")
    return victim.theta_0


def _with_change(victim: Victim, changed: Callable[[str, Tensor], Tensor]) -> Victim:
    theta_0 = _start(victim)
    delta = victim.delta(victim.network.trained)
    theta_f = {
        name: (theta_0[name].double() + changed(name, delta[name])).to(value.dtype)
        if name in delta
        else value
        for name, value in victim.theta_f.items()
    }
    return Victim(victim.network, theta_0, theta_f, input_shape=victim.input_shape)
