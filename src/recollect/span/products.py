"""Gv and Gᵀα for any network and any of its parameters, as Jacobian-vector and vector-Jacobian products."""

from __future__ import annotations

from collections.abc import Callable

import torch

from recollect.shapes import Float, Tensor, Theta
from recollect.span.base import Weights

Outputs = Callable[[Theta], Tensor]


def outputs_at(weights: Weights, X: Float[Tensor, "n d"]) -> Outputs:
    """θ_S ↦ f(X; θ), θ_S the chosen parameters and the others held at θf."""
    fixed = {name: tensor for name, tensor in weights.theta_f.items() if name not in weights.delta}
    return lambda theta: weights.network({**fixed, **theta}, X)


def chosen(weights: Weights) -> dict[str, Tensor]:
    return {name: weights.theta_f[name] for name in weights.delta}


def jvp(f: Outputs, theta: Theta, v: Theta) -> Float[Tensor, "n c"]:
    """v → Gv."""
    tangent: Tensor = torch.func.jvp(f, (dict(theta),), (dict(v),))[1]
    return tangent


def vjp(f: Outputs, theta: Theta) -> Callable[[Float[Tensor, "n c"]], dict[str, Tensor]]:
    """α → Gᵀα, the forward pass done once."""
    pull = torch.func.vjp(f, dict(theta))[1]
    return lambda alpha: dict(pull(alpha)[0])


def residual(delta: Theta, explained: Theta) -> dict[str, Tensor]:
    """R = Δθ − Gᵀα."""
    return {name: delta[name] - explained[name] for name in delta}


def squared_norm(v: Theta) -> Tensor:
    return torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in v.values()]).sum()


def envelope_gradient(weights: Weights, X: Float[Tensor, "n d"], alpha: Tensor, R: Theta) -> Float[Tensor, "n d"]:
    """−2∇_X ⟨α, G(X)R⟩, with α and R held fixed; both are of Δθ/‖Δθ‖, so nothing is left to divide by."""

    def correlation(X: Tensor) -> Tensor:
        return (alpha * jvp(outputs_at(weights, X), chosen(weights), R)).sum()

    slope: Tensor = torch.func.grad(correlation)(X)
    return -2 * slope
