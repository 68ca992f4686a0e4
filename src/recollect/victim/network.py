"""What every attack needs to know about a network f(x; θ).

`Network` is the interface. `victim/mlp.py` implements it for fully connected networks and for
random features, and `victim/module.py` for any torch module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from recollect.shapes import Float, Tensor, Theta


@dataclass(frozen=True)
class Layer:
    """The names of a linear layer's tensors in θ."""

    weight: str
    bias: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)


@dataclass(frozen=True)
class Tap:
    """Inputs and outputs of one trained linear layer: Y_it = W A_it + b for point i, position t.

    A fully connected layer has one position; a convolution has one for each place of its kernel.
    Hence ∂f/∂W = Σ_t B_it A_itᵀ and ∂f/∂b = Σ_t B_it with B_it = ∂f/∂Y_it.
    """

    layer: Layer
    A: Float[Tensor, "n t a"]
    Y: Tensor
    """The output as the network computed it, so that derivatives with respect to it can be taken.
    `positions` separates its positions from its outputs."""
    channels_first: bool = False

    def positions(self, B: Tensor) -> Float[Tensor, "*k n t b"]:
        """Reshape a tensor of Y's shape, or a stack of such tensors, so that positions and outputs
        are its last two axes."""
        before = B.dim() - self.Y.dim() + 1
        if self.channels_first:
            return B.flatten(before + 1).transpose(-1, -2)
        return B.reshape(*B.shape[:before], -1, B.shape[-1])


@dataclass(frozen=True)
class Bent:
    """One layer's part D_i A_iᵀ of Σ_k α_k ∇f_k(x_i), and the derivatives of both factors with
    respect to x_i."""

    layer: Layer
    A: Float[Tensor, "n a"]
    dA: Float[Tensor, "a n d"]
    D: Float[Tensor, "n b"]
    dD: Float[Tensor, "b n d"] | None
    """None where D is piecewise constant, as it is with ReLU."""


@dataclass(frozen=True)
class Derivative:
    """∂h/∂x at fixed points, as two products. What does not depend on v is computed only once."""

    push: Callable[[Float[Tensor, "n d"]], Float[Tensor, "n p"]]
    """v ↦ (∂h(x_i)/∂x_i) v_i."""
    pull: Callable[[Float[Tensor, "n p"]], Float[Tensor, "n d"]]
    """u ↦ (∂h(x_i)/∂x_i)ᵀ u_i."""


@runtime_checkable
class Network(Protocol):
    """A function f(x; θ) of inputs and parameters, with its first and last linear layers known by
    name."""

    @property
    def d(self) -> int:
        """Input dimension."""

    @property
    def c(self) -> int:
        """Number of outputs."""

    @property
    def first(self) -> Layer | None:
        """W_1, or None if the first operation on x is not a linear map of the flat input."""

    @property
    def last(self) -> Layer:
        """W_L."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The parameters that training changes: θ without the frozen ones."""

    def fixing(self, names: Collection[str]) -> Network:
        """The same network, of which training does not change these parameters."""

    @property
    def identity(self) -> str:
        """A text that describes the function apart from its parameters, the same in every
        process."""

    @property
    def homogeneous(self) -> bool:
        """Whether f(tx; θ) = t^k f(x; θ) for t > 0; then only the direction of each point can be
        found."""

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """f(x_i; θ) for each row of X."""

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """h(x_i; θ), the input of the last layer."""

    def jacobian(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "p n d"]:
        """∂h(x_i; θ)/∂x_i. The width comes first, so that all points together are one p×(nd)
        matrix."""

    def derivative(self, theta: Theta, X: Float[Tensor, "n d"]) -> Derivative:
        """∂h(x_i; θ)/∂x_i for products with many vectors."""

    @property
    def kinked(self) -> bool:
        """Whether the network has kinks that `smoothed` can smooth."""

    @property
    def untapped(self) -> tuple[str, ...]:
        """Trained parameters of layers for which `taps` gives no tap."""

    def taps(
        self, theta: Theta, X: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n c"], tuple[Tap, ...]]:
        """f(x_i; θ), and the inputs and outputs of the trained layers."""

    def smoothed(self, theta: Theta, X: Float[Tensor, "n d"], tau: float) -> Network:
        """The network with each kink smoothed over a width of τ times the root mean square of the
        values that enter it for X."""

    def augmented(self) -> Network:
        """The network (x, s) ↦ f(x; θ'), θ' from `augment_theta`, whose first layer has no bias."""

    def augment_theta(self, theta: Theta, factor: float) -> Theta:
        """θ with [W_1 | factor·b_1] for W_1.

        The factor is 1/s for parameters, and s for gradients and sums of gradients. A torch module
        keeps its θ and its bias, and is given x alone.
        """

    def restrict(self, U: Float[Tensor, "d r"]) -> Network:
        """The network z ↦ f(Uz; θ'), with θ' from `restrict_theta`."""

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        """The parameters θ' for which `restrict(U)` is z ↦ f(Uz; θ)."""
