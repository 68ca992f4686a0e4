"""(JᵀJ + λD) s = −g: the normal equations of variable projection (Golub & Pereyra 1973, Kaufman 1975).

The residual R(Z) = ΔW_L P⊥(Z), c×p, depends on Z alone. With F_i^k = P⊥ ∂T_k(z_i)/∂z_i (p×r), and the term of the
derivative that lies in the span left out (Kaufman), moving point i by s_i moves R by −Σ_k C_i^k ⊗ F_i^k s_i. Hence

    (JᵀJ)_ij = Σ_kl (C_i^k · C_j^l) F_i^kᵀF_j^l   (r×r),      g_i = −Σ_k F_i^kᵀ Rᵀ C_i^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch

from recollect.geometry import Geometry
from recollect.memory import total_memory
from recollect.shapes import Float, Tensor


@runtime_checkable
class Normal(Protocol):
    @property
    def gradient(self) -> Float[Tensor, "n r"]:
        """g, half the gradient of the loss."""

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        """s; NaN where the damped matrix is not positive definite."""

    def variances(self) -> Float[Tensor, " n"]:
        """tr of each point's block of (JᵀJ)⁻¹, over the directions in which it may move: how loosely it is held."""


@dataclass(frozen=True)
class DenseNormal:
    """JᵀJ as a matrix: 2p(nr)² operations to form for one output, (nr)³/3 to factor."""

    N: Float[Tensor, "nr nr"]
    gradient: Float[Tensor, "n r"]
    barred: Float[Tensor, "n r"]
    """The unit direction in which each point may not move; zero where all are free."""
    frame: Float[Tensor, "nr m"] | None = None
    """A basis of the moves allowed, where points do not move each by itself (`Geometry.frame`)."""

    @classmethod
    def of(
        cls,
        F: Float[Tensor, "k p n r"],
        C: Float[Tensor, "k n c"],
        R: Float[Tensor, "c p"],
        barred: Float[Tensor, "n r"],
        frame: Float[Tensor, "nr m"] | None = None,
    ) -> DenseNormal:
        K, p, n, r = F.shape
        N = F.new_zeros(n * r, n * r)
        if C.shape[2] <= K:  # J of each output by itself: c products
            for alpha in C.unbind(2):
                E = (alpha[:, None, :, None] * F).sum(0).reshape(p, n * r)
                N.addmm_(E.T, E)
        else:  # all outputs at once: K(K+1)/2 products
            flat = F.reshape(K, p, n * r)
            for k in range(K):
                for j in range(k, K):
                    block = (flat[k].T @ flat[j]).reshape(n, r, n, r)
                    block *= (C[k] @ C[j].T)[:, None, :, None]
                    block = block.reshape(n * r, n * r)
                    N += block if k == j else block + block.T
        return cls(N, -torch.einsum("kpnr,knp->nr", F, C @ R), barred, frame)

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        N, g = (part.clone() for part in self._reduced)
        N.diagonal().add_(damping * self.N.diagonal().mean())
        factor, info = torch.linalg.cholesky_ex(N)
        s = torch.where(info == 0, torch.cholesky_solve(-g, factor), torch.nan)
        return (s if self.frame is None else self.frame @ s).reshape(self.gradient.shape)

    @cached_property
    def _reduced(self) -> tuple[Tensor, Tensor]:
        """JᵀJ and g in the frame: the same for every damping that is tried."""
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
        inverse = torch.where(info == 0, torch.cholesky_inverse(factor).diagonal(), torch.inf).reshape(n, r).sum(1)
        return inverse - self.barred.square().sum(1) / ((1 + _LOADING) * mean)


