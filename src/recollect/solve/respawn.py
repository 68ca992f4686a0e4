"""Points that explain nothing are dropped, and new ones put where most is left to explain.

Adding a point with rows T (K×p) lowers ‖R‖² by tr(Bᵀ M⁻¹ B), B = T Rᵀ (K×c), M = T P⊥ Tᵀ (K×K): its *gain*.
Removing point i raises it by Σ_o C_ioᵀ [(K⁻¹)_ii]⁻¹ C_io, C_io its coefficients for output o and (K⁻¹)_ii its block of
the inverse Gram: its *cost*.
"""

from __future__ import annotations

import torch

from recollect.geometry import Geometry, random_start
from recollect.shapes import Float, Tensor
from recollect.span import Explained, LastLayerSpan

_DRAWS, _CHUNK, _ASCENT = 2000, 200, 40
_ALIKE = 0.9
"""Two candidates with a larger |cosine| are climbing the same hill."""


def costs(span: LastLayerSpan, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Float[Tensor, " n"]:
    """By how much the loss would rise without each point, the others staying where they are."""
    explained = span.explain(Z, jitter)
    own = torch.arange(span.rows.families * len(Z), device=Z.device).reshape(-1, len(Z)).T  # the rows of each point
    blocks = explained.gram.inverse()[own[:, :, None], own[:, None, :]]
    C = explained.C[own]
    rise: Tensor = (C * torch.linalg.solve(blocks, C)).sum((1, 2))
    return rise


def gains(span: LastLayerSpan, explained: Explained, Z: Float[Tensor, "m r"]) -> Float[Tensor, " m"]:
    """By how much the loss would fall with each of these points added to those explained; differentiable in Z."""
    T = span.rows(Z)
    free = explained.orthogonal(T.flatten(0, 1).T).T.reshape(T.shape)
    M = torch.einsum("kmp,lmp->mkl", T, free)
    # Rows already in the span gain nothing; the loading keeps 0/0 out.
    M = M + torch.diag_embed(1e-10 * M.diagonal(dim1=1, dim2=2) + 1e-300)
    B = torch.einsum("kmp,cp->mkc", T, explained.R)
    fall: Tensor = (B * torch.linalg.solve(M, B)).sum((1, 2))
    return fall


def spawn(
    span: LastLayerSpan,
    geometry: Geometry,
    Z: Float[Tensor, "n r"],
    count: int,
    generator: torch.Generator,
    jitter: Float[Tensor, ""] | None = None,
) -> Float[Tensor, "m r"]:
    """At most `count` new points of large gain, no two alike: the best of many draws, each led uphill."""
    explained = span.explain(Z, jitter)
    drawn = random_start(geometry, _DRAWS, Z.shape[1], generator).to(Z)
    with torch.no_grad():
        gain = torch.cat([gains(span, explained, some) for some in torch.split(drawn, _CHUNK)])
    new = drawn[gain.topk(min(_DRAWS, max(16, 4 * count))).indices]
    for k in range(_ASCENT):
        new = new.detach().requires_grad_()
        (slope,) = torch.autograd.grad(gains(span, explained, new).sum(), new)
        new = new.detach()
        slope = geometry.tangent(new, slope)
        length = 0.3 * (1 - k / _ASCENT) * geometry.radius
        new = geometry.project(new + length * slope / slope.norm(dim=1, keepdim=True).clamp_min(1e-300))
    with torch.no_grad():
        new = new[gains(span, explained, new).argsort(descending=True, stable=True)]
    directions = torch.nn.functional.normalize(new, dim=1)
    alike = (directions @ directions.T).abs().gt(_ALIKE).cpu()
    chosen: list[int] = []
    for i in range(len(new)):
        if len(chosen) < count and not alike[i, chosen].any():
            chosen.append(i)
    return new[chosen]
