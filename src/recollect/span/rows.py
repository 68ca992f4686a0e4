"""h(x; θf), h(x; θ0), or both: the rows that each point adds to the span of the last layer.

Features move while a network trains, so ΔW_L is an average along the path and no combination of features at θf alone.
Both ends of the path explain it a thousand times better:

    ΔW_L ≈ Σ_i α_i h(x_i; θf)ᵀ + β_i h(x_i; θ0)ᵀ.

The two are nearly parallel. Their mean and their difference span the same and are not, so those are the rows:
family 1 is (h_f + h_0)/2 with coefficient α + β, family 2 is h_f − h_0 with coefficient (α − β)/2.

**Lifting.** Where the odd part of h is linear in x, as it is for two layers of ReLU without bias,
relu(t) = |t|/2 + t/2, flipping x_i changes nothing but the linear part Σ_i α_i ½W_1 x_i. The lifted rows are the even
parts, (h(x) + h(−x))/2, and a basis of all linear parts joins the span as rows of its own, with free coefficients.
Then x and −x are the same point, and the signs are found afterwards (`solve/signs.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from enum import Enum

import torch

from recollect.errors import OptionError
from recollect.shapes import Float, Tensor, Theta
from recollect.span.base import Endpoints, cast
from recollect.victim import Network, Victim


class Parity(Enum):
    """What h(−x) tells about h(x)."""

    NONE = "the sign of a point shows"
    LINEAR = "the odd part is linear: signs hide in the sum of all points"
    EVEN = "h(−x) = h(x): a point and its negative explain the same"
    ODD = "h(−x) = −h(x): a point and its negative explain the same"


class Rows:
    """T_k(z_i), k = 1 … K: the rows a point owns, K = 1 or 2; and the rows that belong to no point."""

    def __init__(
        self, victim: Victim, endpoints: Endpoints, *, lifted: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        network = victim.network
        thetas = [cast(theta, device, dtype) for theta in ends(victim, endpoints)]
        if lifted and parity(network, thetas[0]) is not Parity.LINEAR:
            raise OptionError(
                "expected a network whose features have a linear odd part (two layers of ReLU, no biases), got "
                "another; its signs need no lifting"
            )
        if endpoints is Endpoints.PATH:
            raise OptionError("expected final, initial or both endpoints for the last layer, got path; use both")
        self._network, self._thetas, self._lifted = network, thetas, lifted
        self._bias = network.last.bias is not None
        self.families, self.inputs = len(thetas), network.d
        self.fixed = self._linear_parts(device, dtype) if lifted else None

    @classmethod
    def stacked(cls, several: Sequence[Rows]) -> Rows:
        """Of several networks of one form: each has its own points, Z is v×n×r."""
        rows = copy.copy(several[0])
        rows._thetas = [
            {name: torch.stack([theta[name] for theta in thetas]) for name in thetas[0]}
            for thetas in zip(*(one._thetas for one in several), strict=True)
        ]
        return rows

    def __call__(self, Z: Float[Tensor, "*v n r"]) -> Float[Tensor, "k *v n p"]:
        H = torch.stack([self._features(theta, Z) for theta in self._thetas])
        return self._mixed(H)

    def jacobian(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "k p n r"]:
        J = torch.stack([self._slopes(theta, Z) for theta in self._thetas])
        if self._bias:
            J = torch.cat([J, J.new_zeros(len(J), 1, *J.shape[2:])], dim=1)
        return self._mixed(J)

    def _mixed(self, rows: Tensor) -> Tensor:
        if self.families == 1:
            return rows
        return torch.stack([(rows[0] + rows[1]) / 2, rows[0] - rows[1]])

    def _features(self, theta: Theta, Z: Tensor) -> Tensor:
        H = self._network.features(theta, Z)
        if self._lifted:
            H = (H + self._network.features(theta, -Z)) / 2
        # A bias is the weight of a feature that is always 1.
        return torch.cat([H, H.new_ones(*H.shape[:-1], 1)], dim=-1) if self._bias else H

    def _slopes(self, theta: Theta, Z: Tensor) -> Tensor:
        J = self._network.jacobian(theta, Z)
        return (J - self._network.jacobian(theta, -Z)) / 2 if self._lifted else J

    def _linear_parts(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "q p"]:
        """The odd parts at the unit vectors, at each end: all that a sum of odd parts can be."""
        E = torch.eye(self._network.d, dtype=dtype, device=device)
        odd = torch.stack(
            [(self._network.features(theta, E) - self._network.features(theta, -E)) / 2 for theta in self._thetas]
        )
        if self._bias:
            odd = torch.cat([odd, odd.new_zeros(*odd.shape[:2], 1)], dim=2)
        return self._mixed(odd).flatten(0, 1)


def moving(victim: Victim) -> bool:
    """Whether h(x; θ) differs between θ0 and θf: not for random features or a frozen backbone."""
    if victim.theta_0 is None:
        return False
    return any(
        not torch.equal(tensor, victim.theta_0[name])
        for name, tensor in victim.theta_f.items()
        if name not in victim.network.last.names and tensor.is_floating_point()
    )


def parity(network: Network, theta: Theta) -> Parity:
    """Tried at a few points, as everything that is claimed of a network."""
    device = next(iter(theta.values())).device
    theta = cast(theta, device, torch.float64)  # a restricted float32 network has a first layer in float64
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


def ends(victim: Victim, endpoints: Endpoints) -> list[Theta]:
    if endpoints is Endpoints.FINAL or victim.theta_0 is None:  # `Weights` has asked for θ0 already
        return [victim.theta_f]
    if endpoints is Endpoints.INITIAL:
        return [victim.theta_0]
    if not moving(victim):
        raise OptionError("expected features that training moved for both endpoints, got fixed ones; use final")
    both: list[Theta] = [victim.theta_f, victim.theta_0]
    if endpoints is Endpoints.BOTH:
        return both
    middle = {
        name: (f.double() + both[1][name].double()) / 2 if f.is_floating_point() else f for name, f in both[0].items()
    }
    return [*both, middle]
