"""JᵀJ = MᵀM − (GM)ᵀK⁻¹GM, column (i, a) of M being the change of Σ_e Σ_l D_i A_iᵀ with z_ia: all layers, dense.

The normal equations of `span/normal.py` for the layerwise Gram K = GGᵀ of networks that can say how their layers bend
(`MLP.bent`). A column of M is a sum of outer products, ∂D_i A_iᵀ + D_i ∂A_iᵀ, so that MᵀM is made of products of their
factors' inner products, and M itself is never formed either.
"""

from __future__ import annotations

import torch

from recollect.shapes import Float, Tensor
from recollect.span.gram import Gram
from recollect.span.passed import Passed
from recollect.victim import Bent


def normal_matrix(
    layers: list[tuple[Passed, list[Bent]]], gram: Gram, mix: Float[Tensor, "f f"], n: int
) -> Float[Tensor, "nr nr"]:
    """`layers`: what passed through each at all rows of G, and how it bends with the n points, at each of the F ends.

    `mix` takes the rows of the ends to those whose Gram was factored.
    """
    F, (first, bents) = len(mix), layers[0]
    r, c = bents[0].dA.shape[2], first.B.shape[1]
    half = first.A.new_zeros(n * r, n * r)  # what, with its transpose, makes MᵀM
    GM = first.A.new_zeros(F, len(first.A) // F, c, n, r)
    for passed, at in layers:
        for e, one in enumerate(at):
            for other in at[:e]:
                _add_products(half, one, other)
            _add_products(half, one, one, 0.5)
        A = passed.A[:, 0].reshape(F, -1, passed.A.shape[2])
        B = passed.B[:, :, 0].reshape(F, -1, c, passed.B.shape[3])
        for one in at:  # G at every end with the moves at each
            GM += (
                torch.einsum("fkcb,nb->fkcn", B, one.D)[..., None]
                * (torch.einsum("fka,anr->fknr", A, one.dA)[:, :, None])
            )
            if one.dD is not None:
                GM += torch.einsum("fkcb,bnr->fkcnr", B, one.dD) * (A @ one.A.T)[:, :, None, :, None]
    GM = torch.einsum("ef,fnkmr->enkmr", mix, GM).reshape(-1, n * r)
    V = gram.whiten(GM).to(half.dtype)
    return half.addmm_(V.T, V, alpha=-0.5).add_(half.T.clone())


def _add_products(N: Float[Tensor, "nr nr"], one: Bent, other: Bent, factor: float = 1.0) -> None:
    """N += factor ⟨∂_a(D_i A_iᵀ), ∂_b(D_j A_jᵀ)⟩ of one layer, at two ends or the same."""
    n, r = one.dA.shape[1:]
    blocks = N.view(n, r, n, r)

    def add(P: Tensor, Q: Tensor) -> None:  # one pass over N, which is far larger than anything else
        blocks.addcmul_(P, Q, value=factor)

    def across(left: Tensor, right: Tensor) -> Tensor:
        return (left.reshape(-1, n * r).T @ right.reshape(-1, n * r)).view(n, r, n, r)

    add(across(one.dA, other.dA), (one.D @ other.D.T)[:, None, :, None])
    if one.dD is not None and other.dD is not None:
        add(across(one.dD, other.dD), (one.A @ other.A.T)[:, None, :, None])
        add(
            torch.einsum("bnr,mb->nrm", one.dD, other.D)[..., None],
            torch.einsum("na,ams->nms", one.A, other.dA)[:, None],
        )
        add(
            torch.einsum("nb,bms->nms", one.D, other.dD)[:, None],
            torch.einsum("anr,ma->nrm", one.dA, other.A)[..., None],
        )
