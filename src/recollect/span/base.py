"""Spans: ways to project Δθ on the gradients of the candidates, and what they all answer.

    L(X) = ‖P⊥_G Δθ‖² / ‖Δθ‖² = ‖Δθ − Gᵀα‖² / ‖Δθ‖²,   (GGᵀ)α = GΔθ                               (P-recon)

The paper leaves out the division by ‖Δθ‖²; its step sizes (20 and 2000) only make sense with it. The residual is
formed and then squared: the paper's difference ‖Δθ‖² − ΔθᵀGᵀα cancels and stops near 1e-7 in float32.

The gradient never goes through the solve. α minimises the residual, so by the envelope theorem it may be held fixed:

    ∇_X L = −2/‖Δθ‖² · ∇_X ⟨α, G(X) R⟩,   R = Δθ − Gᵀα.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch

from recollect.errors import VictimError
from recollect.shapes import Float, Tensor, Theta
from recollect.victim import Victim


@dataclass(frozen=True)
class Fit:
    """How well the gradients at X explain Δθ. A NaN loss means that the solve for α failed at this X."""

    loss: Float[Tensor, ""]
    alpha: Float[Tensor, "n c"]
    gradient: Float[Tensor, "n d"] | None


@runtime_checkable
class Span(Protocol):
    """The row space of G(X), for some of the victim's parameters."""

    @property
    def equations(self) -> int:
        """m: entries of Δθ to be explained."""

    @property
    def name(self) -> str:
        """How α is solved for, in words."""

    @property
    def capturable(self) -> bool:
        """Whether a fit never waits for the device, so that it can become part of a CUDA graph."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know of the numerical path that was taken."""

    def flops(self, n: int) -> float:
        """About how many operations a fit of n points takes."""

    def fit(self, X: Float[Tensor, "n d"], *, gradient: bool = True, jitter: Float[Tensor, ""] | None = None) -> Fit:
        """L(X), α and, if asked, ∇_X L."""


def cast(theta: Theta, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    """θ on the device, its floating-point tensors in this precision."""
    return {
        name: tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype) for name, tensor in theta.items()
    }


class Weights:
    """θf and Δθ/‖Δθ‖ of the chosen parameters, on the device and in the precision of the computation.

    Δθ is subtracted in float64 before it is rounded: a float32 attack on a float64 victim keeps all of Δθ's digits.
    """

    def __init__(self, victim: Victim, names: tuple[str, ...], device: torch.device, dtype: torch.dtype) -> None:
        self.network = victim.network
        self.theta_f = cast(victim.theta_f, device, dtype)
        delta = victim.delta(names)
        self.equations = sum(tensor.numel() for tensor in delta.values())
        first = victim.network.first
        outside = victim.outside if first is not None and first.weight in names else 0.0
        self.length = math.sqrt(sum(float(tensor.square().sum()) for tensor in delta.values()) + outside)
        """‖Δθ‖. The span explains Δθ/‖Δθ‖, which no precision can round to nothing; α is multiplied back."""
        if not (math.isfinite(self.length) and self.length > 0):
            raise VictimError(
                f"expected training to have moved {', '.join(names)}, got a change of norm {self.length:g}; "
                "choose other --parameters"
            )
        self.outside = outside / self.length**2
        self.delta = {name: (tensor / self.length).to(device, dtype) for name, tensor in delta.items()}

    def pass_flops(self, n: int) -> float:
        """Operations of one forward and one backward pass of n points."""
        return 4.0 * n * sum(tensor.numel() for tensor in self.theta_f.values())

    def loss(self, residual_squared: Tensor) -> Tensor:
        """‖R‖²/‖Δθ‖², counting in R what a restriction of the first layer put out of reach."""
        return residual_squared + self.outside
