"""∇f_k(x_i) = B_ik A_iᵀ: the gradient with respect to one linear layer, as two factors.

A_i is what enters the layer, and B_ik = ∂f_k/∂Y_i is what comes back to its output. Inner products
of gradients are products of inner products, (A_i·A_j)(B_ik·B_jm). A layer with many positions t (a
convolution) has Σ_t B_ikt A_itᵀ instead, which is small enough to form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from recollect.shapes import Float, Tensor


@dataclass(frozen=True)
class LayerFactors:
    """One layer at n points: what entered it, with a 1 for its bias, and what came back to it.

    Several sets of points may be stacked along leading dimensions.
    """

    A: Float[Tensor, "*s n t a"]
    B: Float[Tensor, "*s n c t b"]

    def repeated(self, sets: tuple[int, ...]) -> LayerFactors:
        """The same for each set of a stack of this shape."""
        return LayerFactors(
            self.A.expand(*sets, *self.A.shape), self.B.expand(*sets, *self.B.shape)
        )

    def rows(self) -> Float[Tensor, "*s n c ba"]:
        """The layer's part of G."""
        return torch.einsum("...nctb,...nta->...ncba", self.B, self.A).flatten(-2)

    def gram(self, other: LayerFactors) -> Float[Tensor, "*s n c m c"]:
        """The layer's part of the inner products of the gradients at these and at other points."""
        if self.A.shape[-2] > 1:
            rows = self.rows()
            others = rows if other is self else other.rows()
            return torch.einsum("...ncx,...mkx->...ncmk", rows, others)
        AA = torch.einsum("...nta,...mta->...nm", self.A, other.A)[..., :, None, :, None]
        return torch.mul(AA, torch.einsum("...nctb,...mktb->...ncmk", self.B, other.B))

    def add_gram(self, K: Float[Tensor, "*s n c n c"]) -> None:
        """Add the inner products of these gradients with one another, on and below the diagonal.

        The triangle is filled tile by tile, which spares two fifths of the operations. With several
        positions the gradients are formed, and there is one tile so that this is done once.
        """
        n, c, positions = self.B.shape[-4:-1]
        tiles = _TILES if n * c > _TILED and positions == 1 else 1
        for k in range(tiles):
            first, end = k * n // tiles, (k + 1) * n // tiles
            columns = LayerFactors(self.A[..., :end, :, :], self.B[..., :end, :, :, :])
            rows = LayerFactors(self.A[..., first:end, :, :], self.B[..., first:end, :, :, :])
            K[..., first:end, :, :end, :] += (columns if tiles == 1 else rows).gram(columns)

    def own(self, F: int) -> Float[Tensor, "m f c f c"]:
        """The same for each point with itself, at its F parameters θ_e."""
        A, B = (part.reshape(F, -1, *part.shape[1:]) for part in (self.A, self.B))
        if A.shape[2] > 1:
            rows = self.rows().reshape(F, A.shape[1], B.shape[2], -1)
            return torch.einsum("emkx,fmlx->mekfl", rows, rows)
        AA = torch.einsum("emta,fmta->mef", A, A)[:, :, None, :, None]
        return torch.mul(AA, torch.einsum("emktb,fmltb->mekfl", B, B))

    def along(self, V: Float[Tensor, "*v b a"]) -> Float[Tensor, "*s n c"]:
        """⟨∇f_k(x_i), V⟩, with one V for all sets of points or one for each."""
        return torch.einsum("...nctb,...ntb->...nc", self.B, mapped(self.A, V))

    def without(
        self, V: Float[Tensor, "*v b a"], alpha: Float[Tensor, "*s n c"]
    ) -> Float[Tensor, "*s b a"]:
        """V − Σ_ik α_ik ∇f_k(x_i)."""
        D = torch.einsum("...nc,...nctb->...ntb", alpha, self.B)
        D, A = D.flatten(-3, -2), self.A.flatten(-3, -2)
        if A.dim() == 2:
            return torch.addmm(V, D.T, A, alpha=-1)
        return torch.baddbmm(V.expand(*A.shape[:-2], *V.shape[-2:]), D.mT, A, alpha=-1)


_TILES, _TILED = 8, 1000
"""The number of tiles along the diagonal of a Gram matrix of more rows than the second number."""


def mapped(A: Float[Tensor, "*s n t a"], V: Float[Tensor, "*v b a"]) -> Float[Tensor, "*s n t b"]:
    """V A_it, by one product for all points of a set."""
    return (A.flatten(-3, -2) @ V.mT).reshape(*A.shape[:-1], V.shape[-2])


def stack(ends: Sequence[LayerFactors]) -> LayerFactors:
    """The same layer at the points of all of these, one after the other."""
    A = torch.cat([end.A for end in ends], dim=-3)
    return LayerFactors(A, torch.cat([end.B for end in ends], dim=-4))


def total(parts: Iterator[Tensor]) -> Tensor:
    """Σ over the parts, for example over layers."""
    return functools.reduce(torch.add, parts)
