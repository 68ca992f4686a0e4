"""GGᵀ = Σ_l (A_l A_lᵀ) ∘ (B_l B_lᵀ): all parameters at the price of a few products a layer, and never G.

The gradient of f_k(x_i) with respect to a linear layer is B_ik A_iᵀ, A_i what enters the layer and B_ik = ∂f_k/∂Y_i what
comes back to it. Hence ⟨∇f_k(x_i), ∇f_m(x_j)⟩ = Σ_l (A_i·A_j)(B_ik·B_jm), and with D_i = Σ_k α_ik B_ik

    (GΔθ)_ik = Σ_l B_ik·(ΔW_l A_i),      R_l = ΔW_l − Σ_i D_i A_iᵀ.

A layer with many positions (a convolution) has Σ_t B_ikt A_itᵀ instead, which is small enough to form. With both
endpoints each point has its gradients at θf and at θ0; as for the last layer (`span/rows.py`) the solve is in their
mean and difference, since the two are nearly parallel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from recollect.shapes import Float, Tensor, Theta
from recollect.span.base import Fit, Weights, cast
from recollect.span.gram import Gram
from recollect.span.rows import Endpoints, ends
from recollect.victim import Layer, Tap, Victim


@dataclass(frozen=True)
class Passed:
    """One layer at n points: what entered it, with a 1 for its bias, and what came back to it."""

    A: Float[Tensor, "n t a"]
    B: Float[Tensor, "n c t b"]

    def rows(self) -> Float[Tensor, "n c ba"]:
        """The layer's part of G."""
        return torch.einsum("nctb,nta->ncba", self.B, self.A).flatten(2)

    def gram(self) -> Float[Tensor, "n c n c"]:
        """The layer's part of GGᵀ."""
        if self.A.shape[1] == 1:
            A, B = self.A[:, 0], self.B[:, :, 0]
            return (A @ A.T)[:, None, :, None] * torch.tensordot(B, B, dims=([2], [2]))
        rows = self.rows()
        return torch.tensordot(rows, rows, dims=([2], [2]))

    def along(self, V: Float[Tensor, "b a"]) -> Float[Tensor, "n c"]:
        """⟨∇f_k(x_i), V⟩."""
        return torch.einsum("nctb,ntb->nc", self.B, self.A @ V.T)

    def combined(self, alpha: Float[Tensor, "n c"]) -> Float[Tensor, "b a"]:
        """Σ_ik α_ik ∇f_k(x_i)."""
        D = torch.einsum("nc,nctb->ntb", alpha, self.B)
        return D.flatten(0, 1).T @ self.A.flatten(0, 1)


