"""∇f_k(x_i) = B_ik A_iᵀ: the gradient of an output with respect to one linear layer, as its two factors.

A_i is what enters the layer, B_ik = ∂f_k/∂Y_i what comes back to it; inner products of gradients are products of inner
products, (A_i·A_j)(B_ik·B_jm). A layer with many positions t (a convolution) has Σ_t B_ikt A_itᵀ instead, which is
small enough to form.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from recollect.shapes import Float, Tensor


@dataclass(frozen=True)
class Passed:
    """One layer at n points: what entered it, with a 1 for its bias, and what came back to it."""

    A: Float[Tensor, "n t a"]
    B: Float[Tensor, "n c t b"]

    def rows(self) -> Float[Tensor, "n c ba"]:
        """The layer's part of G."""
        return torch.einsum("nctb,nta->ncba", self.B, self.A).flatten(2)

    def gram(self, other: Passed) -> Float[Tensor, "n c m c"]:
        """The layer's part of the inner products of these points' gradients with others'."""
        if self.A.shape[1] > 1:
            rows = self.rows()
            return torch.einsum("ncx,mkx->ncmk", rows, rows if other is self else other.rows())
        AA = torch.einsum("nta,mta->nm", self.A, other.A)[:, None, :, None]
        return torch.mul(AA, torch.einsum("nctb,mktb->ncmk", self.B, other.B))

    def own(self, F: int) -> Float[Tensor, "m f c f c"]:
        """The same of each point with itself, at its F ends."""
        A, B = (part.reshape(F, -1, *part.shape[1:]) for part in (self.A, self.B))
        if A.shape[2] > 1:
            rows = self.rows().reshape(F, A.shape[1], B.shape[2], -1)
            return torch.einsum("emkx,fmlx->mekfl", rows, rows)
        AA = torch.einsum("emta,fmta->mef", A, A)[:, :, None, :, None]
        return torch.mul(AA, torch.einsum("emktb,fmltb->mekfl", B, B))

    def along(self, V: Float[Tensor, "b a"]) -> Float[Tensor, "n c"]:
        """⟨∇f_k(x_i), V⟩."""
        return torch.einsum("nctb,ntb->nc", self.B, self.A @ V.T)

    def without(self, V: Float[Tensor, "b a"], alpha: Float[Tensor, "n c"]) -> Float[Tensor, "b a"]:
        """V − Σ_ik α_ik ∇f_k(x_i)."""
        D = torch.einsum("nc,nctb->ntb", alpha, self.B)
        return torch.addmm(V, D.flatten(0, 1).T, self.A.flatten(0, 1), alpha=-1)


def stack(ends: Sequence[Passed]) -> Passed:
    """The same layer at more points."""
    return Passed(torch.cat([end.A for end in ends]), torch.cat([end.B for end in ends]))


def total(parts: Iterator[Tensor]) -> Tensor:
    """Σ_l, over layers."""
    return functools.reduce(torch.add, parts)
