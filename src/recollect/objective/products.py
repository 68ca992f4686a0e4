"""Gv and Gᵀα for any network and any of its parameters.

They are Jacobian-vector and vector-Jacobian products (JVP and VJP).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from recollect.errors import OptionError
from recollect.objective.base import Target
from recollect.objective.evidence import Evidence
from recollect.shapes import Float, Tensor, Theta

Outputs = Callable[[Theta], Tensor]


def single_target(
    evidence: Evidence, names: tuple[str, ...], device: torch.device, dtype: torch.dtype
) -> Target:
    """The target of an objective that takes gradients at one θ_e only."""
    if evidence.endpoints.several:
        raise OptionError(
            "expected gradients at one set of weights for a dense Gram or conjugate gradients, got "
            f"endpoints {evidence.endpoints.value}; use final"
        )
    return Target(evidence, names, device, dtype)


def outputs_at(target: Target, X: Float[Tensor, "n d"]) -> Outputs:
    """θ_S ↦ f(X; θ), where θ_S are the chosen parameters and the others are held fixed."""
    fixed = {name: tensor for name, tensor in target.theta.items() if name not in target.delta}
    return lambda theta: target.network({**fixed, **theta}, X)


def chosen(target: Target) -> dict[str, Tensor]:
    """θ_S: the parameters whose change is explained."""
    return {name: target.theta[name] for name in target.delta}


def jvp(f: Outputs, theta: Theta, v: Theta) -> Float[Tensor, "n c"]:
    """Gv."""
    tangent: Tensor = torch.func.jvp(f, (dict(theta),), (dict(v),))[1]
    return tangent


def vjp(f: Outputs, theta: Theta) -> Callable[[Float[Tensor, "n c"]], dict[str, Tensor]]:
    """The function α ↦ Gᵀα; the forward pass is done only once."""
    pull = torch.func.vjp(f, dict(theta))[1]
    return lambda alpha: dict(pull(alpha)[0])


def residual(delta: Theta, explained: Theta) -> dict[str, Tensor]:
    """R = Δ − Gᵀα."""
    return {name: delta[name] - explained[name] for name in delta}


def squared_norm(v: Theta) -> Tensor:
    """‖v‖², in float64."""
    norms = [torch.linalg.vector_norm(part, dtype=torch.float64) for part in v.values()]
    return torch.stack([norm.square() for norm in norms]).sum()


def envelope_gradient(
    target: Target, X: Float[Tensor, "n d"], alpha: Tensor, R: Theta
) -> Float[Tensor, "n d"]:
    """−2∇_X ⟨α, G(X)R⟩ with α and R held fixed.

    Both belong to Δ/‖Δ‖, so nothing is left to divide by.
    """

    def correlation(X: Tensor) -> Tensor:
        return (alpha * jvp(outputs_at(target, X), chosen(target), R)).sum()

    slope: Tensor = torch.func.grad(correlation)(X)
    return -2 * slope
