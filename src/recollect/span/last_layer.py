"""G = H ⊗ I_c: the last layer alone, so that one n×n Gram HHᵀ serves all c outputs.

The gradient of output k with respect to the last weights is h(x) in row k and zero elsewhere. Hence α is n×c,
(HHᵀ)α = H ΔW_Lᵀ, R = ΔW_L − αᵀH, and neither the (nc)×(cp) Jacobian nor anything of its size is ever formed.
"""

from __future__ import annotations

import torch

from recollect.shapes import Float, Tensor
from recollect.span.base import Fit, Weights
from recollect.span.gram import solve_gram
from recollect.victim import Victim


class LastLayerSpan:
    """Five products a fit: the features, HHᵀ, HΔᵀ, αᵀH, αR, and one backward pass through the features.

    About 2np(2d + n + 3c) operations for two layers; memory 3np.
    """

    notes: tuple[str, ...] = ()
    capturable = True
    name = "one n×n Gram of the last layer's features"

    def __init__(self, victim: Victim, *, device: torch.device, dtype: torch.dtype) -> None:
        last = victim.network.last
        self._weights = Weights(victim, last.names, device, dtype)
        delta = self._weights.delta
        self._bias = last.bias is not None
        self._delta = delta[last.weight]
        if last.bias is not None:  # a bias is the weight of a feature that is always 1
            self._delta = torch.cat([self._delta, delta[last.bias][:, None]], dim=1)

    @property
    def equations(self) -> int:
        return self._weights.equations

    def flops(self, n: int) -> float:
        c, p = self._delta.shape
        return self._weights.pass_flops(n) + 2.0 * n * p * (n + 3 * c)

    def fit(self, X: Float[Tensor, "n d"], *, gradient: bool = True, jitter: Float[Tensor, ""] | None = None) -> Fit:
        weights, delta = self._weights, self._delta
        with torch.set_grad_enabled(gradient):
            X = X.detach().requires_grad_(gradient)
            features = weights.network.features(weights.theta_f, X)
        H = features.detach()
        if self._bias:
            H = torch.cat([H, H.new_ones(len(H), 1)], dim=1)
        alpha = solve_gram(H @ H.T, H @ delta.T, jitter).to(H.dtype)
        R = torch.addmm(delta, alpha.T, H, alpha=-1)
        loss = weights.loss(torch.linalg.vector_norm(R, dtype=torch.float64).square())
        if not gradient:
            return Fit(loss, weights.length * alpha, None)
        # ∂⟨α, H(X)Rᵀ⟩/∂H = αR, without the constant feature of the bias.
        cotangent = (-2 * alpha) @ R[:, : features.shape[1]]
        (slope,) = torch.autograd.grad(features, X, cotangent)
        return Fit(loss, weights.length * alpha, slope)
