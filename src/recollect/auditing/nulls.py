"""Null victims: they hold no training data, so whatever an attack finds in them is a false alarm.

Each is made from the audited victim, so that it has the same sizes and the same precision:

    shuffled        θf = θ0 + ΠΔθ: the change of each unit, with that of its bias, is given to
                    another unit; [ΔW_1 | Δb_1] keeps its rank and its row space
    paired          the same, but a unit's row of ΔW_l and its column of ΔW_{l+1} go to the same
                    unit: what training did to the layers still agrees, and only θ0 does not
    wrong start     θ0 is replaced by a random permutation of its entries
    random weights  θf = θ0 + noise that has the norm of Δθ in each tensor

Two more are for benchmarks and tests. An audit does not attack them: they are far from any trained
model, and points in which nothing is called would only make false alarms look rarer.

    scattered       each tensor keeps the values of its change, at random places: a change with few
                    entries keeps their number
    one entry       each tensor has its whole change in one entry, and these entries meet in one
                    unit of each layer
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


def paired(victim: Victim, seed: int) -> Victim:
    generator = stream("null: paired", seed)
    last, first = victim.network.last, victim.network.first
    delta = victim.delta(victim.network.trained)
    orders: dict[str, Tensor] = {}
    """The order of the rows of each layer, by the layer's name."""
    entering: dict[int, Tensor] = {}
    """The order of the units that enter the next layer, by their number."""

    def order(name: str) -> Tensor | None:
        layer = name.rpartition(".")[0]
        if name in last.names:
            return None
        if layer not in orders:
            orders[layer] = torch.randperm(len(delta[name]), generator=generator)
        return orders[layer]

    def moved(name: str, change: Tensor) -> Tensor:
        if change.dim() > 1 and (first is None or name != first.weight):
            units = change.shape[1]
            before = entering.get(units)
            if before is None:
                before = torch.randperm(units, generator=generator)
            change = change[:, before]
        rows = order(name)
        if rows is None:
            return change
        if change.dim() > 1:
            entering.clear()
            entering[len(rows)] = rows
        return change[rows]

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


def scattered(victim: Victim, seed: int) -> Victim:
    generator = stream("null: scattered", seed)

    def moved(name: str, change: Tensor) -> Tensor:
        places = torch.randperm(change.numel(), generator=generator)
        return change.flatten()[places].reshape(change.shape)

    return _with_change(victim, moved)


def one_entry(victim: Victim, seed: int) -> Victim:
    generator = stream("null: one entry", seed)
    units: dict[int, int] = {}
    """The unit that changes, by the number of units in its layer."""

    def unit(size: int) -> int:
        if size not in units:
            units[size] = int(torch.randint(size, (), generator=generator))
        return units[size]

    def moved(name: str, change: Tensor) -> Tensor:
        one = torch.zeros_like(change)
        one[tuple(unit(size) for size in change.shape)] = change.norm()
        return one

    return _with_change(victim, moved)


NULLS: Mapping[str, Callable[[Victim, int], Victim]] = {
    "shuffled": shuffled,
    "paired": paired,
    "wrong start": wrong_start,
    "random weights": random_weights,
}
"""The null victims that an audit attacks, in this order."""
ALL_NULLS = {**NULLS, "scattered": scattered, "one entry": one_entry}


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
