"""Small victims and their evidence, which many tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.simulate.training import minimum_norm
from recollect.truth.data.dataset import Dataset
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features
from recollect.victim.victim import Victim

if TYPE_CHECKING:
    from recollect.attacks.result import Saved

F64 = torch.float64
CPU = torch.device("cpu")


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def perturbed(network: MLP, seed: int, size: float = 0.3) -> Victim:
    """Random θ0, and θf a random step away: any Δθ will do where only the algebra is tested."""
    theta_0 = initial_theta(network, init="fan-in", generator=generator(seed), dtype=F64)
    noise = initial_theta(network, init="torch", generator=generator(seed + 1), dtype=F64)
    moved = {
        name: value + size * noise[name] if name in network.trained else value
        for name, value in theta_0.items()
    }
    if network.frozen:
        last = network.last.weight
        moved[last] = torch.randn(theta_0[last].shape, generator=generator(seed + 2), dtype=F64)
    return Victim(network, theta_0, moved)


def evidence(victim: Victim, endpoints: Endpoints = Endpoints.FINAL) -> Evidence:
    """θf − θ0, with gradients at these endpoints."""
    return Evidence.change(victim).at(endpoints)


def interpolated(
    seed: int = 0,
    *,
    n: int = 6,
    d: int = 8,
    r: int = 4,
    p: int = 200,
    features: int = 7,
    **options: object,
) -> tuple[Victim, Dataset]:
    """Random features that interpolate synthetic data exactly: the loss at the true data is zero.

    Victims that differ in `features` alone have learned the same data.
    """
    data = synthetic(n=n, dim=d, rank=r, noise=0.5, seed=seed)
    network = random_features(d, p, 1, **options)  # type: ignore[arg-type]
    theta_0 = initial_theta(network, init="fan-in", generator=generator(seed + features), dtype=F64)
    return minimum_norm(network, theta_0, data.inputs, data.targets).victim, data


def small_mlp(seed: int = 0, **options: object) -> Victim:
    return perturbed(mlp(**{"d": 5, "width": 30, "c": 2, **options}), seed)  # type: ignore[arg-type]


class Memory:
    """A checkpoint that forgets nothing, for interrupting."""

    def __init__(self) -> None:
        self.saved: dict[str, Saved] = {}

    def load(self, fingerprint: str) -> Saved | None:
        return self.saved.get(fingerprint)

    def save(self, fingerprint: str, saved: Saved) -> None:
        self.saved[fingerprint] = saved


class Largest(TorchDispatchMode):
    """The largest tensor that any operation inside the block made."""

    size = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            if isinstance(value, torch.Tensor):
                self.size = max(self.size, value.numel())
        return out


def thetas(victim: Victim, endpoints: Endpoints) -> list[dict[str, Tensor]]:
    """The parameters at which gradients are taken, written out again."""
    f, o = victim.theta_f, victim.theta_0
    assert o is not None
    middle = {name: 0.5 * f[name] + 0.5 * o[name] for name in f}
    return {
        Endpoints.FINAL: [f],
        Endpoints.INITIAL: [o],
        Endpoints.BOTH: [f, o],
        Endpoints.PATH: [f, o, middle],
    }[endpoints]
