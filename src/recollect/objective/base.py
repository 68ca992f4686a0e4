"""Objectives: how well the gradients at some points explain the evidence.

    L(X) = ‖P⊥_G Δ‖² / ‖Δ‖² = ‖Δ − Gᵀα‖² / ‖Δ‖²,   (GGᵀ)α = GΔ                          (P-recon)

The paper does not divide by ‖Δ‖², but its step sizes (20 and 2000) only make sense with the
division. The residual is formed first and squared afterwards: the paper's difference ‖Δ‖² − ΔᵀGᵀα
cancels, and stops near 1e-7 in float32.

The gradient never goes through the solve. α minimises the residual, so by the envelope theorem it
may be held fixed:

    ∇_X L = −2/‖Δ‖² · ∇_X ⟨α, G(X) R⟩,   R = Δ − Gᵀα.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, runtime_checkable

import torch

from recollect.errors import VictimError
from recollect.geometry import Geometry
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.normal import Normal
from recollect.objective.sizes import Sizes
from recollect.shapes import Float, Int, Tensor, Theta, cast


@dataclass(frozen=True)
class Fit:
    """How well the gradients at X explain the evidence.

    A NaN loss means that the solve for α failed at this X.
    """

    loss: Float[Tensor, "*s"]
    alpha: Float[Tensor, "*s n c"]
    gradient: Float[Tensor, "*s n d"] | None


@runtime_checkable
class Objective(Protocol):
    """The function L(X) that solvers minimise, for some of the network's parameters."""

    @property
    def equations(self) -> int:
        """m: the number of entries of Δ that are to be explained."""

    @property
    def name(self) -> str:
        """How α is solved for, in words."""

    @property
    def capturable(self) -> bool:
        """Whether a fit with its gradient never waits for the device, so that it can become part
        of a CUDA graph."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the result should know about the numerical path that was taken."""

    def flops(self, n: int) -> float:
        """About how many floating-point operations a fit of n points takes."""

    def fit(
        self,
        X: Float[Tensor, "n d"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, ""] | None = None,
    ) -> Fit:
        """L(X), α and, if asked for, ∇_X L."""


