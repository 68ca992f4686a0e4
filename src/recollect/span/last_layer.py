"""G = H ⊗ I_c: the last layer alone, so that one Gram HHᵀ serves all c outputs.

The gradient of output k with respect to the last weights is h(x) in row k and zero elsewhere. Hence α is n×c,
(HHᵀ)α = H ΔW_Lᵀ, R = ΔW_L − αᵀH, and neither the (nc)×(cp) Jacobian nor anything of its size is ever formed.
The rows of H are those of `span/rows.py`: features at θf, at θ0 or at both, lifted or not.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recollect.geometry import Geometry
from recollect.shapes import Float, Tensor
from recollect.span.base import Endpoints, Fit, Gains, Weights, cost, gain
from recollect.span.gram import Gram
from recollect.span.normal import (
    DenseNormal,
    ImplicitNormal,
    Normal,
    dense_normal_bytes,
    forcing,
    forms_dense,
    point_scales,
)
from recollect.span.rows import Rows
from recollect.victim import Victim


@dataclass(frozen=True)
class Explained:
    """ΔW_L/‖ΔW_L‖ = CᵀA + R with R orthogonal to the rows of A."""

    A: Float[Tensor, "*s a p"]
    gram: Gram
    C: Float[Tensor, "*s a c"]
    R: Float[Tensor, "*s c p"]

    def orthogonal(self, V: Float[Tensor, "p v"]) -> Float[Tensor, "p v"]:
        """P⊥V, the part of each column orthogonal to the rows of A."""
        return torch.addmm(V, self.A.T, self.gram.solve(self.A @ V).to(V.dtype), alpha=-1)


class LastLayerSpan:
    """Five products a fit: the features, HHᵀ, HΔᵀ, αᵀH, αR, and one backward pass through the features.

    About 2np(2d + n + 3c) operations for two layers and one endpoint; memory 3np. In float64 α is refined once,
    α ← α + (HHᵀ)⁻¹HRᵀ, which gives back the digits that forming the Gram costs. `fit` takes several sets of points as
    well: one product for the features of all, a Gram for each; and several victims, `stacked`.
    """

    notes: tuple[str, ...] = ()
    capturable = True

    def __init__(
        self,
        victim: Victim,
        *,
        device: torch.device,
        dtype: torch.dtype,
        endpoints: Endpoints = Endpoints.FINAL,
        lifted: bool = False,
    ) -> None:
        last = victim.network.last
        self._weights = Weights(victim, last.names, device, dtype)
        delta = self._weights.delta
        self.delta = delta[last.weight]
        if last.bias is not None:  # a bias is the weight of a feature that is always 1
            self.delta = torch.cat([self.delta, delta[last.bias][:, None]], dim=1)
        self.rows = Rows(victim, endpoints, lifted=lifted, device=device, dtype=dtype)
        self._refine = dtype == torch.float64
        self.endpoints, self.lifted = endpoints, lifted
        self._length: float | Tensor = self._weights.length
        self._leading = 0
        """Dimensions of points that tell victims apart."""

    @classmethod
    def stacked(cls, spans: Sequence[LastLayerSpan]) -> LastLayerSpan:
        """Of victims that differ in their weights alone. `fit` takes v×s×n×r: s sets of points for each victim.

        What is one product for one victim is one batched product for all; the answers are those of each alone.
        """
        span = copy.copy(spans[0])
        if any(one.lifted or one._weights.outside for one in spans):
            raise ValueError("only spans that are not lifted, of layers behind the first, can be stacked")
        span.rows = Rows.stacked([one.rows for one in spans])
        span.delta = torch.stack([one.delta for one in spans])[:, None]
        lengths = torch.tensor([one._weights.length for one in spans], dtype=torch.float64)
        span._length = lengths.to(span.delta)[:, None, None, None]
        span._leading = 1
        return span

    @property
    def name(self) -> str:
        return (
            f"one Gram of the last layer's features at {self.endpoints.where}{', signs lifted' if self.lifted else ''}"
        )

    @property
    def equations(self) -> int:
        return self._weights.equations

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        """Coordinates of n points, their coefficients, and those of the rows that belong to none."""
        fixed = 0 if self.rows.fixed is None else len(self.rows.fixed)
        return n * geometry.free_dimensions(r) + (self.rows.families * n + fixed) * self.delta.shape[-2]

    def flops(self, n: int) -> float:
        c, p = self.delta.shape[-2:]
        k = self.rows.families
        return k * self._weights.pass_flops(n) + 2.0 * k * n * p * (k * n + 3 * c)

    def explain(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Explained:
        return self._explain(self.rows(Z.detach()).flatten(0, 1), jitter)

    def _explain(self, A: Tensor, jitter: Tensor | None) -> Explained:
        if self.rows.fixed is not None:
            A = torch.cat([A, self.rows.fixed.expand(*A.shape[:-2], -1, -1)], dim=-2)
        gram = Gram(A @ A.mT, jitter)
        C = gram.solve(A @ self.delta.mT).to(A.dtype)
        R = self.delta - C.mT @ A
        if self._refine:
            C = C + gram.solve(A @ R.mT)
            R = self.delta - C.mT @ A
        return Explained(A, gram, C, R)

    def loss(self, explained: Explained) -> Float[Tensor, "*s"]:
        norms: Tensor = torch.linalg.vector_norm(explained.R, dim=(-2, -1), dtype=torch.float64)
        return self._weights.loss(norms.square())

    def fit(
        self, Z: Float[Tensor, "*s n r"], *, gradient: bool = True, jitter: Float[Tensor, "*s"] | None = None
    ) -> Fit:
        with torch.set_grad_enabled(gradient):
            Z = Z.detach().requires_grad_(gradient)
            T = self.rows(Z.flatten(self._leading, -2))
            T = T.reshape(len(T), *Z.shape[:-1], -1).movedim(0, -3)
        explained = self._explain(T.detach().flatten(-3, -2), jitter)
        C, slope = self._owned(explained, Z.shape[-2]), None
        if gradient:
            # ∂⟨C, A(Z)Rᵀ⟩/∂T_k = C_k R.
            (slope,) = torch.autograd.grad(T, Z, (-2 * C) @ explained.R[..., None, :, :])
        return Fit(self.loss(explained), self._length * C[..., 0, :, :], slope)

    def _owned(self, explained: Explained, n: int) -> Float[Tensor, "*s k n c"]:
        """The coefficients of the rows that belong to points; the first family's are α, or α + β with both ends."""
        k = self.rows.families
        return explained.C[..., : k * n, :].reshape(*explained.C.shape[:-2], k, n, -1)

    def fit_bytes(self, n: int) -> int:
        """About what a fit of n points holds at once: the features, what they came from and their gradients."""
        units = sum(tensor.shape[0] for tensor in self._weights.theta_f.values() if tensor.dim() > 1)
        return 6 * self.rows.families * n * (units + self.rows.inputs) * self.delta.dtype.itemsize

    def costs(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Float[Tensor, " n"]:
        explained, n = self.explain(Z, jitter), len(Z)
        own = torch.arange(self.rows.families * n, device=Z.device).reshape(-1, n).T
        return cost(explained.gram.inverse(), explained.C.double(), own)

    def gains(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        explained = self.explain(Z, jitter)

        def gains(Z: Tensor) -> Tensor:
            T = self.rows(Z)
            free = explained.orthogonal(T.flatten(0, 1).T).T.reshape(T.shape)
            return gain(torch.einsum("kmp,lmp->mkl", T, free), torch.einsum("kmp,cp->mkc", T, explained.R))

        return gains

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        # In an orthonormal basis of the fixed rows the noise of all equations is alike.
        explained, B = self.explain(Z, jitter), self.rows.fixed
        if B is None:
            raise ValueError("only a lifted span has signs to find")
        n, r = Z.shape
        k, c = self.rows.families, explained.C.shape[1]
        _, T = torch.linalg.qr(B.T)
        linear = torch.einsum("knc,nr->krnc", explained.C[: k * n].reshape(k, n, c), Z).reshape(k * r, n * c)
        M = (T @ linear).reshape(-1, n, c).permute(0, 2, 1).reshape(-1, n)
        return M, (T @ explained.C[k * n :]).reshape(-1)

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        Z = Z.detach()
        explained = self.explain(Z, jitter)
        C = self._owned(explained, len(Z))
        barred = torch.nn.functional.normalize(Z - geometry.tangent(Z, Z), dim=1)
        form = self._dense_normal if self.dense(*Z.shape, coupled=geometry.coupled) else self._implicit_normal
        fit = Fit(self.loss(explained), self._length * C[0], None)
        return fit, form(Z, geometry, explained, C, barred)

    def dense(self, n: int, r: int, *, coupled: bool = False) -> bool:
        return forms_dense(n, r, self.normal_bytes(n, r), self.delta.device, coupled=coupled)

    def normal_bytes(self, n: int, r: int) -> int:
        """Peak memory of a dense step."""
        return dense_normal_bytes(self.rows.families, self.delta.shape[-1], n, r)

    def normal_flops(self, n: int, r: int) -> float:
        p = self.delta.shape[-1]
        return 2.0 * p * (n * r) ** 2 if self.dense(n, r) else self.flops(n)

    def _dense_normal(
        self, Z: Tensor, geometry: Geometry, explained: Explained, C: Tensor, barred: Tensor
    ) -> DenseNormal:
        J = geometry.tangent(Z, self.rows.jacobian(Z))
        F = torch.stack([explained.orthogonal(part.flatten(1)).view_as(part) for part in J])
        return DenseNormal.of(F, C, explained.R, barred, geometry.frame(Z))

    def _implicit_normal(
        self, Z: Tensor, geometry: Geometry, explained: Explained, C: Tensor, barred: Tensor
    ) -> ImplicitNormal:
        pull = torch.func.vjp(self.rows, Z)[1]

        def back(E: Float[Tensor, "c p"]) -> Float[Tensor, "n r"]:  # E → Jᵀ-part: Σ_k F_i^kᵀ Eᵀ C_i^k
            return geometry.tangent(Z, pull(C @ explained.orthogonal(E.T).T)[0])

        def apply(v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:  # v → JᵀJv
            moved = torch.func.jvp(self.rows, (Z,), (geometry.tangent(Z, v),))[1]
            return back(torch.einsum("knc,knp->cp", C, moved))

        scales = point_scales(apply, geometry, Z, C[0])
        return ImplicitNormal(apply, scales, -back(explained.R), barred, forcing(self.loss(explained)))
