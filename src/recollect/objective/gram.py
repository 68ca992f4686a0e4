"""(GGᵀ)α = GΔ (eq:linear_system_for_alpha): the solve behind every objective that forms GGᵀ."""

from __future__ import annotations

import torch

from recollect.shapes import Float, Tensor


class Gram:
    """K = GGᵀ, factored: LLᵀ = SKS + jitter·I with S = (diag K)^−½, in float64.

    The scaling S brings rows of very different lengths (features, and the little by which they
    moved) to one scale. A row of zeros explains nothing; a 1 on its diagonal keeps K regular.

    Failure is a value and not an exception, so that nothing waits for the device: where K is not
    positive definite, all solutions are NaN. The loop then undoes the step and raises the jitter,
    on the device as well (`solve/loop.py`). Several Gram matrices may be stacked along leading
    dimensions; each then has its own jitter and fails by itself.
    """

    def __init__(
        self, K: Float[Tensor, "*s k k"], jitter: Float[Tensor, "*s"] | None = None
    ) -> None:
        K = K.double()
        diagonal = K.diagonal(dim1=-2, dim2=-1)
        self._scale = torch.where(diagonal > 0, diagonal.rsqrt(), 1.0)[..., None]
        K = (self._scale * K).mul_(self._scale.mT)
        K.diagonal(dim1=-2, dim2=-1).add_((diagonal <= 0).to(K.dtype))
        if jitter is not None:
            K.diagonal(dim1=-2, dim2=-1).add_(jitter[..., None])
        self._factor, info = torch.linalg.cholesky_ex(K)
        self._sound = (info == 0)[..., None, None]

    def solve(self, B: Float[Tensor, "*s k c"]) -> Float[Tensor, "*s k c"]:
        """K⁻¹B, in float64.

        This uses two triangular solves and not `cholesky_solve`, which copies the factor (ten times
        the time for one column and k = 1000 on a CPU) and on a GPU goes through a stack one by one
        (pytorch/pytorch#175898).
        """
        X: Tensor = torch.linalg.solve_triangular(self._factor.mT, self.whiten(B), upper=True)
        return self._scale * X

    def whiten(self, B: Float[Tensor, "*s k c"]) -> Float[Tensor, "*s k c"]:
        """V with VᵀV = BᵀK⁻¹B, in float64."""
        V = torch.linalg.solve_triangular(self._factor, self._scale * B.double(), upper=False)
        return torch.where(self._sound, V, torch.nan)

    def inverse(self) -> Float[Tensor, "*s k k"]:
        """K⁻¹, in float64."""
        size, device = self._scale.shape[-2], self._scale.device
        return self.solve(torch.eye(size, dtype=torch.float64, device=device))
