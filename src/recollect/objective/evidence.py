"""Δ ≈ Σ_e Σ_ik α_ik^e ∇f_k(x_i; θ_e): a known vector, nearly a combination of gradients.

Evidence is what an attack explains: the vector Δ (the *target*) and the parameters θ_e (the
*nodes*) at which the gradients are taken. The change θf − θ0 of the weights is evidence, with nodes
θf and θ0. So is a gradient that a client shares, with the one node at which it was computed.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from recollect.errors import OptionError, VictimError
from recollect.examine.counting import effective_equations, output_rank
from recollect.objective.endpoints import Endpoints
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.network import Network
from recollect.victim.victim import Victim


@dataclass(frozen=True)
class Evidence:
    """A vector that gradients of a network explain, and where those gradients are taken.

    Parameters
    ----------
    name
        The target in words, for descriptions: "θf − θ0".
    network
        The network whose gradients they are.
    target
        Δ by parameter, in float64.
    nodes
        The parameters at which gradients may be taken: θf, θ0 where it is known, and weights on the
        way between them where they are known.
    endpoints
        Which of the nodes are used.
    outside
        ‖ΔW_1(I − ÛÛᵀ)‖²: the part of the target that a restriction to Û puts out of reach.
    """

    name: str
    network: Network
    target: Theta
    nodes: tuple[Theta, ...]
    endpoints: Endpoints = Endpoints.FINAL
    outside: float = 0.0

    @classmethod
    def change(cls, victim: Victim) -> Evidence:
        """θf − θ0, with gradients at θf."""
        if victim.theta_0 is None:
            raise VictimError(
                "expected the weights before training, got none; this attack explains θf − θ0 and "
                "needs θ0"
            )
        nodes = (victim.theta_f, victim.theta_0)
        target = _Difference(*nodes, victim.network.trained)
        return cls("θf − θ0", victim.network, target, nodes)

    def at(self, endpoints: Endpoints) -> Evidence:
        """The same target, explained by gradients taken elsewhere."""
        if endpoints is not Endpoints.FINAL and len(self.nodes) < 2:
            raise OptionError(
                f"expected --endpoints final for evidence with one set of weights ({self.name}), "
                f"got {endpoints.value}; leave it out"
            )
        if endpoints.several and not self.moving:
            raise OptionError(
                f"expected features that training moved for --endpoints {endpoints.value}, got "
                "fixed ones; use final"
            )
        return replace(self, endpoints=endpoints)

    @property
    def thetas(self) -> tuple[Theta, ...]:
        """θ_e: the nodes that `endpoints` selects."""
        if self.endpoints is Endpoints.FINAL:
            return self.nodes[:1]
        if self.endpoints is Endpoints.INITIAL:
            return self.nodes[1:2]
        if self.endpoints is Endpoints.BOTH:
            return self.nodes[:2]
        return self.nodes[:3] if len(self.nodes) > 2 else (*self.nodes, _middle(*self.nodes))

    @cached_property
    def moving(self) -> bool:
        """Whether the features h(x; θ) differ between the first two nodes.

        Training moves neither random features nor the features of a frozen backbone.
        """
        if len(self.nodes) < 2:
            return False
        last, (after, before) = self.network.last.names, self.nodes[:2]
        return any(
            not torch.equal(tensor, before[name])
            for name, tensor in after.items()
            if name not in last and tensor.is_floating_point()
        )

    @cached_property
    def movement(self) -> float:
        """ε = ‖θ0 − θf‖/‖θf‖ of the weight matrices; 0 where training did not move the features.

        Gradients at the two nodes differ by about ε of themselves, so at the data a share of about
        ε² of the target remains unexplained.
        """
        if not self.moving:
            return 0.0
        after, before = self.nodes[:2]
        matrices = [
            name
            for name, value in after.items()
            if value.dim() > 1 and value.is_floating_point() and name in before
        ]
        moved = sum(
            float((after[name].double() - before[name].double()).square().sum())
            for name in matrices
        )
        size = sum(float(after[name].double().square().sum()) for name in matrices)
        return math.sqrt(moved / size) if size else math.inf

    @cached_property
    def output_rank(self) -> int:
        """The numerical rank of [ΔW_L | Δb_L]; c where the last layer did not move."""
        return output_rank(self.network, self.target, self.nodes[0])

    def effective_equations(
        self, names: Sequence[str], n: int, *, families: int, fixed_rows: int = 0
    ) -> int:
        """The equations that these parameters leave for the coordinates of n points."""
        return effective_equations(
            self.network,
            self.nodes[0],
            names,
            n,
            rank=self.output_rank,
            families=families,
            fixed_rows=fixed_rows,
        )

    @property
    def d(self) -> int:
        """Coordinates of a point."""
        return self.network.d

    @property
    def c(self) -> int:
        """Outputs of the network."""
        return self.network.c

    def augmented(self, s: float) -> Evidence:
        """The same for the network (x, s) ↦ f(x), whose first layer has no bias.

        A bias b_1 is a weight b_1/s on the constant input s. Gradients by that weight are s times
        those by b_1, and the target is scaled like them: [ΔW_1 | s·Δb_1].
        """
        network = self.network
        return replace(
            self,
            network=network.augmented(),
            target=network.augment_theta(self.target, s),
            nodes=tuple(network.augment_theta(theta, 1 / s) for theta in self.nodes),
        )

    def restrict(self, U: Float[Tensor, "d r"]) -> Evidence:
        """The same for the network z ↦ f(Uz), whose points have r coordinates.

        Algorithm 2 on this evidence is Algorithm 1 on the restricted evidence. U has orthonormal
        columns, so gradients keep their inner products: ∂f/∂W_1 = b xᵀ = b zᵀUᵀ.
        """
        network = self.network
        nodes = tuple(network.restrict_theta(theta, U) for theta in self.nodes)
        restricted = replace(self, network=network.restrict(U), nodes=nodes)
        first = network.first
        if first is None or first.weight not in self.target:
            return restricted
        whole = self.target[first.weight]
        # The restricted weights are linear in W_1, so the same map restricts a difference of them.
        part = network.restrict_theta({first.weight: whole}, U)[first.weight]
        if part is whole:  # a torch module keeps its first layer and is given Uz instead
            return restricted
        outside = self.outside + float((whole - part @ U.to(part).T).square().sum())
        target = ChainMap({first.weight: part}, self.target)  # type: ignore[arg-type]
        return replace(restricted, target=target, outside=outside)

    def smoothed(self, X: Float[Tensor, "n d"], tau: float) -> Evidence:
        """The same with a network whose gates open gradually (`Network.smoothed`)."""
        theta = {
            name: value.double() if value.is_floating_point() else value
            for name, value in self.nodes[0].items()
        }
        device = next(iter(theta.values())).device
        return replace(self, network=self.network.smoothed(theta, X.double().to(device), tau))


class _Difference(Mapping[str, Tensor]):
    """θf − θ0 by name, subtracted in float64 because the weights nearly cancel.

    A tensor is subtracted only when it is asked for: an attack on the last layer never holds the
    change of the other layers.
    """

    def __init__(self, after: Theta, before: Theta, names: tuple[str, ...]) -> None:
        self._after, self._before, self._names = after, before, names

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._after[name].double() - self._before[name].double()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _middle(after: Theta, before: Theta) -> dict[str, Tensor]:
    """(θf + θ0)/2."""
    return {
        name: (value.double() + before[name].double()) / 2 if value.is_floating_point() else value
        for name, value in after.items()
    }
