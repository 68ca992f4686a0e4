"""The maximum mean discrepancy of two signed measures, and the inequalities of the recovery
proof.

    P = Σ α_i δ(x_i),  P̂ = Σ α̂_i δ(x̂_i),
            MMD_k² = Σα_iα_jk(x_i, x_j) − 2Σα_iα̂_jk(x_i, x̂_j) + Σα̂_iα̂_jk(x̂_i, x̂_j)

For k = k_p, MMD_k² is ‖Σα_iφ(x_i) − Σα̂_iφ(x̂_i)‖² = L_recon. For k = k_∞ it differs from L_recon
by at most ε(‖α‖₁ + ‖α̂‖₁)², where ε is any bound on |k_p − k_∞| at these points.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from recollect.shapes import Float, Tensor
from recollect.theory.kernel import Zonal
from recollect.victim.activations import activation


@dataclass(frozen=True)
class Chain:
    """The quantities in the inequalities of the proof, for one pair of measures."""

    loss: float
    """L_recon = ‖θ − Σα̂_iφ(x̂_i)‖²."""
    mmd_p: float
    mmd_infinity: float
    deviation: float
    """max |k_p − k_∞| over the points of the two measures, the smallest valid ε."""
    alpha: float
    alpha_hat: float

    @property
    def bound(self) -> float:
        """√(L_recon + ε(‖α‖₁ + ‖α̂‖₁)²) ≥ MMD_∞."""
        return math.sqrt(self.loss + self.deviation * (self.alpha + self.alpha_hat) ** 2)


def mmd(K: Float[Tensor, "m m"], weights: Float[Tensor, " m"]) -> float:
    """√(wᵀKw) with w = (α, −α̂). A negative wᵀKw, which rounding may cause, counts as zero."""
    return math.sqrt(max(0.0, float(weights @ K @ weights)))


def chain(
    name: str,
    V: Float[Tensor, "p d"],
    b: Float[Tensor, " p"],
    X: Float[Tensor, "n d"],
    alpha: Float[Tensor, " n"],
    X_hat: Float[Tensor, "k d"],
    alpha_hat: Float[Tensor, " k"],
) -> Chain:
    points, weights = torch.cat([X, X_hat]), torch.cat([alpha, -alpha_hat])
    Phi = activation(name).phi(points @ V.T + b) / math.sqrt(len(V))
    K_p = Phi @ Phi.T
    K_infinity = torch.from_numpy(Zonal(name)((points @ points.T / X.shape[1]).numpy()))
    return Chain(
        loss=float((Phi.T @ weights).square().sum()),
        mmd_p=mmd(K_p, weights),
        mmd_infinity=mmd(K_infinity, weights),
        deviation=float((K_p - K_infinity).abs().max()),
        alpha=float(alpha.abs().sum()),
        alpha_hat=float(alpha_hat.abs().sum()),
    )