@dataclass(frozen=True)
class ImplicitNormal:
    """JᵀJv by one product with the Jacobians and one with their transposes; conjugate gradients for the step.

    8npr operations a product where the dense matrix takes 2p(nr)² to form. The preconditioner is a number a point: the
    blocks of JᵀJ are close to multiples of the identity, and to form them costs more products than they save.
    """

    apply: Callable[[Float[Tensor, "n r"]], Float[Tensor, "n r"]]
    scales: Float[Tensor, " n"]
    """About the mean diagonal of each point's block of JᵀJ."""
    gradient: Float[Tensor, "n r"]
    barred: Float[Tensor, "n r"]
    tolerance: float
    """‖residual‖/‖g‖ at which a step is good enough; see `forcing`."""
    most: int = 200

    def step(self, damping: float) -> Float[Tensor, "n r"]:
        return self._solve(-self.gradient, damping, self.tolerance)

    def variances(self) -> Float[Tensor, " n"]:
        """Σ_a w_ia (N⁻¹w)_ia on average over random signs w (Hutchinson): an estimate, a few ten per cent off.

        What other points add to it averages out only slowly, so those that are held far less than most are looked at
        first, and left out for the sake of the others. No estimate is below what a point would have by itself.
        """
        r = self.gradient.shape[1]
        free = r - self.barred.square().sum(1)
        alone = free.square() / (r * self.scales + _LOADING * _scale(self.scales))
        found = self._estimated(torch.ones_like(self.scales)).maximum(alone)
        loose = found > _LOOSE * found.median()
        if bool(loose.any()):
            found = torch.where(loose, found, self._estimated((~loose).to(found)).maximum(alone))
        return found

    def _estimated(self, among: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        n, r = self.gradient.shape
        # One direction that nothing holds must not be lost among nr others.
        tolerance = min(_ROUGH, 1 / math.sqrt(n * r)) / 3
        found = []
        for signs in random_signs(n, r).to(self.gradient):
            w = among[:, None] * (signs - (signs * self.barred).sum(1, keepdim=True) * self.barred)
            found.append((w * self._solve(w, _LOADING, tolerance)).sum(1))
        return torch.stack(found).mean(0).nan_to_num(torch.inf)

    def _solve(self, b: Float[Tensor, "n r"], damping: float, tolerance: float) -> Float[Tensor, "n r"]:
        """(JᵀJ + λD)⁻¹ b by conjugate gradients."""
        loading = damping * self.scales.mean()
        inverse = 1 / (self.scales + loading)[:, None]
        s, rest = torch.zeros_like(b), b
        goal = tolerance * float(rest.norm())
        direction = conditioned = inverse * rest
        agreement = (rest * conditioned).sum()
        for _ in range(self.most):
            if float(rest.norm()) <= goal:
                break
            image = self.apply(direction) + loading * direction
            length = agreement / (direction * image).sum()
            s, rest = s + length * direction, rest - length * image
            conditioned = inverse * rest
            before, agreement = agreement, (rest * conditioned).sum()
            direction = conditioned + agreement / before * direction
        return s


def point_scales(
    apply: Callable[[Tensor], Tensor], geometry: Geometry, Z: Float[Tensor, "n r"], alpha: Float[Tensor, "n c"]
) -> Float[Tensor, " n"]:
    """m·‖α_i‖²/mean‖α‖², m the mean diagonal of JᵀJ from random signs (Hutchinson).

    (JᵀJ)_ii = (α_i·α_i) F_iᵀF_i, and F_iᵀF_i is much the same for all points. With several ends, α of their mean.
    """
    products = [(signs * apply(geometry.tangent(Z, signs))).mean() for signs in random_signs(*Z.shape).to(Z)]
    mean = torch.stack(products).mean().clamp_min(1e-300)
    squares = alpha.square().sum(1)
    shares = squares / squares.mean().clamp_min(1e-300)
    return mean * shares.clamp_min(1e-3)


def random_signs(n: int, r: int) -> Float[Tensor, "k n r"]:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 2, (_PROBES, n, r), generator=generator).mul(2.0).sub(1.0)


def forcing(loss: Float[Tensor, ""]) -> float:
    """max(1e-4, min(0.3, ‖R‖^½)): how exact a step need be (after Dembo & Steihaug 1983); the next one corrects it.

    Far from the data a rough step leads as far as an exact one, at a quarter of the products; where the residual
    vanishes the steps become all but exact with it.
    """
    return min(_ROUGH, math.sqrt(math.sqrt(max(float(loss), 1e-16))))


_ROUGH = 0.3
_LOADING = 1e-12
"""Relative to the mean diagonal: what nothing holds has a variance of about 1e12, or as far as a solve gets."""
_PROBES = 4
_LOOSE = 100.0


def _scale(diagonal: Tensor) -> Tensor:
    """What counts as large in JᵀJ; 1 where it is zero because no point can move."""
    mean = diagonal.mean()
    return torch.where(mean > 0, mean, 1.0)


DENSE_UNKNOWNS, DENSE_AT_MOST = 6_000, 20_000
"""Above so many coordinates JᵀJ is not formed: that costs as much as nr/4 products, and a step takes ten or so.

At most: on a GPU, which forms it at full speed while products are bound by their many launches; and for points that do
not move each by itself, which have no other way.
"""


def forms_dense(n: int, r: int, needed: int, device: torch.device, *, coupled: bool = False) -> bool:
    """Whether JᵀJ is formed: where that pays, and if the bytes needed are within half the machine's memory."""
    most = DENSE_AT_MOST if coupled or device.type == "cuda" else DENSE_UNKNOWNS
    return n * r <= most and 2 * needed <= total_memory(device)


def dense_normal_bytes(families: int, p: int, n: int, r: int) -> int:
    """Peak memory of a dense step in float64: the Jacobians, their tangent and projected copies, JᵀJ and its factor."""
    return 8 * (4 * families * p * n * r + 3 * (n * r) ** 2)
