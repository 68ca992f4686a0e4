"""G = H ⊗ I_c: the last layer alone, so that one Gram matrix HHᵀ serves all c outputs.

The gradient of output k with respect to the last weights is h(x) in row k and zero elsewhere. Hence
α is n×c, (HHᵀ)α = H ΔW_Lᵀ, R = ΔW_L − αᵀH, and neither the (nc)×(cp) Jacobian nor anything of its
size is ever formed. The rows of H are those of `objective/rows.py`: features at θf, at θ0 or at
both, with signs lifted or not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property, partial

import torch

from recollect.geometry import Geometry
from recollect.objective.base import Fit, Gains, GramObjective, barred, cost, gain
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.factors import total
from recollect.objective.gram import Gram
from recollect.objective.normal import DenseNormal, ImplicitNormal, Normal, forcing, point_scales
from recollect.objective.rows import Rows
from recollect.objective.sizes import Sizes
from recollect.shapes import Float, Tensor


@dataclass(frozen=True)
class Explained:
    """ΔW_L/‖ΔW_L‖ = CᵀA + R with R orthogonal to the rows of A."""

    A: Float[Tensor, "*s a p"]
    gram: Gram
    C: Float[Tensor, "*s a c"]
    R: Float[Tensor, "*s c p"]

    def whitened(self, V: Float[Tensor, "p v"]) -> Float[Tensor, "a v"]:
        """W with WᵀW = Vᵀ(I − P⊥)V, so that VᵀP⊥V = VᵀV − WᵀW."""
        return self.gram.whiten(self.A @ V).to(V.dtype)

    def orthogonal_rows(self, E: Float[Tensor, "c p"]) -> Float[Tensor, "c p"]:
        """The same for the rows of E. Products with few long rows are fastest in this order."""
        solved = self.gram.solve((E @ self.A.T).T).to(E.dtype)
        return torch.addmm(E, solved.T, self.A, alpha=-1)


class LastLayerObjective(GramObjective[Explained]):
    """L(X) of ΔW_L, from five products per fit: the features, HHᵀ, HΔᵀ, αᵀH and αR.

    One backward pass through the features gives the gradient. A fit takes about 2np(2d + n + 3c)
    operations for two layers and one θ_e, and memory for 3np numbers. In float64 α is refined once,
    α ← α + (HHᵀ)⁻¹HRᵀ, which restores the digits that forming the Gram matrix costs. `fit` also
    takes several sets of points: one product gives the features of all of them, and each set has a
    Gram matrix of its own.
    """

    def __init__(
        self, evidence: Evidence, *, device: torch.device, dtype: torch.dtype, lifted: bool = False
    ) -> None:
        last, known = evidence.network.last, set(evidence.target)
        names = tuple(name for name in last.names if name in known)
        super().__init__(evidence, names, device=device, dtype=dtype, lifted=lifted)
        self.rows = Rows(evidence, lifted=lifted, device=device, dtype=dtype)
        delta = self._target.delta
        self.delta = delta[last.weight]
        if self.rows.biased:
            assert last.bias is not None
            self.delta = torch.cat([self.delta, delta[last.bias][:, None]], dim=1)

    def at(self, endpoints: Endpoints) -> LastLayerObjective:
        evidence = self.evidence.at(endpoints)
        return LastLayerObjective(
            evidence, device=self._device, dtype=self._dtype, lifted=self.lifted
        )

    @property
    def name(self) -> str:
        signs = ", signs lifted" if self.lifted else ""
        return f"one Gram of the last layer's features at {self.endpoints.where}{signs}"

    @property
    def fixed_rows(self) -> int:
        return 0 if self.rows.fixed is None else len(self.rows.fixed)

    @cached_property
    def sizes(self) -> Sizes:
        c, p = self.delta.shape
        theta = self._target.theta
        return Sizes(
            r=self.evidence.d,
            c=c,
            layers=((1, p, c),),
            weights=sum(tensor.numel() for tensor in theta.values()),
            units=sum(tensor.shape[0] for tensor in theta.values() if tensor.dim() > 1),
            families=self.families,
            itemsize=self._dtype.itemsize,
        )

    def explain(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> Explained:
        """ΔW_L split into what the rows at Z explain and the rest."""
        return self._split(Z.detach(), jitter)

    def _computed(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None) -> Explained:
        return self._explain(self.rows(Z).flatten(0, 1), jitter)

    def _explain(self, A: Tensor, jitter: Tensor | None) -> Explained:
        if self.rows.fixed is not None:
            A = torch.cat([A, self.rows.fixed.expand(*A.shape[:-2], -1, -1)], dim=-2)
        gram = Gram(A @ A.mT, jitter)
        C = gram.solve((self.delta @ A.mT).mT).to(A.dtype)
        R = self.delta - C.mT @ A
        if self._refine:
            C = C + gram.solve((R @ A.mT).mT)
            R = self.delta - C.mT @ A
        return Explained(A, gram, C, R)

    def remainder(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> dict[str, Tensor]:
        R, last = self._target.length * self.explain(Z, jitter).R, self.evidence.network.last
        weight = R[:, : R.shape[1] - self.rows.biased]
        parts = {last.weight: weight}
        return {**parts, last.bias: R[:, -1]} if self.rows.biased and last.bias else parts

    def loss(self, explained: Explained) -> Float[Tensor, "*s"]:
        """‖R‖²/‖ΔW_L‖²."""
        norms: Tensor = torch.linalg.vector_norm(explained.R, dim=(-2, -1), dtype=torch.float64)
        return self._target.loss(norms.square())

    def fit(
        self,
        Z: Float[Tensor, "*s n r"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, "*s"] | None = None,
    ) -> Fit:
        if Z.dim() == 2 and not gradient:
            explained = self.explain(Z, jitter)
        else:
            with torch.set_grad_enabled(gradient):
                Z = Z.detach().requires_grad_(gradient)
                T = self.rows(Z.flatten(0, -2))
                T = T.reshape(len(T), *Z.shape[:-1], -1).movedim(0, -3)
            explained = self._explain(T.detach().flatten(-3, -2), jitter)
        C, slope = self._owned(explained, Z.shape[-2]), None
        if gradient:
            # ∂⟨C, A(Z)Rᵀ⟩/∂T_k = C_k R.
            (slope,) = torch.autograd.grad(T, Z, (-2 * C) @ explained.R[..., None, :, :])
        return Fit(self.loss(explained), self._target.length * C[..., 0, :, :], slope)

    def _owned(self, explained: Explained, n: int) -> Float[Tensor, "*s k n c"]:
        """The coefficients of the rows that belong to points.

        Those of the first family are α, or α + β where gradients are taken at both ends.
        """
        k = self.families
        return explained.C[..., : k * n, :].reshape(*explained.C.shape[:-2], k, n, -1)

    def costs(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, " n"]:
        explained, n = self.explain(Z, jitter), len(Z)
        own = torch.arange(self.families * n, device=Z.device).reshape(-1, n).T
        return cost(explained.gram.inverse(), explained.C.double(), own)

    def gains(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        explained = self.explain(Z, jitter)

        def gains(Z: Tensor) -> Tensor:
            T = self.rows(Z)
            W = explained.whitened(T.flatten(0, 1).T).reshape(-1, *T.shape[:2])
            K = torch.einsum("kmp,lmp->mkl", T, T)
            M = K - torch.einsum("akm,alm->mkl", W, W)
            B = torch.einsum("kmp,cp->mkc", T, explained.R)
            return gain(M, B, K.diagonal(dim1=1, dim2=2))

        return gains

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        # In an orthonormal basis of the fixed rows, all equations have the same level of noise.
        explained, B = self.explain(Z, jitter), self.rows.fixed
        if B is None:
            raise ValueError("only a lifted objective has signs to find")
        n, r = Z.shape
        k, c = self.families, explained.C.shape[1]
        _, T = torch.linalg.qr(B.T)
        own = explained.C[: k * n].reshape(k, n, c)
        linear = torch.einsum("knc,nr->krnc", own, Z).reshape(k * r, n * c)
        M = (T @ linear).reshape(-1, n, c).permute(0, 2, 1).reshape(-1, n)
        return M, (T @ explained.C[k * n :]).reshape(-1)

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        Z = Z.detach()
        explained = self.explain(Z, jitter)
        C = self._owned(explained, len(Z))
        dense = self.steps_dense(len(Z), coupled=geometry.coupled)
        form = self._dense_normal if dense else self._implicit_normal
        fit = Fit(self.loss(explained), self._target.length * C[0], None)
        return fit, form(Z, geometry, explained, C)

    def _dense_normal(
        self, Z: Tensor, geometry: Geometry, explained: Explained, C: Tensor
    ) -> DenseNormal:
        n, r = Z.shape
        N = Z.new_zeros(n * r, n * r)
        if C.shape[2] <= self.families:  # J of each output by itself takes c products
            slopes, alpha = self.rows.slopes(Z), self.rows.unmixed(C)
            g = Z.new_zeros(n * r)
            for o, row in enumerate(explained.R):
                moved = total(J * own[:, o, None] for J, own in zip(slopes, alpha, strict=True))
                E = geometry.tangent(Z, moved).reshape(-1, n * r)
                V = explained.whitened(E)
                N.addmm_(E.T, E).addmm_(V.T, V, alpha=-1)
                g.addmv_(E.T, row, alpha=-1)
        else:  # all outputs at once take K(K + 1)/2 products
            J = geometry.tangent(Z, self.rows.jacobian(Z))
            flat = J.flatten(2)
            W = [explained.whitened(part) for part in flat]
            for k, j in itertools.combinations_with_replacement(range(len(flat)), 2):
                block = torch.addmm(flat[k].T @ flat[j], W[k].T, W[j], alpha=-1).view(n, r, n, r)
                block = (block * (C[k] @ C[j].T)[:, None, :, None]).view(n * r, n * r)
                N += block if k == j else block + block.T
            g = -torch.einsum("kpnr,knp->nr", J, C @ explained.R)
        return DenseNormal(N, g.view(n, r), barred(geometry, Z), geometry.frame(Z))

    def _implicit_normal(
        self, Z: Tensor, geometry: Geometry, explained: Explained, C: Tensor
    ) -> ImplicitNormal:
        ends = self.rows.derivatives(Z, Z.dtype)
        alpha = self.rows.unmixed(C)
        p = self.delta.shape[1] - self.rows.biased

        def back(E: Float[Tensor, "c p"]) -> Float[Tensor, "n r"]:  # E ↦ Σ_e F_i^eᵀ Eᵀ α_i^e
            free = explained.orthogonal_rows(E)[:, :p]
            pulled = total(end.pull(own @ free) for end, own in zip(ends, alpha, strict=True))
            return geometry.tangent(Z, pulled)

        def product(v: Float[Tensor, "n r"]) -> Float[Tensor, "n r"]:  # v ↦ JᵀJv
            v = geometry.tangent(Z, v)
            E = total(own.T @ end.push(v) for end, own in zip(ends, alpha, strict=True))
            return back(torch.nn.functional.pad(E, (0, self.rows.biased)))

        scales, tolerance = point_scales(product, geometry, Z, C[0]), forcing(self.loss(explained))
        matrix = partial(self._dense_normal, Z, geometry, explained, C)
        return ImplicitNormal(
            product,
            scales,
            -back(explained.R),
            barred(geometry, Z),
            tolerance,
            matrix=matrix if self.dense(len(Z), coupled=geometry.coupled) else None,
        )
