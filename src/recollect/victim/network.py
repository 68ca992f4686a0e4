"""f(x; θ): what every attack needs to know of a network.

`Network` is the contract. `victim/mlp.py` fulfils it for fully connected networks and for random
features, `victim/module.py` for any torch module.
"""

from __future__ import annotations

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
    """One trained linear map as it acted on every point: Y_it = W A_it + b at each of its positions
    t.

    A fully connected layer has one position, a convolution one for each place its kernel is put.
    Hence ∂f/∂W = Σ_t B_it A_itᵀ and ∂f/∂b = Σ_t B_it, B_it = ∂f/∂Y_it.
    """

    layer: Layer
    A: Float[Tensor, "n t a"]
    Y: Tensor
    """As the network made it, so that it can be differentiated by; `positions` lays out what has
    its shape."""
    channels_first: bool = False

    def positions(self, B: Tensor) -> Float[Tensor, "*k n t b"]:
        """Tensors of Y's shape, stacked or not, with positions and outputs as their last two
        axes."""
        before = B.dim() - self.Y.dim() + 1
        if self.channels_first:
            return B.flatten(before + 1).transpose(-1, -2)
        return B.reshape(*B.shape[:before], -1, B.shape[-1])


@dataclass(frozen=True)
class Bent:
    """A layer's part D_i A_iᵀ of Σ_k α_k ∇f_k(x_i), and how both factors move with x_i."""

    layer: Layer
    A: Float[Tensor, "n a"]
    dA: Float[Tensor, "a n d"]
    D: Float[Tensor, "n b"]
    dD: Float[Tensor, "b n d"] | None
    """None where D is constant but for jumps, as it is with ReLU."""


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
        """W_1, or None where the first thing done to x is not a linear map of the flat input."""

    @property
    def last(self) -> Layer:
        """W_L."""

    @property
    def trained(self) -> tuple[str, ...]:
        """The parameters that training moves: θ, without frozen ones."""

    @property
    def identity(self) -> str:
        """Everything about the function but its parameters, in words that are the same in every
        process."""

    @property
    def homogeneous(self) -> bool:
        """Whether f(tx; θ) = t^k f(x; θ) for t > 0; then only the direction of each point can be
        found."""

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        """f(x_i; θ) for each row of X."""

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        """h(x_i; θ): what enters the last layer."""

    def jacobian(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "p n d"]:
        """∂h(x_i; θ)/∂x_i. The width comes first, so that all points together are one p×(nd)
        matrix."""

    @property
    def kinked(self) -> bool:
        """Whether it has kinks that `smoothed` can spread."""

    @property
    def untapped(self) -> tuple[str, ...]:
        """Trained parameters that no tap can tell of."""

    def taps(
        self, theta: Theta, X: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n c"], tuple[Tap, ...]]:
        """f(x_i; θ), and each trained layer as it was used on the way."""

    def smoothed(self, theta: Theta, X: Float[Tensor, "n d"], tau: float) -> Network:
        """The network with its kinks spread over τ times the size of what meets them when X goes
        through it."""

    def restrict(self, U: Float[Tensor, "d r"]) -> Network:
        """The network z ↦ f(Uz; θ'), θ' from `restrict_theta`."""

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        """θ' with which `restrict(U)` is z ↦ f(Uz; θ)."""
