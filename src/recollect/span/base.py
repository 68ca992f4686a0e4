"""Spans: ways to project Δθ on the gradients of the candidates, and what they all answer.

    L(X) = ‖P⊥_G Δθ‖² / ‖Δθ‖² = ‖Δθ − Gᵀα‖² / ‖Δθ‖²,   (GGᵀ)α = GΔθ                               (P-recon)

The paper leaves out the division by ‖Δθ‖²; its step sizes (20 and 2000) only make sense with it. The residual is
formed and then squared: the paper's difference ‖Δθ‖² − ΔθᵀGᵀα cancels and stops near 1e-7 in float32.

The gradient never goes through the solve. α minimises the residual, so by the envelope theorem it may be held fixed:

    ∇_X L = −2/‖Δθ‖² · ∇_X ⟨α, G(X) R⟩,   R = Δθ − Gᵀα.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, runtime_checkable

import torch

from recollect.errors import VictimError
from recollect.geometry import Geometry
from recollect.shapes import Float, Int, Tensor, Theta
from recollect.span.normal import Normal
from recollect.victim import Victim


class Endpoints(Enum):
    """Where on the path of training the gradients are taken."""

    FINAL = "final"
    INITIAL = "initial"
    BOTH = "both"
    PATH = "path"
    """Both ends and the middle of the straight line between them."""

    @property
    def where(self) -> str:
        return {"final": "θf", "initial": "θ0", "both": "θf and θ0", "path": "θf, θ0 and their middle"}[self.value]

    @property
    def several(self) -> bool:
        return self in (Endpoints.BOTH, Endpoints.PATH)


@dataclass(frozen=True)
class Fit:
    """How well the gradients at X explain Δθ. A NaN loss means that the solve for α failed at this X."""

    loss: Float[Tensor, "*s"]
    alpha: Float[Tensor, "*s n c"]
    gradient: Float[Tensor, "*s n d"] | None


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


@runtime_checkable
class ExactSpan(Span, Protocol):
    """A span that Levenberg–Marquardt can descend in, and that can say what each point is worth."""

    @property
    def endpoints(self) -> Endpoints:
        """Where on the path of training gradients are taken."""

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        """Coordinates and coefficients of n points, and whatever else is free."""

    def normal_flops(self, n: int, r: int) -> float:
        """About how many operations a step of Levenberg–Marquardt takes."""

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        """The fit at Z and the normal equations of Kaufman's linearisation (`span/normal.py`)."""

    def costs(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Float[Tensor, " n"]:
        """By how much the loss would rise without each point, the others staying where they are."""

    def gains(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        """New points → by how much the loss would fall with each of them added to Z; differentiable."""

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        """(M, t) with M s = t for the true signs s, where the span is lifted (`solve/signs.py`)."""


Gains = Callable[[Tensor], Tensor]


def cost(inverse: Float[Tensor, "k k"], C: Float[Tensor, "k c"], own: Int[Tensor, "n b"]) -> Float[Tensor, " n"]:
    """Σ_o C_ioᵀ [(K⁻¹)_ii]⁻¹ C_io: what leaving the rows `own` of each point out adds to ‖R‖², K the Gram."""
    blocks, C = inverse[own[:, :, None], own[:, None, :]], C[own]
    rise: Tensor = (C * torch.linalg.solve(blocks, C)).sum((1, 2))
    return rise


def gain(M: Float[Tensor, "m b b"], B: Float[Tensor, "m b c"]) -> Float[Tensor, " m"]:
    """tr(BᵀM⁻¹B), B = T Rᵀ and M = T P⊥ Tᵀ: what joining a point's rows T to the span takes off ‖R‖²."""
    # Rows already in the span gain nothing; the loading keeps 0/0 out.
    M = M + torch.diag_embed(1e-10 * M.diagonal(dim1=1, dim2=2) + 1e-300)
    fall: Tensor = (B * torch.linalg.solve(M, B)).sum((1, 2))
    return fall


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
