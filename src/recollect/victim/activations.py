"""Activations φ by name, their derivatives, and whether they are homogeneous.

φ is homogeneous if φ(tx) = tφ(x) for every t > 0. A network of homogeneous activations without
biases hides the norm of each point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.errors import OptionError


@dataclass(frozen=True)
class Activation:
    name: str
    phi: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    """φ'(t). At a kink it is 0 or the slope on the left."""
    homogeneous: bool
    kink: tuple[float, float] | None = None
    """The slopes left and right of zero if φ consists of two straight lines, otherwise None."""

    def bend(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """φ'(t) and φ''(t), which is 0 at a kink."""
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            slope = self.derivative(t)
            if not slope.requires_grad:  # constant on both sides of a kink
                return slope, torch.zeros_like(slope)
            (second,) = torch.autograd.grad(slope.sum(), t)
        return slope.detach(), second

    @functools.lru_cache(maxsize=64)  # noqa: B019, it holds a few small objects
    def smoothed(self, tau: float) -> Activation:
        """φ with its kink smoothed over a width τ: at + (b − a)·t·sigmoid(t/τ), for slopes a and b.

        An activation without a kink is returned unchanged.
        """
        if self.kink is None:
            return self
        left, right = self.kink

        def phi(t: Tensor) -> Tensor:
            return left * t + (right - left) * t * torch.sigmoid(t / tau)

        def derivative(t: Tensor) -> Tensor:
            gate = torch.sigmoid(t / tau)
            return left + (right - left) * (gate + t / tau * gate * (1 - gate))

        return Activation(f"{self.name} over {tau:g}", phi, derivative, homogeneous=False)

    @functools.lru_cache(maxsize=64)  # noqa: B019
    def part(self, sign: int) -> Activation:
        """(φ(t) + sign·φ(−t))/2: the even part for +1, the odd part for −1."""

        def phi(t: Tensor) -> Tensor:
            return (self.phi(t) + sign * self.phi(-t)) / 2

        def derivative(t: Tensor) -> Tensor:
            return (self.derivative(t) - sign * self.derivative(-t)) / 2

        name = f"{'even' if sign > 0 else 'odd'} part of {self.name}"
        if self.kink is None:
            return Activation(name, phi, derivative, self.homogeneous)
        left, right = self.kink
        slope = (right - sign * left) / 2
        if sign > 0:  # two straight lines have the even part (b − a)/2·|t|

            def phi(t: Tensor) -> Tensor:
                return slope * t.abs()

            def derivative(t: Tensor) -> Tensor:
                return slope * t.sign()

        return Activation(
            name, phi, derivative, self.homogeneous, ((left - sign * right) / 2, slope)
        )


def _gelu_slope(t: Tensor) -> Tensor:
    return 0.5 * (1 + torch.erf(t / math.sqrt(2))) + t * torch.exp(-t.square() / 2) / math.sqrt(
        2 * math.pi
    )


def _silu_slope(t: Tensor) -> Tensor:
    gate = torch.sigmoid(t)
    return gate * (1 + t * (1 - gate))


_KNOWN = {
    activation.name: activation
    for activation in (
        Activation("relu", torch.relu, lambda t: (t > 0).to(t), homogeneous=True, kink=(0.0, 1.0)),
        Activation(
            "leaky-relu",
            torch.nn.functional.leaky_relu,
            lambda t: torch.where(t > 0, torch.ones_like(t), 0.01),
            homogeneous=True,
            kink=(0.01, 1.0),
        ),
        Activation("tanh", torch.tanh, lambda t: 1 - torch.tanh(t).square(), homogeneous=False),
        Activation(
            "sigmoid",
            torch.sigmoid,
            lambda t: torch.sigmoid(t) * torch.sigmoid(-t),
            homogeneous=False,
        ),
        Activation("gelu", torch.nn.functional.gelu, _gelu_slope, homogeneous=False),
        Activation("silu", torch.nn.functional.silu, _silu_slope, homogeneous=False),
        Activation(
            "elu",
            torch.nn.functional.elu,
            lambda t: torch.where(t > 0, torch.ones_like(t), t.clamp(max=0).exp()),
            homogeneous=False,
        ),
        Activation("softplus", torch.nn.functional.softplus, torch.sigmoid, homogeneous=False),
        Activation("sine", torch.sin, torch.cos, homogeneous=False),
        Activation(
            "clipped-relu",
            lambda t: t.clamp(0, 1),
            lambda t: ((t > 0) & (t < 1)).to(t),
            homogeneous=False,
        ),
        Activation(
            "erf",
            torch.erf,
            lambda t: 2 / math.sqrt(math.pi) * torch.exp(-t.square()),
            homogeneous=False,
        ),
    )
}


def activation(name: str) -> Activation:
    if name not in _KNOWN:
        raise OptionError(
            f"expected an activation out of {', '.join(_KNOWN)}, got {name!r}; choose one of those"
        )
    return _KNOWN[name]
