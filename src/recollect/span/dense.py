"""G itself, an (nc)×m matrix: the reference for every other span, and the fast way where it fits in memory."""

from __future__ import annotations

import torch

from recollect.shapes import Float, Tensor, Theta
from recollect.span.base import Fit, Weights
from recollect.span.gram import Gram
from recollect.span.products import chosen, envelope_gradient, outputs_at, residual, squared_norm, vjp
from recollect.victim import Victim


class DenseSpan:
    """G = [∇_θ f_k(x_i; θf)]_{ik}, row by row. GGᵀ takes 2(nc)²m operations, G itself (nc)m numbers."""

    notes: tuple[str, ...] = ()
    capturable = False
    name = "dense G"

    def __init__(self, victim: Victim, names: tuple[str, ...], *, device: torch.device, dtype: torch.dtype) -> None:
        self._weights = Weights(victim, names, device, dtype)

    @property
    def equations(self) -> int:
        return self._weights.equations

    def flops(self, n: int) -> float:
        rows = n * self._weights.network.c
        return rows * self._weights.pass_flops(1) + 2.0 * rows**2 * self.equations

    def G(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nc m"]:
        weights = self._weights

        def one(theta: Theta, x: Tensor) -> Tensor:
            return outputs_at(weights, x[None])(theta)[0]

        blocks = torch.func.vmap(torch.func.jacrev(one), in_dims=(None, 0))(chosen(weights), X)
        rows = len(X) * weights.network.c
        return torch.cat([blocks[name].reshape(rows, -1) for name in weights.delta], dim=1)

    def fit(self, X: Float[Tensor, "n d"], *, gradient: bool = True, jitter: Float[Tensor, ""] | None = None) -> Fit:
        weights = self._weights
        X = X.detach()
        G = self.G(X)
        delta = torch.cat([part.reshape(-1) for part in weights.delta.values()])
        alpha = Gram(G @ G.T, jitter).solve((G @ delta)[:, None]).to(X.dtype).reshape(len(X), -1)
        R = residual(weights.delta, vjp(outputs_at(weights, X), chosen(weights))(alpha))
        slope = envelope_gradient(weights, X, alpha, R) if gradient else None
        return Fit(weights.loss(squared_norm(R)), weights.length * alpha, slope)


def dense_bytes(victim: Victim, names: tuple[str, ...], n: int, dtype: torch.dtype) -> int:
    """Peak memory of one fit: G, the blocks it is gathered from, and the transposed copy its product may take."""
    m = sum(victim.theta_f[name].numel() for name in names)
    return 3 * n * victim.c * m * dtype.itemsize
