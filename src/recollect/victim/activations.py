"""Activations φ by name, and whether φ(tx) = tφ(x) for every t > 0 (then a bias-free net hides each point's norm)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.errors import OptionError


@dataclass(frozen=True)
class Activation:
    name: str
    phi: Callable[[Tensor], Tensor]
    homogeneous: bool


_KNOWN = {
    activation.name: activation
    for activation in (
        Activation("relu", torch.relu, homogeneous=True),
        Activation("leaky-relu", torch.nn.functional.leaky_relu, homogeneous=True),
        Activation("tanh", torch.tanh, homogeneous=False),
        Activation("sigmoid", torch.sigmoid, homogeneous=False),
        Activation("gelu", torch.nn.functional.gelu, homogeneous=False),
        Activation("softplus", torch.nn.functional.softplus, homogeneous=False),
        Activation("sine", torch.sin, homogeneous=False),
        Activation("erf", torch.erf, homogeneous=False),
    )
}


def activation(name: str) -> Activation:
    if name not in _KNOWN:
        raise OptionError(f"expected an activation out of {', '.join(_KNOWN)}, got {name!r}; choose one of those")
    return _KNOWN[name]
