"""h(x; θf), h(x; θ0), or both: the rows that each point adds to the span of the last layer.

Features move while a network trains, so ΔW_L is an average along the path and no combination of
features at θf alone. Features at both ends of the path explain it a thousand times better:

    ΔW_L ≈ Σ_i α_i h(x_i; θf)ᵀ + β_i h(x_i; θ0)ᵀ.

The two features of a point are nearly parallel. Their mean and their difference span the same space
and are not parallel, so these are the rows. Family 1 is (h_f + h_0)/2, and its coefficient is
α + β. Family 2 is h_f − h_0, and its coefficient is (α − β)/2.

**Lifting.** For two layers of ReLU without bias, relu(t) = |t|/2 + t/2, so the odd part of h is
linear in x, and flipping x_i changes only the linear part Σ_i α_i ½W_1 x_i. The same holds for
every network whose h has a linear odd part. The lifted rows are the even parts, (h(x) + h(−x))/2. A
basis of all linear parts joins the span as rows of its own, with free coefficients. Then x and −x
are the same point, and the signs are found afterwards (`attacks/exact/signs.py`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from recollect.errors import OptionError
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.shapes import Float, Tensor, Theta, cast
from recollect.victim.mlp import MLP
from recollect.victim.network import Derivative
from recollect.victim.parity import Parity, parity


class Rows:
    """T_k(z_i), k = 1 … K: the one or two rows of each point, and the rows that belong to none."""

    def __init__(
        self, evidence: Evidence, *, lifted: bool, device: torch.device, dtype: torch.dtype
    ) -> None:
        network = evidence.network
        thetas = [cast(theta, device, dtype) for theta in evidence.thetas]
        if lifted and parity(network, thetas[0]) is not Parity.LINEAR:
            raise OptionError(
                "expected a network whose features have a linear odd part (two layers of ReLU, no "
                "biases), got another; its signs need no lifting"
            )
        if evidence.endpoints is Endpoints.PATH:
            raise OptionError(
                "expected final, initial or both endpoints for the last layer, got path; use both"
            )
        self._whole, self._thetas, self._lifted = network, thetas, lifted
        self._network = network
        self._averaged = lifted
        """Whether even parts are averages over z and −z."""
        if lifted and isinstance(network, MLP) and network.depth == 2:
            # The even part of the activation gives them with half the work.
            self._network, self._averaged = replace(network, parity=1), False
        self.biased = network.last.bias in set(evidence.target)
        """Whether a bias is part of the target: it is the weight of a feature that is always 1."""
        self.families = len(thetas)
        self.fixed = self._linear_parts(device, dtype) if lifted else None

    def __call__(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "k n p"]:
        H = torch.stack([self._features(theta, Z) for theta in self._thetas])
        return self._mixed(H)

    def jacobian(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "k p n r"]:
        """∂T_k(z_i)/∂z_i."""
        return self._mixed(torch.stack(self.slopes(Z)))

    def slopes(self, Z: Float[Tensor, "n r"]) -> list[Float[Tensor, "p n r"]]:
        """The derivative of each point's row at each θ_e; `unmixed` gives their coefficients."""
        slopes = [self._slopes(theta, Z) for theta in self._thetas]
        if self.biased:
            slopes = [torch.cat([J, J.new_zeros(1, *J.shape[1:])]) for J in slopes]
        return slopes

    def _mixed(self, rows: Tensor) -> Tensor:
        """Mean and difference of what belongs to θf and to θ0."""
        if self.families == 1:
            return rows
        return torch.stack([(rows[0] + rows[1]) / 2, rows[0] - rows[1]])

    def _features(self, theta: Theta, Z: Tensor) -> Tensor:
        H = self._network.features(theta, Z)
        if self._averaged:
            H = (H + self._network.features(theta, -Z)) / 2
        # A bias is the weight of a feature that is always 1.
        return torch.cat([H, H.new_ones(*H.shape[:-1], 1)], dim=-1) if self.biased else H

    def _slopes(self, theta: Theta, Z: Tensor) -> Tensor:
        J = self._network.jacobian(theta, Z)
        return (J - self._network.jacobian(theta, -Z)) / 2 if self._averaged else J

    def derivatives(self, Z: Float[Tensor, "n r"], dtype: torch.dtype) -> list[Derivative]:
        """The derivative of each point's row at each θ_e, without the entry of the bias.

        Mean and difference are not taken: `unmixed` gives the coefficients to go with it.
        """
        return [
            self._derivative(cast(theta, Z.device, dtype), Z.to(dtype)) for theta in self._thetas
        ]

    def unmixed(self, C: Float[Tensor, "k n c"]) -> Float[Tensor, "k n c"]:
        """From the coefficients of mean and difference to those of the rows at each θ_e."""
        return C if self.families == 1 else torch.stack([C[0] / 2 + C[1], C[0] / 2 - C[1]])

    def _derivative(self, theta: Theta, Z: Tensor) -> Derivative:
        at = self._network.derivative(theta, Z)
        if not self._averaged:
            return at
        opposite = self._network.derivative(theta, -Z)
        return Derivative(
            lambda v: (at.push(v) - opposite.push(v)) / 2,
            lambda u: (at.pull(u) - opposite.pull(u)) / 2,
        )

    def _linear_parts(self, device: torch.device, dtype: torch.dtype) -> Float[Tensor, "q p"]:
        """The odd parts at the unit vectors for each θ_e, which span every sum of odd parts."""
        network, E = self._whole, torch.eye(self._whole.d, dtype=dtype, device=device)
        odd = torch.stack(
            [
                (network.features(theta, E) - network.features(theta, -E)) / 2
                for theta in self._thetas
            ]
        )
        if self.biased:
            odd = torch.cat([odd, odd.new_zeros(*odd.shape[:2], 1)], dim=2)
        return self._mixed(odd).flatten(0, 1)
