"""f(x; θ) = W_L φ(W_{L−1} … φ(W_1 x)): the paper's networks (P-train), of any depth, with or
without biases.

The random-feature model φ(Vx + b)ᵀθ/√p (eq:rf_model_with_bias) is an MLP too: its first layer is
frozen and its features are scaled by 1/√p.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import torch

from recollect.errors import OptionError
from recollect.shapes import Float, Tensor, Theta
from recollect.victim.activations import Activation, activation
from recollect.victim.network import Bent, Derivative, Layer, Tap


@dataclass(frozen=True, kw_only=True)
class MLP:
    """f(x; θ) = s·W_L φ(W_{L−1} … φ(W_1 x + b_1)) + b_L.

    The factor s is 1/√p for random features and 1 for all other networks.

    Parameters
    ----------
    widths
        d, the hidden widths, c.
    layers
        The names of the weights, first layer first.
    activation
        φ by name.
    scale
        s.
    frozen
        Parameters that training does not change.
    smoothing
        The width over which the kinks of each hidden layer are smoothed. Empty: no smoothing.
    parity
        +1 keeps only the even part of the activation, −1 only the odd part, and 0 all of it.
    assumed
        Whether the activation was not given and is only assumed.
    """

    widths: tuple[int, ...]
    layers: tuple[Layer, ...]
    activation: str = "relu"
    scale: float = 1.0
    frozen: frozenset[str] = frozenset()
    smoothing: tuple[float, ...] = ()
    parity: int = 0
    assumed: bool = field(default=False, compare=False)

    @property
    def d(self) -> int:
        return self.widths[0]

    @property
    def c(self) -> int:
        return self.widths[-1]

    @property
    def depth(self) -> int:
        """L, the number of weight matrices."""
        return len(self.layers)

    @property
    def first(self) -> Layer:
        return self.layers[0]

    @property
    def last(self) -> Layer:
        return self.layers[-1]

    @property
    def trained(self) -> tuple[str, ...]:
        return tuple(
            name for layer in self.layers for name in layer.names if name not in self.frozen
        )

    def fixing(self, names: Collection[str]) -> MLP:
        return replace(self, frozen=self.frozen | set(names))

    @property
    def identity(self) -> str:
        phi = (self.activation, self.scale, self.smoothing, self.parity)
        return f"{self.widths} {self.layers} {phi} {sorted(self.frozen)}"

    @property
    def homogeneous(self) -> bool:
        return all(phi.homogeneous for phi in self._phis) and all(
            layer.bias is None for layer in self.layers
        )

    @property
    def _phis(self) -> list[Activation]:
        phi = activation(self.activation)
        phis = (
            [phi.smoothed(tau) for tau in self.smoothing]
            if self.smoothing
            else [phi] * (self.depth - 1)
        )
        return [phi.part(self.parity) for phi in phis] if self.parity else phis

    def __call__(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n c"]:
        return _linear(theta, self.last, self.features(theta, X))

    def features(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "n p"]:
        H = X
        for layer, phi in zip(self.layers, self._phis, strict=False):
            H = phi.phi(_linear(theta, layer, H))
        return H if self.scale == 1.0 else self.scale * H

    def jacobian(self, theta: Theta, X: Float[Tensor, "n d"]) -> Float[Tensor, "p n d"]:
        # J_l = diag φ'(t_l) W_l J_{l−1}, from J_0 = I, with one product per layer for all points.
        n, d = X.shape
        H, J = X, None
        for layer, phi in zip(self.layers, self._phis, strict=False):
            t, W = _linear(theta, layer, H), theta[layer.weight]
            moved = W[:, None, :] if J is None else (W @ J.reshape(-1, n * d)).reshape(-1, n, d)
            H, J = phi.phi(t), phi.derivative(t).T[:, :, None] * moved
        if J is None:
            return torch.eye(d).to(X)[:, None, :].expand(d, n, d)
        return J if self.scale == 1.0 else self.scale * J

    def derivative(self, theta: Theta, X: Float[Tensor, "n d"]) -> Derivative:
        # J = diag φ'(t_{L−1}) W_{L−1} … diag φ'(t_1) W_1, with the slopes φ'(t_l) of these points.
        H, factors = X, []
        for layer, phi in zip(self.layers, self._phis, strict=False):
            t = _linear(theta, layer, H)
            factors.append((theta[layer.weight], phi.derivative(t)))
            H = phi.phi(t)
        if factors and self.scale != 1.0:
            W, slope = factors[-1]
            factors[-1] = (W, self.scale * slope)

        def push(v: Tensor) -> Tensor:
            for W, slope in factors:
                v = (v @ W.T).mul_(slope)
            return v

        def pull(u: Tensor) -> Tensor:
            for W, slope in reversed(factors):
                u = (u * slope) @ W
            return u

        return Derivative(push, pull)

    untapped: ClassVar[tuple[str, ...]] = ()

    @property
    def kinked(self) -> bool:
        return activation(self.activation).kink is not None

    def taps(
        self, theta: Theta, X: Float[Tensor, "n d"]
    ) -> tuple[Float[Tensor, "n c"], tuple[Tap, ...]]:
        H, taps = X, []
        for layer, phi in zip(self.layers, self._phis, strict=False):
            Y = _linear(theta, layer, H)
            taps.append(Tap(layer, H[:, None, :], Y))
            H = phi.phi(Y)
        H = H if self.scale == 1.0 else self.scale * H
        Y = _linear(theta, self.last, H)
        taps.append(Tap(self.last, H[:, None, :], Y))
        return Y, tuple(tap for tap in taps if not self.frozen.issuperset(tap.layer.names))

    def bent(
        self, theta: Theta, X: Float[Tensor, "n d"], alpha: Float[Tensor, "n c"]
    ) -> list[Bent]:
        # The forward pass computes ∂t_l = W_l ∂A_l and ∂A_{l+1} = φ'(t_l) ∂t_l, as in `jacobian`.
        # The backward pass computes D_l = W_{l+1}ᵀD_{l+1} ∘ φ'(t_l) and its derivative.
        n, d = X.shape
        A, dA = X, torch.eye(d, dtype=X.dtype, device=X.device)[:, None, :].expand(d, n, d)
        entered, passed = [], []
        for layer, phi in zip(self.layers, self._phis, strict=False):
            entered.append((A, dA))
            t = _linear(theta, layer, A)
            slope, bend = phi.bend(t)
            dt = (theta[layer.weight] @ dA.reshape(-1, n * d)).reshape(-1, n, d)
            passed.append((slope.T, bend.T, dt))
            A, dA = phi.phi(t), slope.T[:, :, None] * dt
        A, dA = self.scale * A, self.scale * dA
        entered.append((A, dA))
        D, dD = alpha.T, None  # D is b×n, because ∂D is b×n×d; A is n×a.
        bents = [Bent(self.last, A, dA, alpha, None)]
        straight = all(phi.kink is not None for phi in self._phis)
        factor = self.scale
        for k in range(self.depth - 2, -1, -1):
            W, (slope, bend, dt) = factor * theta[self.layers[k + 1].weight], passed[k]
            back = W.T @ D
            further = (
                None
                if dD is None
                else (W.T @ dD.reshape(-1, n * d)).reshape(-1, n, d) * slope[:, :, None]
            )
            if not straight:
                own = (back * bend)[:, :, None] * dt
                further = own if further is None else further + own
            D, dD, factor = back * slope, further, 1.0
            bents.append(Bent(self.layers[k], *entered[k], D.T, dD))
        return [bent for bent in reversed(bents) if not self.frozen.issuperset(bent.layer.names)]

    def smoothed(self, theta: Theta, X: Float[Tensor, "n d"], tau: float) -> MLP:
        H, widths = X, []
        for layer, phi in zip(self.layers, self._phis, strict=False):
            t = _linear(theta, layer, H)
            widths.append(tau * float(t.square().mean().sqrt()))
            H = phi.phi(t)
        return replace(self, smoothing=tuple(widths))

    def augmented(self) -> MLP:
        layers = (replace(self.first, bias=None), *self.layers[1:])
        return replace(self, widths=(self.d + 1, *self.widths[1:]), layers=layers)

    def augment_theta(self, theta: Theta, factor: float) -> Theta:
        W, b = theta[self.first.weight].double(), theta[self.first.bias or ""].double()
        whole = torch.cat([W, factor * b[:, None]], dim=1)
        return ChainMap({self.first.weight: whole}, theta)  # type: ignore[arg-type]

    def restrict(self, U: Float[Tensor, "d r"]) -> MLP:
        return replace(self, widths=(U.shape[1], *self.widths[1:]))

    def restrict_theta(self, theta: Theta, U: Float[Tensor, "d r"]) -> dict[str, Tensor]:
        # W_1(Uz) = (W_1 U)z: the restricted net is the same net with a p×r first layer. This layer
        # stays in float64, because ΔW_1 U is a difference of two such products, and their rounding
        # errors would exceed it.
        W1 = theta[self.first.weight].double()
        return {**theta, self.first.weight: W1 @ U.to(W1)}


def _linear(theta: Theta, layer: Layer, A: Tensor) -> Tensor:
    bias = None if layer.bias is None else theta[layer.bias]
    return torch.nn.functional.linear(A, theta[layer.weight], bias)


def mlp(
    d: int, width: int, c: int, *, depth: int = 2, bias: bool = False, activation: str = "relu"
) -> MLP:
    """An L-layer network of constant width, its layers named `layers.0`, `layers.1`, …

    Parameters
    ----------
    d, width, c
        Inputs, hidden units of each layer, outputs.
    depth
        L, the number of weight matrices.
    bias
        Whether every layer has a bias.
    activation
        φ by name.

    Returns
    -------
    MLP
        The network, without weights.
    """
    _check_sizes(d=d, width=width, outputs=c)
    if not 2 <= depth <= 1000:
        raise OptionError(
            f"expected --depth from 2 to 1000 weight matrices, got {depth:.6g}; the paper uses 2, "
            "3 and 5"
        )
    return MLP(
        widths=(d, *[width] * (depth - 1), c), layers=_layers(depth, bias), activation=activation
    )


@lru_cache(maxsize=32)  # a plan makes the same network for each of its jobs
def _layers(depth: int, bias: bool) -> tuple[Layer, ...]:
    return tuple(
        Layer(f"layers.{k}.weight", f"layers.{k}.bias" if bias else None) for k in range(depth)
    )


def random_features(
    d: int, width: int, c: int, *, bias: bool = False, activation: str = "relu"
) -> MLP:
    """f_RF(x; θ) = φ(Vx + b)ᵀθ/√p (eq:rf_model_with_bias), V and b frozen.

    Parameters
    ----------
    d, width, c
        Inputs, random features p, outputs.
    bias
        Whether the features have a bias b.
    activation
        φ by name.

    Returns
    -------
    MLP
        The network, without weights.
    """
    _check_sizes(d=d, width=width, outputs=c)
    first = Layer("V", "b" if bias else None)
    return MLP(
        widths=(d, width, c),
        layers=(first, Layer("theta")),
        activation=activation,
        scale=1 / math.sqrt(width),
        frozen=frozenset(first.names),
    )


def initial_theta(
    network: MLP, *, init: str, generator: torch.Generator, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The initial parameters θ0.

    `fan-in` draws weights and biases from N(0, 1/fan_in), and `torch` from U(±1/√fan_in), as
    torch.nn.Linear does. Random features follow the paper whatever `init` says: V ~ N(0, 1/d),
    b ~ N(0, 1), θ = 0. Numbers are drawn in float64, so a float32 victim starts from the rounded
    weights of the float64 victim with the same seed.
    """
    if init not in ("fan-in", "torch"):
        raise OptionError(f"expected --init fan-in or torch, got {init!r}; choose one of those")

    def draw(shape: Sequence[int], scale: float) -> Tensor:
        if init == "fan-in" or network.frozen:
            return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)
        return scale * (2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1)

    theta: dict[str, Tensor] = {}
    for layer, fan_in, fan_out in zip(
        network.layers, network.widths[:-1], network.widths[1:], strict=True
    ):
        theta[layer.weight] = draw((fan_out, fan_in), 1 / math.sqrt(fan_in))
        if layer.bias is not None:
            theta[layer.bias] = draw(
                (fan_out,), 1.0 if layer.bias in network.frozen else 1 / math.sqrt(fan_in)
            )
    if network.frozen:
        theta[network.last.weight] = torch.zeros_like(theta[network.last.weight])
    return {name: tensor.to(dtype) for name, tensor in theta.items()}


def _check_sizes(**sizes: int) -> None:
    for name, size in sizes.items():
        if not 1 <= size <= 10**8:
            raise OptionError(
                f"expected {name} between 1 and 10⁸, got {size:.6g}; give a size a machine can hold"
            )
