"""Where candidates live: ‖x_i‖ = √d (as:data_on_sphere), or any norm for networks that can tell
norms apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

from recollect.errors import OptionError
from recollect.shapes import Float, Tensor


@runtime_checkable
class Geometry(Protocol):
    @property
    def radius(self) -> float:
        """The norm of a random start."""

    @property
    def coupled(self) -> bool:
        """Whether points do not move each by itself."""

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        """The nearest points allowed; of several sets of points, of each."""

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        """The part of V along which points at Z may move; of each, where V holds several rows a
        point."""

    def free_dimensions(self, r: int) -> int:
        """Unknowns a point has in r coordinates."""

    def frame(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "nr k"] | None:
        """An orthonormal basis of the moves of all points together; None where each moves by
        itself."""


@dataclass(frozen=True)
class Sphere:
    """{z : ‖z‖ = radius}."""

    radius: float
    coupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_radius(self.radius)

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        # In float64: the square of a float32 number of any size is finite there.
        norms: Tensor = torch.linalg.vector_norm(Z, dim=-1, keepdim=True, dtype=torch.float64)
        return (self.radius / norms).to(Z.dtype) * Z

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        return V - (Z * V).sum(-1, keepdim=True) / self.radius**2 * Z

    def free_dimensions(self, r: int) -> int:
        return r - 1

    def frame(self, Z: Float[Tensor, "n r"]) -> None:
        return None


@dataclass(frozen=True)
class FreeRadius:
    """Every point keeps whatever norm it takes; starts lie on the sphere of the given radius."""

    radius: float
    coupled: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_radius(self.radius)

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        return Z

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        return V

    def free_dimensions(self, r: int) -> int:
        return r

    def frame(self, Z: Float[Tensor, "n r"]) -> None:
        return None


@dataclass(frozen=True)
class SharedSubspace:
    """{X : each row in `inner`, rank X ≤ rank}: points in one subspace of R^d that may turn with
    them.

    At X = PSUᵀ (n×r, r×r, d×r) a move is ΔZ Uᵀ + P Yᵀ U⊥ᵀ: n·r coordinates, and r(d − r) that turn
    U.
    """

    inner: Geometry
    rank: int
    coupled: ClassVar[bool] = True

    @property
    def radius(self) -> float:
        return self.inner.radius

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        if not bool(torch.isfinite(Z).all()):
            return Z
        U = torch.linalg.svd(Z, full_matrices=False).Vh[..., : self.rank, :].mT
        return self.inner.project((Z @ U) @ U.mT)

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        return self.inner.tangent(Z, V)

    def free_dimensions(self, r: int) -> int:
        return self.inner.free_dimensions(self.rank)

    def frame(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "nr k"]:
        n = len(Z)
        P, _, Vh = torch.linalg.svd(Z, full_matrices=True)
        P, U, rest = P[:, : self.rank], Vh[: self.rank].T, Vh[self.rank :].T
        return torch.cat([_kron(torch.eye(n).to(Z), U), _kron(P, rest)], dim=1)


def _kron(A: Tensor, B: Tensor) -> Tensor:
    """A ⊗ B; torch.kron minds how its arguments lie in memory."""
    return torch.einsum("ij,kl->ikjl", A, B).reshape(len(A) * len(B), -1)


def random_start(
    geometry: Geometry, n: int, r: int, generator: torch.Generator
) -> Float[Tensor, "n r"]:
    """n points drawn evenly from the sphere of the geometry's radius; float64 on the CPU, the same
    on every device."""
    Z = torch.randn(n, r, generator=generator, dtype=torch.float64)
    return Sphere(geometry.radius).project(Z)


def _check_radius(radius: float) -> None:
    if (
        not 1e-60 <= radius <= 1e60
    ):  # also false for NaN; its square and the features' must stay finite
        raise OptionError(
            f"expected --norm of a positive number, got {radius}; use sqrt-d, free, or a positive "
            "number"
        )
