"""How h(−x) is related to h(x), and so whether a network can tell a point from its negative."""

from __future__ import annotations

from enum import Enum

import torch

from recollect.shapes import Theta, cast
from recollect.victim.network import Network


class Parity(Enum):
    """How h(−x) is related to h(x)."""

    NONE = "the sign of a point shows"
    LINEAR = "the odd part is linear: signs hide in the sum of all points"
    EVEN = "h(−x) = h(x): a point and its negative explain the same"
    ODD = "h(−x) = −h(x): a point and its negative explain the same"


def parity(network: Network, theta: Theta) -> Parity:
    """The parity of the features h, found by testing them at a few random points."""
    device = next(iter(theta.values())).device
    theta = cast(
        theta, device, torch.float64
    )  # a restricted float32 network has a first layer in float64
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(6, network.d, generator=generator, dtype=torch.float64).to(device)
    X[4], X[5] = X[0] + X[1], X[2] - X[3]
    plus, minus = network.features(theta, X), network.features(theta, -X)
    even, odd = (plus + minus) / 2, (plus - minus) / 2
    small = 100 * torch.finfo(plus.dtype).eps * float(plus.abs().max())
    if float(even.abs().max()) <= small:
        return Parity.ODD
    if float(odd.abs().max()) <= small:
        return Parity.EVEN
    linear = torch.stack([odd[4] - odd[0] - odd[1], odd[5] - odd[2] + odd[3]])
    return Parity.LINEAR if float(linear.abs().max()) <= small else Parity.NONE