@runtime_checkable
class ExactObjective(Objective, Protocol):
    """An objective with normal equations, which Levenberg–Marquardt needs.

    It can also tell how much each point contributes to the explanation.
    """

    @property
    def r(self) -> int:
        """The number of coordinates of a point."""

    @property
    def endpoints(self) -> Endpoints:
        """Where on the path of training gradients are taken."""

    @property
    def lifted(self) -> bool:
        """Whether signs are lifted, so that z and −z are the same point (`objective/rows.py`)."""

    def at(self, endpoints: Endpoints) -> ExactObjective:
        """The same target, explained by gradients that are taken elsewhere."""

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        """The number of coordinates and coefficients of n points, and of all other free numbers."""

    def effective_equations(self, n: int) -> int:
        """The equations that remain for the coordinates of n points (`examine/counting.py`)."""

    def normal_flops(self, n: int) -> float:
        """About how many floating-point operations a step of Levenberg–Marquardt takes."""

    def dense(self, n: int, *, coupled: bool = False) -> bool:
        """Whether JᵀJ of n points is formed as a matrix."""

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        """The fit at Z and the normal equations of Kaufman's linearisation."""

    def costs(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, " n"]:
        """By how much the loss would rise without each point while the others stay in place."""

    def gains(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        """The function that says by how much the loss would fall with each new point added to Z.

        It is differentiable in the new points.
        """

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        """(M, t) with M s = t for the true signs s (`attacks/exact/signs.py`).

        Only a lifted objective has such a system; the others raise a ValueError.
        """


class SplitObjective(ExactObjective, Protocol):
    """An exact objective of one piece of evidence, which can be split in two: Δ = PΔ + P⊥Δ."""

    def at(self, endpoints: Endpoints) -> SplitObjective: ...

    def remainder(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> dict[str, Tensor]:
        """P⊥Δ by parameter: what the gradients at Z leave of the target, in its own units."""


Gains = Callable[[Tensor], Tensor]


def cost(
    inverse: Float[Tensor, "k k"], C: Float[Tensor, "k c"], own: Int[Tensor, "n b"]
) -> Float[Tensor, " n"]:
    """Σ_o C_ioᵀ [(K⁻¹)_ii]⁻¹ C_io: by how much ‖R‖² rises when a point's rows are left out.

    K is the Gram matrix, C holds the coefficients of all rows, and `own` lists the rows of each
    point.
    """
    blocks, C = inverse[own[:, :, None], own[:, None, :]], C[own]
    rise: Tensor = (C * torch.linalg.solve(blocks, C)).sum((1, 2))
    return rise


def gain(
    M: Float[Tensor, "m b b"], B: Float[Tensor, "m b c"], own: Float[Tensor, "m b"]
) -> Float[Tensor, " m"]:
    """tr(BᵀM⁻¹B), B = T Rᵀ, M = T P⊥ Tᵀ: by how much ‖R‖² falls when a point adds its rows T.

    `own` holds the squares of the rows of T.
    """
    # Rows that lie in the span already gain nothing; of them M is the rounding error of `own`.
    loading = 1e-10 * M.diagonal(dim1=1, dim2=2) + _ROUNDING * own + 1e-300
    fall: Tensor = (B * torch.linalg.solve(M + torch.diag_embed(loading), B)).sum((1, 2))
    return fall


_ROUNDING = 1e-14


class Target:
    """Δ/‖Δ‖ of the chosen parameters and the first θ_e, on the device and in the dtype asked for.

    Δ is known in float64 before it is rounded: a float32 attack on a float64 victim keeps all the
    digits that float32 can hold.
    """

    def __init__(
        self, evidence: Evidence, names: tuple[str, ...], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.network = evidence.network
        self.theta: Theta = cast(evidence.thetas[0], device, dtype)
        delta = {name: evidence.target[name] for name in names}
        self.equations = sum(tensor.numel() for tensor in delta.values())
        first = evidence.network.first
        outside = evidence.outside if first is not None and first.weight in names else 0.0
        squares = sum(float(tensor.square().sum()) for tensor in delta.values())
        self.length = math.sqrt(squares + outside)
        """‖Δ‖. Only Δ/‖Δ‖ is explained, which no dtype rounds to zero; α is then scaled by ‖Δ‖."""
        if not (math.isfinite(self.length) and self.length > 0):
            raise VictimError(
                f"expected training to have moved {', '.join(names)}, got a change of norm "
                f"{self.length:g}; choose other --parameters"
            )
        self.outside = outside / self.length**2
        self.delta = {
            name: (tensor / self.length).to(device, dtype) for name, tensor in delta.items()
        }

    def pass_flops(self, n: int) -> float:
        """Floating-point operations of one forward and one backward pass of n points."""
        return 4.0 * n * sum(tensor.numel() for tensor in self.theta.values())

    def loss(self, residual_squared: Tensor) -> Tensor:
        """‖R‖²/‖Δ‖², where R includes what a restriction of the first layer puts out of reach."""
        return residual_squared + self.outside


S = TypeVar("S")
"""What an objective computes at some points before all else."""


class GramObjective(ABC, Generic[S]):
    """What the objectives that factor a Gram matrix have in common.

    They count unknowns and operations in the same way, and make the same choice between forming JᵀJ
    and multiplying by it. What was computed at the latest points is kept, because a step that was
    tried is mostly the place of the next linearisation, and points that were found are asked for
    their costs, gains and variances one after the other.
    """

    notes: tuple[str, ...] = ()
    capturable = True

    def __init__(
        self,
        evidence: Evidence,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        lifted: bool,
    ) -> None:
        self.evidence, self.endpoints, self.lifted = evidence, evidence.endpoints, lifted
        self.names = names
        self._target = Target(evidence, names, device, dtype)
        self._thetas = [cast(theta, device, dtype) for theta in evidence.thetas]
        self._device, self._dtype = device, dtype
        self._refine = dtype == torch.float64
        self._latest: tuple[Tensor, Tensor | None, S] | None = None

    def _split(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None) -> S:
        """What `_computed` returns, or has returned if these were the latest points."""
        if self._latest is not None:
            points, loading, known = self._latest
            if _same(points, Z) and _same(loading, jitter):
                return known
        self._latest = None  # before more memory is asked for
        # Copies, because the caller may change its points in place.
        Z, jitter = Z.detach().clone(), None if jitter is None else jitter.clone()
        known = self._computed(Z, jitter)
        self._latest = Z, jitter, known
        return known

    @abstractmethod
    def _computed(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None) -> S:
        """Δ split into what the gradients at Z explain and the rest."""

    @property
    def r(self) -> int:
        return self.evidence.d

    @property
    def equations(self) -> int:
        return self._target.equations

    @property
    def families(self) -> int:
        """The number of rows that each point contributes for each output: one for each θ_e."""
        return len(self._thetas)

    @property
    @abstractmethod
    def fixed_rows(self) -> int:
        """The number of rows that belong to no point; zero unless signs are lifted."""

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        rows = self.families * n + self.fixed_rows
        return n * geometry.free_dimensions(r) + rows * self.evidence.c

    def effective_equations(self, n: int) -> int:
        return self.evidence.effective_equations(
            self.names, n, families=self.families, fixed_rows=self.fixed_rows
        )

    @abstractmethod
    def remainder(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> dict[str, Tensor]:
        """P⊥Δ by parameter: what the gradients at Z leave of the target, in its own units."""

    @property
    @abstractmethod
    def sizes(self) -> Sizes:
        """The sizes from which operations and bytes are counted."""

    def flops(self, n: int) -> float:
        return self.sizes.fit_flops(n)

    def normal_flops(self, n: int) -> float:
        return self.sizes.normal_flops(n, self._device)

    def dense(self, n: int, *, coupled: bool = False) -> bool:
        return self.sizes.dense(n, self._device, coupled=coupled)

    def steps_dense(self, n: int, *, coupled: bool = False) -> bool:
        return self.sizes.steps_dense(n, self._device, coupled=coupled)


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether all numbers are the same; false where one of them is NaN."""
    if one is None or other is None:
        return one is other
    return torch.equal(one, other.detach())


def barred(geometry: Geometry, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
    """The unit direction in which each point may not move; zero where all directions are free."""
    return torch.nn.functional.normalize(Z - geometry.tangent(Z, Z), dim=1)
