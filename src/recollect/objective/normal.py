"""(JᵀJ + λmI) s = −g: the normal equations of variable projection.

s is the step of the points, λ its damping, m the mean diagonal of JᵀJ, and g half the gradient of
the loss. The method is that of Golub & Pereyra (1973) and Kaufman (1975).

For the last layer, the residual R(Z) = ΔW_L P⊥(Z), a c×p matrix, depends on Z alone. Point i has
rows T_k(z_i) with coefficients C_i^k, one row for each family k of gradients. Let
F_i^k = P⊥ ∂T_k(z_i)/∂z_i (p×r). Kaufman leaves out the term of the derivative that lies in the
span. What remains says that moving point i by s_i moves R by −Σ_k C_i^k ⊗ F_i^k s_i. Hence

    (JᵀJ)_ij = Σ_kl (C_i^k · C_j^l) F_i^kᵀF_j^l   (r×r),      g_i = −Σ_k F_i^kᵀ Rᵀ C_i^k.

`layerwise_normal.py` has the same for all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch

from recollect.geometry import Geometry
from recollect.objective.conjugate_gradients import Directions, conjugate_gradients
from recollect.objective.factors import total
from recollect.shapes import Float, Tensor
from recollect.system.device import total_memory


@runtime_checkable
class Normal(Protocol):
    """The normal equations at one set of points, with JᵀJ as a matrix or as a product."""

    @property
    def gradient(self) -> Float[Tensor, "n r"]:
        """g, half the gradient of the loss."""

    @property
    def barred(self) -> Float[Tensor, "n r"]:
        """The unit direction in which each point may not move; zero where all are free."""

    @property
    def scales(self) -> Float[Tensor, " n"]:
        """About the mean diagonal of each point's block of JᵀJ."""

    def product(self, v: Float[Tensor, "n r"], /) -> Float[Tensor, "n r"]:
        """JᵀJv."""

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        """s; NaN where the damped matrix is not positive definite."""

    def variances(self) -> Float[Tensor, " n"]:
        """The trace of each point's block of (JᵀJ)⁻¹, over the directions in which it may move.

        It says how loosely the evidence holds the point.
        """


@dataclass(frozen=True)
class DenseNormal:
    """JᵀJ as a matrix: 2p(nr)² operations to form it for one output, (nr)³/3 to factor it."""

    N: Float[Tensor, "nr nr"]
    gradient: Float[Tensor, "n r"]
    barred: Float[Tensor, "n r"]
    frame: Float[Tensor, "nr m"] | None = None
    """A basis of the allowed moves, where points do not move independently (`Geometry.frame`)."""

    @property
    def scales(self) -> Float[Tensor, " n"]:
        return self.N.diagonal().reshape(self.gradient.shape).mean(1)

    def product(self, v: Float[Tensor, "n r"], /) -> Float[Tensor, "n r"]:
        return (self.N @ v.reshape(-1)).reshape(v.shape)

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        N, g = (part.clone() for part in self._reduced)
        N.diagonal().add_(damping * self.N.diagonal().mean())
        factor, info = torch.linalg.cholesky_ex(N)
        s = torch.where(info == 0, torch.cholesky_solve(-g, factor), torch.nan)
        return (s if self.frame is None else self.frame @ s).reshape(self.gradient.shape)

    @cached_property
    def _reduced(self) -> tuple[Tensor, Tensor]:
        """JᵀJ and g in the frame. They are the same for every damping that is tried."""
        N, g, T = self.N, self.gradient.reshape(-1, 1), self.frame
        return (N, g) if T is None else (T.T @ (N @ T), T.T @ g)

    def variances(self) -> Float[Tensor, " n"]:
        n, r = self.gradient.shape
        mean = _scale(self.N.diagonal())
        N = self.N.clone()
        N.diagonal().add_(_LOADING * mean)
        blocks = torch.diagonal(N.view(n, r, n, r), dim1=0, dim2=2)  # r×r×n, a view
        blocks += mean * torch.einsum("na,nb->abn", self.barred, self.barred)
        factor, info = torch.linalg.cholesky_ex(N)
        factor = torch.where(info == 0, factor, torch.eye(n * r).to(N))
        inverse = torch.where(info == 0, torch.cholesky_inverse(factor).diagonal(), torch.inf)
        found = inverse.reshape(n, r).sum(1)
        return found - self.barred.square().sum(1) / ((1 + _LOADING) * mean)


