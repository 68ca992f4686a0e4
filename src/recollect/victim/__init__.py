"""Checkpoints and networks: what an attack is given."""

from recollect.victim.infer import Architecture
from recollect.victim.module import ModuleNetwork
from recollect.victim.network import MLP, Bent, Layer, Network, Tap, initial_theta, mlp, random_features
from recollect.victim.victim import Victim, select

__all__ = [
    "MLP",
    "Architecture",
    "Bent",
    "Layer",
    "ModuleNetwork",
    "Network",
    "Tap",
    "Victim",
    "initial_theta",
    "mlp",
    "random_features",
    "select",
]