class LayerwiseSpan:
    """A layer costs 2n²a + 2(nc)²b operations and c backward passes; memory ncb, where G would take ncab.

    Only layers with a rule can take part; `Network.untapped` names the parameters of others.
    """

    notes: tuple[str, ...] = ()
    capturable = True

    def __init__(
        self,
        victim: Victim,
        names: tuple[str, ...],
        *,
        device: torch.device,
        dtype: torch.dtype,
        endpoints: Endpoints = Endpoints.FINAL,
    ) -> None:
        self._weights = Weights(victim, names, device, dtype)
        self._network, self._names = victim.network, frozenset(names)
        self._thetas = [cast(theta, device, dtype) for theta in ends(victim, endpoints)]
        self._mix = torch.tensor(_MIX[len(self._thetas)], dtype=dtype, device=device)
        self._refine = dtype == torch.float64
        self.endpoints = endpoints

    @property
    def name(self) -> str:
        what = {Endpoints.FINAL: "θf", Endpoints.INITIAL: "θ0", Endpoints.BOTH: "θf and θ0"}[self.endpoints]
        return f"layerwise Gram at {what}"

    @property
    def equations(self) -> int:
        return self._weights.equations

    def flops(self, n: int) -> float:
        families, c = len(self._thetas), self._network.c
        widths = sum(tensor.shape[0] for tensor in self._weights.delta.values())
        return families * (c + 5) * self._weights.pass_flops(n) / 2 + 2.0 * (families * n * c) ** 2 * widths

    def fit(self, X: Float[Tensor, "n d"], *, gradient: bool = True, jitter: Float[Tensor, ""] | None = None) -> Fit:
        with torch.enable_grad():
            X = X.detach().requires_grad_()
            traced = [self._network.taps(theta, X) for theta in self._thetas]
        traced = [(outputs, [tap for tap in taps if self._part(tap.layer)]) for outputs, taps in traced]
        layers = [tap.layer for tap in traced[0][1]]
        passed = [self._passed(*end) for end in traced]
        delta = [self._matrix(self._weights.delta, layer) for layer in layers]
        alpha, R = self._explain([_stack(ends) for ends in zip(*passed, strict=True)], delta, jitter)
        slope = self._slope(X, traced, alpha, R) if gradient else None
        squares = torch.stack([torch.linalg.vector_norm(part, dtype=torch.float64).square() for part in R])
        return Fit(self._weights.loss(squares.sum()), self._weights.length * alpha.sum(0), slope)

    def _explain(
        self, layers: list[Passed], delta: list[Tensor], jitter: Tensor | None
    ) -> tuple[Float[Tensor, "f n c"], list[Tensor]]:
        """α at each end, and R layer by layer."""
        F = len(self._thetas)
        K = torch.stack([layer.gram() for layer in layers]).sum(0)
        rows, c = K.shape[:2]
        mix = self._mix
        K = torch.einsum("ef,fakgbm,hg->eakhbm", mix, K.reshape(F, rows // F, c, F, rows // F, c), mix)
        gram = Gram(K.reshape(rows * c, rows * c), jitter)

        def solve(V: list[Tensor]) -> Tensor:
            b = torch.stack([layer.along(part) for layer, part in zip(layers, V, strict=True)]).sum(0)
            mixed = gram.solve((mix @ b.reshape(F, -1)).reshape(-1, 1)).to(b.dtype)
            return (mix.T @ mixed.reshape(F, -1)).reshape(rows, c)

        def rest(alpha: Tensor) -> list[Tensor]:
            return [part - layer.combined(alpha) for layer, part in zip(layers, delta, strict=True)]

        alpha = solve(delta)
        if self._refine:
            alpha = alpha + solve(rest(alpha))
        return alpha.reshape(F, rows // F, c), rest(alpha)

    def _slope(
        self, X: Tensor, traced: list[tuple[Tensor, list[Tap]]], alpha: Tensor, R: list[Tensor]
    ) -> Float[Tensor, "n d"]:
        """−2∇_X ⟨α, G(X)R⟩ = −2∇_X Σ_l D_i·(R_l A_i), α and R held fixed."""
        correlation = X.new_zeros(())
        with torch.enable_grad():
            for (outputs, taps), own in zip(traced, alpha, strict=True):
                back = torch.autograd.grad(outputs, [tap.Y for tap in taps], own, create_graph=True)
                for tap, D, V in zip(taps, back, R, strict=True):
                    correlation = correlation + (tap.positions(D) * (self._entering(tap) @ V.T)).sum()
        (slope,) = torch.autograd.grad(correlation, X)
        return -2 * slope

    def _passed(self, outputs: Tensor, taps: list[Tap]) -> list[Passed]:
        Y = [tap.Y for tap in taps]
        c = outputs.shape[1]
        unit = torch.eye(c, dtype=outputs.dtype, device=outputs.device)[:, None, :].expand(c, *outputs.shape)
        back = torch.autograd.grad(outputs, Y, unit, is_grads_batched=True, retain_graph=True)
        return [
            Passed(self._entering(tap).detach(), tap.positions(B).transpose(0, 1))
            for tap, B in zip(taps, back, strict=True)
        ]

    # A layer whose weight, bias or both take part, as one matrix.

    def _part(self, layer: Layer) -> bool:
        return not self._names.isdisjoint(layer.names)

    def _entering(self, tap: Tap) -> Float[Tensor, "n t a"]:
        parts = [tap.A] if tap.layer.weight in self._names else []
        if tap.layer.bias in self._names:
            parts.append(tap.A.new_ones(*tap.A.shape[:2], 1))
        return torch.cat(parts, dim=2)

    def _matrix(self, values: Theta, layer: Layer) -> Float[Tensor, "b a"]:
        return torch.cat([values[name].flatten(1) if values[name].dim() > 1 else values[name][:, None]
                          for name in layer.names if name in self._names], dim=1)


_MIX = {1: [[1.0]], 2: [[0.5, 0.5], [1.0, -1.0]]}
"""From θf and θ0 to their mean and difference."""


def _stack(ends: Sequence[Passed]) -> Passed:
    return Passed(torch.cat([end.A for end in ends]), torch.cat([end.B for end in ends]))
