"""JᵀJ = MᵀM − (GM)ᵀK⁻¹GM: the normal matrix of all layers.

Column (i, a) of M is the derivative, by coordinate a of point i, of what that point adds to the
change of every layer: D_i A_iᵀ, for each layer l and each end e of training. These are the normal
equations of `objective/normal.py` for the layerwise Gram K = GGᵀ, for networks that can say how
their layers bend (`MLP.bent`). A column of M is a sum of outer products, ∂D_i A_iᵀ + D_i ∂A_iᵀ.
The entries of MᵀM are therefore sums of products of two inner products, and M itself is never
formed.
"""

from __future__ import annotations

import torch

from recollect.objective.factors import LayerFactors
from recollect.objective.gram import Gram
from recollect.shapes import Float, Tensor
from recollect.victim.network import Bent


def normal_matrix(
    layers: list[tuple[LayerFactors, list[Bent]]], gram: Gram, mix: Float[Tensor, "f f"], n: int
) -> Float[Tensor, "nr nr"]:
    """JᵀJ of n points.

    For each layer, `layers` holds the factors of all rows of G, and how the layer bends with the n
    points at each of the F parameters θ_e. `mix` takes the rows at the θ_e to those whose Gram
    matrix was factored.
    """
    F, (first, bents) = len(mix), layers[0]
    r, c = bents[0].dA.shape[2], first.B.shape[1]
    half = first.A.new_zeros(n * r, n * r)  # together with its transpose this becomes MᵀM
    GM = first.A.new_zeros(F, len(first.A) // F, c, n, r)
    for passed, at in layers:
        for e, one in enumerate(at):
            for other in at[:e]:
                _add_products(half, one, other)
            _add_products(half, one, one, 0.5)
        A = passed.A[:, 0].reshape(F, -1, passed.A.shape[2])
        B = passed.B[:, :, 0].reshape(F, -1, c, passed.B.shape[3])
        for one in at:  # the rows of G at every θ_e with the moves at each θ_e
            BD = torch.einsum("fkcb,nb->fkcn", B, one.D)[..., None]
            GM += BD * torch.einsum("fka,anr->fknr", A, one.dA)[:, :, None]
            if one.dD is not None:
                AA = (A @ one.A.T)[:, :, None, :, None]
                GM += torch.einsum("fkcb,bnr->fkcnr", B, one.dD) * AA
    GM = torch.einsum("ef,fnkmr->enkmr", mix, GM).reshape(-1, n * r)
    V = gram.whiten(GM).to(half.dtype)
    return half.addmm_(V.T, V, alpha=-0.5).add_(half.T.clone())


def _add_products(N: Float[Tensor, "nr nr"], one: Bent, other: Bent, factor: float = 1.0) -> None:
    """N += factor·⟨∂_a(D_i A_iᵀ), ∂_b(D_j A_jᵀ)⟩ of one layer, at two θ_e or one."""
    _add(N, _across(one.dA, other.dA), (one.D @ other.D.T)[:, None, :, None], factor)
    if one.dD is not None and other.dD is not None:
        _add(N, _across(one.dD, other.dD), (one.A @ other.A.T)[:, None, :, None], factor)
        _add(
            N,
            torch.einsum("bnr,mb->nrm", one.dD, other.D)[..., None],
            torch.einsum("na,ams->nms", one.A, other.dA)[:, None],
            factor,
        )
        _add(
            N,
            torch.einsum("nb,bms->nms", one.D, other.dD)[:, None],
            torch.einsum("anr,ma->nrm", one.dA, other.A)[..., None],
            factor,
        )


def _add(N: Float[Tensor, "nr nr"], P: Tensor, Q: Tensor, factor: float) -> None:
    """N += factor·PQ, entry by entry, in one pass over N, which is far larger than the rest."""
    shape = [max(sizes) for sizes in zip(P.shape, Q.shape, strict=True)]  # n, r, n, r
    N.view(shape).addcmul_(P, Q, value=factor)


def _across(
    left: Float[Tensor, "m n r"], right: Float[Tensor, "m n r"]
) -> Float[Tensor, "n r n r"]:
    n, r = left.shape[1:]
    return (left.reshape(-1, n * r).T @ right.reshape(-1, n * r)).view(n, r, n, r)
