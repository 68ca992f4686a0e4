"""Where points may lie: on a sphere, ‖x_i‖ = √d (as:data_on_sphere), anywhere, or on a slice.

A bias is a weight on a constant input. With a bias in the first layer the rows of [ΔW_1 | s·Δb_1]
are therefore combinations of the *augmented* inputs (x_i, s), whose last coordinate is known. In
coordinates z of their span this is one linear equation, a·z = s: the points lie on an affine slice.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

from recollect.errors import OptionError
from recollect.shapes import Float, Tensor


@runtime_checkable
class Geometry(Protocol):
    @property
    def radius(self) -> float:
        """The norm of the inputs that a random start stands for."""

    @property
    def coupled(self) -> bool:
        """Whether points do not move each by itself."""

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        """The nearest allowed points. Z may hold several sets of points."""

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        """The part of V along which the points Z may move. V may hold several rows per point."""

    def free_dimensions(self, r: int) -> int:
        """The number of unknowns of a point with r coordinates."""

    def frame(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "nr k"] | None:
        """An orthonormal basis of the moves of all points together.

        None where each point moves independently of the others.
        """

    def restricted(self, U: Float[Tensor, "d r"]) -> Geometry:
        """The same set in the coordinates z of x = Uz, where U has orthonormal columns."""

    def start(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """Random points, made from rows of independent normal numbers."""

    def norms(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
        """The norms of the inputs that the points stand for."""

    def directions(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        """Unit vectors by which points are compared: those from the centre to each point."""


class _Independent:
    """What geometries have in common in which each point moves independently of the others."""

    coupled: ClassVar[bool] = False
    radius: float

    def frame(self, Z: Float[Tensor, "n r"]) -> None:
        return None

    def restricted(self, U: Float[Tensor, "d r"]) -> Geometry:
        return self  # type: ignore[return-value]

    def start(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return Sphere(self.radius).project(Z)

    def norms(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
        norms: Tensor = torch.linalg.vector_norm(Z, dim=1)
        return norms

    def directions(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return torch.nn.functional.normalize(Z, dim=1)


@dataclass(frozen=True)
class Sphere(_Independent):
    """{z : ‖z‖ = radius}."""

    radius: float

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


@dataclass(frozen=True)
class FreeRadius(_Independent):
    """All of R^r. Random starts lie on the sphere of the given radius."""

    radius: float

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


@dataclass(frozen=True, eq=False)
class Slice(_Independent):
    """{z : a·z = s}: inputs (x, s) whose last coordinate is known, in coordinates z of their span.

    Parameters
    ----------
    a
        The last row of U, where (x, s) = Uz and U has orthonormal columns.
    s
        The constant coordinate. It is also taken for the norm of a typical x.
    """

    a: Float[Tensor, " r"]
    s: float

    def __post_init__(self) -> None:
        _check_radius(self.s)

    @property
    def radius(self) -> float:  # type: ignore[override]
        return self.s

    @property
    def _centre(self) -> Float[Tensor, " r"]:
        """s·a/‖a‖²: the point of the slice that is nearest to the origin."""
        return self.s / self.a.square().sum() * self.a

    def project(self, Z: Float[Tensor, "*s n r"]) -> Float[Tensor, "*s n r"]:
        a = self.a.to(Z)
        return Z + (self.s - Z @ a)[..., None] * (a / a.square().sum())

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        a = self.a.to(V)
        return V - (V @ a)[..., None] * (a / a.square().sum())

    def free_dimensions(self, r: int) -> int:
        return r - 1

    def restricted(self, U: Float[Tensor, "d r"]) -> Slice:
        return Slice(U.to(self.a).T @ self.a, self.s)

    def start(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        # The centre is orthogonal to the slice, so ‖x − centre‖² = ‖x‖² − ‖centre‖². Starts get
        # the norm ‖x‖ = s where the slice comes that near to the origin.
        centre = self._centre.to(Z)
        square = 2 * self.s**2 - float(centre.square().sum())
        spread = max(math.sqrt(max(0.0, square)), _MIN_SPREAD * self.s)
        return centre + spread * self.directions(Z)

    def norms(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
        squares: Tensor = Z.square().sum(1) - self.s**2
        norms: Tensor = squares.clamp_min(0).sqrt()
        return norms

    def directions(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return torch.nn.functional.normalize(self.tangent(Z, Z), dim=1)


@dataclass(frozen=True)
class SharedSubspace:
    """{X : each row in `inner`, rank X ≤ rank}: points of one subspace of R^d, which may turn.

    At X = PSUᵀ (n×r, r×r, d×r) a move is ΔZ Uᵀ + P Yᵀ U⊥ᵀ: n·r coordinates, and r(d − r) numbers
    that turn U.
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
        within: Tensor = self.inner.restricted(U).project(Z @ U)
        points: Tensor = within @ U.mT
        return points

    def tangent(
        self, Z: Float[Tensor, "n r"], V: Float[Tensor, "*k n r"]
    ) -> Float[Tensor, "*k n r"]:
        return self.inner.tangent(Z, V)

    def free_dimensions(self, r: int) -> int:
        return self.inner.free_dimensions(self.rank)

    def frame(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "nr k"]:
        n = len(Z)
        # Points that are not finite have no frame. Their fit is NaN, and the step will not be made.
        Z = Z.where(Z.isfinite(), torch.zeros_like(Z))
        P, _, Vh = torch.linalg.svd(Z, full_matrices=True)
        P, U, rest = P[:, : self.rank], Vh[: self.rank].T, Vh[self.rank :].T
        return torch.cat([_kron(torch.eye(n).to(Z), U), _kron(P, rest)], dim=1)

    def restricted(self, U: Float[Tensor, "d r"]) -> Geometry:
        return SharedSubspace(self.inner.restricted(U), self.rank)

    def start(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return self.project(self.inner.start(Z))

    def norms(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, " n"]:
        return self.inner.norms(Z)

    def directions(self, Z: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return self.inner.directions(Z)


def _kron(A: Tensor, B: Tensor) -> Tensor:
    """A ⊗ B; torch.kron minds how its arguments lie in memory."""
    return torch.einsum("ij,kl->ikjl", A, B).reshape(len(A) * len(B), -1)


def random_start(
    geometry: Geometry, n: int, r: int, generator: torch.Generator
) -> Float[Tensor, "n r"]:
    """n random points in float64 on the CPU, so that they are the same on every device."""
    return geometry.start(torch.randn(n, r, generator=generator, dtype=torch.float64))


_MIN_SPREAD = 0.3
"""The least distance of starts from the centre of a slice, relative to s."""


def _check_radius(radius: float) -> None:
    if (
        not 1e-60 <= radius <= 1e60
    ):  # also false for NaN; its square and the features' must stay finite
        raise OptionError(
            f"expected --norm of a positive number, got {radius}; use sqrt-d, free, or a positive "
            "number"
        )