@dataclass(frozen=True)
class ImplicitNormal:
    """JᵀJv by one product with the Jacobians and one with their transposes.

    A product takes 8npr operations, while forming the matrix takes 2p(nr)². Steps are found by
    conjugate gradients. The preconditioner is one number per point: the blocks of JᵀJ are close to
    multiples of the identity, and forming them would cost more products than they save. Where a
    step is refused, the directions along which it was found also give the step with more damping,
    mostly without another product.
    """

    product: Callable[[Float[Tensor, "n r"]], Float[Tensor, "n r"]]
    scales: Float[Tensor, " n"]
    gradient: Float[Tensor, "n r"]
    barred: Float[Tensor, "n r"]
    tolerance: float
    """‖residual‖/‖g‖ at which a step is good enough; see `forcing`."""
    most: int = 200
    matrix: Callable[[], DenseNormal] | None = None
    """Forms JᵀJ, where it fits into memory. `variances` needs it once, and steps do not."""
    _first: list[tuple[float, Directions | None]] = field(default_factory=list, init=False)
    """λm of the first step, and the directions it went along with their products."""

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        b, loading = -self.gradient, damping * self.scales.mean()
        if not self._first:
            visited: list[tuple[Tensor, Tensor]] = []
            found = self._solve(b, loading, self.tolerance, visited=visited)
            self._first.append((float(loading), Directions.of(visited)))
            return found
        first, directions = self._first[0]
        if directions is None or float(loading) < first:
            return self._solve(b, loading, self.tolerance)
        start = directions.shifted(b, float(loading) - first)
        return self._solve(b, loading, self.tolerance, start=start)

    def variances(self) -> Float[Tensor, " n"]:
        """The exact variances where JᵀJ can be formed; else Σ_a w_ia (N⁻¹w)_ia, averaged over
        random signs w (Hutchinson).

        The latter is an estimate, wrong by a few tens of per cent. What other points add to it
        averages out only slowly. Points that are held far less than most are therefore estimated
        first and then left out, so that they do not disturb the estimates of the others. No
        estimate is lower than the variance that a point would have by itself.
        """
        if self.matrix is not None:
            return self.matrix().variances()
        r = self.gradient.shape[1]
        free = r - self.barred.square().sum(1)
        alone = free.square() / (r * self.scales + _LOADING * _scale(self.scales))
        found = self._estimated(torch.ones_like(self.scales)).maximum(alone)
        loose = found > _LOOSE * found.median()
        if bool(loose.any()):
            others = self._estimated((~loose).to(found)).maximum(alone)
            found = torch.where(loose, found, others)
        return found

    def _estimated(self, among: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        n, r = self.gradient.shape
        # One direction that nothing holds must not be lost among nr others.
        tolerance = min(_ROUGH, 1 / math.sqrt(n * r)) / 3
        found, loading = [], _LOADING * self.scales.mean()
        for signs in random_signs(n, r).to(self.gradient):
            tangent = signs - (signs * self.barred).sum(1, keepdim=True) * self.barred
            w = among[:, None] * tangent
            found.append((w * self._solve(w, loading, tolerance)).sum(1))
        return torch.stack(found).mean(0).nan_to_num(torch.inf)

    def _solve(
        self,
        b: Float[Tensor, "n r"],
        loading: Float[Tensor, ""],
        tolerance: float,
        *,
        start: tuple[Tensor, Tensor] | None = None,
        visited: list[tuple[Tensor, Tensor]] | None = None,
    ) -> Float[Tensor, "n r"]:
        """(JᵀJ + loading·I)⁻¹ b by conjugate gradients."""
        return conjugate_gradients(
            lambda v: self.product(v) + loading * v,
            b,
            tolerance=tolerance,
            most=self.most,
            inverse=1 / (self.scales + loading)[:, None],
            start=start,
            visited=visited,
        ).x


def combined(
    normals: Sequence[Normal], weights: Sequence[float], loss: Float[Tensor, ""]
) -> DenseNormal | ImplicitNormal:
    """Σ_k w_k J_kᵀJ_k and Σ_k w_k g_k: the normal equations of L = Σ_k w_k L_k.

    `loss` is the value of L, from which follows how exact a matrix-free step need be. JᵀJ is formed
    if it is formed for every part. The parts share their points and thus also the directions in
    which these may move.
    """
    gradient = weighted(weights, (normal.gradient for normal in normals))

    def summed(parts: Sequence[DenseNormal]) -> DenseNormal:
        N = weighted(weights, (part.N for part in parts))
        return DenseNormal(N, gradient, parts[0].barred, parts[0].frame)

    dense = [normal for normal in normals if isinstance(normal, DenseNormal)]
    if len(dense) == len(normals):
        return summed(dense)
    formers = [
        (lambda part=normal: part) if isinstance(normal, DenseNormal) else normal.matrix
        for normal in normals
        if isinstance(normal, DenseNormal | ImplicitNormal)
    ]
    known = [former for former in formers if former is not None]
    matrix = (
        (lambda: summed([former() for former in known])) if len(known) == len(normals) else None
    )

    def product(v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:
        return weighted(weights, (normal.product(v) for normal in normals))

    scales = weighted(weights, (normal.scales for normal in normals))
    return ImplicitNormal(
        product, scales, gradient, normals[0].barred, forcing(loss), matrix=matrix
    )


def weighted(weights: Sequence[float], parts: Iterable[Tensor]) -> Tensor:
    """Σ_k w_k·part_k."""
    return total(weight * part for weight, part in zip(weights, parts, strict=True))


def point_scales(
    product: Callable[[Tensor], Tensor],
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    alpha: Float[Tensor, "n c"],
) -> Float[Tensor, " n"]:
    """m·‖α_i‖²/mean‖α‖², with m the mean diagonal of JᵀJ estimated from random signs (Hutchinson).

    (JᵀJ)_ii = (α_i·α_i) F_iᵀF_i, and F_iᵀF_i is much the same for all points. Where gradients are
    taken at several θ_e, α is the coefficient of their mean.
    """
    products = [
        (signs * product(geometry.tangent(Z, signs))).mean()
        for signs in random_signs(*Z.shape).to(Z)
    ]
    mean = torch.stack(products).mean().clamp_min(1e-300)
    squares = alpha.square().sum(1)
    shares = squares / squares.mean().clamp_min(1e-300)
    return mean * shares.clamp_min(1e-3)


def random_signs(n: int, r: int) -> Float[Tensor, "k n r"]:
    """Some matrices of random signs, the same at every call."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (_PROBES, n, r), generator=generator).mul(2.0).sub(1.0)


def forcing(loss: Float[Tensor, ""]) -> float:
    """max(1e-4, min(0.3, ‖R‖^½)): how exact a step need be (after Dembo & Steihaug 1983).

    Far from the data a rough step leads as far as an exact one, with a quarter of the products, and
    the next step corrects it. As the residual vanishes, the steps become nearly exact.
    """
    return min(_ROUGH, math.sqrt(math.sqrt(max(float(loss), 1e-16))))


_ROUGH = 0.3
_LOADING = 1e-12
"""Relative to the mean diagonal. A direction that nothing holds has a variance of about 1e12."""
_PROBES = 4
_LOOSE = 100.0


def _scale(diagonal: Tensor) -> Tensor:
    """What counts as large in JᵀJ; 1 where JᵀJ is zero because no point can move."""
    mean = diagonal.mean()
    return torch.where(mean > 0, mean, 1.0)


DENSE_UNKNOWNS, DENSE_AT_MOST = 6_000, 20_000
"""The numbers of coordinates above which JᵀJ is not formed.

The second number holds on a GPU, which forms JᵀJ at full speed while products are limited by their
many kernel launches; and for points that do not move independently, for which there is no other
way.
"""
STEPS_BY_PRODUCTS = 1_000
"""The number of coordinates above which steps on a processor multiply with JᵀJ and do not form it.

Forming it costs as much as nr/4 products, and a step takes some tens of them. For the last layer,
on one core, steps with products took a third of the time at nr = 400 and a thirtieth at 1600 and
3000; for all layers as long at 400 and a fifth at 1600. They are a little less exact, and more of
them are needed.
"""


def forms_dense(
    n: int, r: int, needed: int, device: torch.device, *, coupled: bool = False
) -> bool:
    """Whether JᵀJ is formed: where that pays, and where it needs at most half the memory."""
    most = DENSE_AT_MOST if coupled or device.type == "cuda" else DENSE_UNKNOWNS
    return n * r <= most and 2 * needed <= total_memory(device)


def multiplies(n: int, r: int, device: torch.device, *, coupled: bool = False) -> bool:
    """Whether steps multiply with JᵀJ although there is memory to form it."""
    return n * r > STEPS_BY_PRODUCTS and device.type == "cpu" and not coupled


def dense_normal_bytes(families: int, p: int, n: int, r: int) -> int:
    """Peak memory of a dense step in float64.

    It counts the Jacobians, their tangent and projected copies, JᵀJ and its factor.
    """
    return 8 * (4 * families * p * n * r + 3 * (n * r) ** 2)
