"""G itself, an (nc)×m matrix: the reference for the other objectives, and fast where it fits."""

from __future__ import annotations

import torch

from recollect.objective.base import Fit
from recollect.objective.evidence import Evidence
from recollect.objective.gram import Gram
from recollect.objective.products import (
    chosen,
    envelope_gradient,
    outputs_at,
    residual,
    single_target,
    squared_norm,
    vjp,
)
from recollect.shapes import Float, Tensor, Theta


class DenseObjective:
    """G = [∇_θ f_k(x_i; θ)]_{ik}, one row per point and output.

    GGᵀ takes 2(nc)²m operations, and G itself (nc)m numbers.
    """

    notes: tuple[str, ...] = ()
    capturable = False
    name = "dense G"

    def __init__(
        self,
        evidence: Evidence,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self._target = single_target(evidence, names, device, dtype)

    @property
    def equations(self) -> int:
        return self._target.equations

    def flops(self, n: int) -> float:
        rows = n * self._target.network.c
        return rows * self._target.pass_flops(1) + 2.0 * rows**2 * self.equations

    def G(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "nc m"]:
        """All gradients at X."""
        target = self._target

        def one(theta: Theta, x: Tensor) -> Tensor:
            return outputs_at(target, x[None])(theta)[0]

        blocks = torch.func.vmap(torch.func.jacrev(one), in_dims=(None, 0))(chosen(target), X)
        rows = len(X) * target.network.c
        return torch.cat([blocks[name].reshape(rows, -1) for name in target.delta], dim=1)

    def fit(
        self,
        X: Float[Tensor, "n d"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, ""] | None = None,
    ) -> Fit:
        target = self._target
        X = X.detach()
        G = self.G(X)
        delta = torch.cat([part.reshape(-1) for part in target.delta.values()])
        solved = Gram(G @ G.T, jitter).solve((G @ delta)[:, None])
        alpha = solved.to(X.dtype).reshape(len(X), -1)
        R = residual(target.delta, vjp(outputs_at(target, X), chosen(target))(alpha))
        slope = envelope_gradient(target, X, alpha, R) if gradient else None
        return Fit(target.loss(squared_norm(R)), target.length * alpha, slope)


def dense_bytes(evidence: Evidence, names: tuple[str, ...], n: int, dtype: torch.dtype) -> int:
    """Peak memory of one fit.

    It counts G, the blocks from which G is gathered, and the transposed copy that its product may
    need.
    """
    m = sum(evidence.nodes[0][name].numel() for name in names)
    return 3 * n * evidence.c * m * dtype.itemsize
