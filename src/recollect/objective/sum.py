"""L(X) = Σ_k w_k L_k(X): several pieces of evidence about the same points, explained together.

Each L_k explains its own vector Δ_k with coefficients α_k of its own; only the points X are shared.
The normal equations, costs and gains are linear in the loss, so that all of them add:

    ∇L = Σ_k w_k ∇L_k,      JᵀJ = Σ_k w_k J_kᵀJ_k,      g = Σ_k w_k g_k.

This is the least-squares problem of the stacked residuals √w_k R_k. Two versions of a model that
were trained on the same data, or the gradients of several rounds of federated learning, are such
evidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch

from recollect.errors import OptionError
from recollect.geometry import Geometry
from recollect.objective.base import ExactObjective, Fit, Gains
from recollect.objective.endpoints import Endpoints
from recollect.objective.normal import Normal, combined, weighted
from recollect.shapes import Float, Tensor


class SumObjective:
    """Σ_k w_k L_k(X). By default all weights are 1/K, so that the loss stays between 0 and 1."""

    def __init__(
        self, parts: Sequence[ExactObjective], weights: Sequence[float] | None = None
    ) -> None:
        if not parts:
            raise OptionError(
                "expected at least one objective to sum, got none; give some evidence"
            )
        self.parts = tuple(parts)
        self.weights = tuple([1 / len(parts)] * len(parts) if weights is None else weights)
        if len(self.weights) != len(self.parts):
            raise OptionError(
                f"expected one weight for each of {len(self.parts)} objectives, got "
                f"{len(self.weights)}; give as many weights as objectives"
            )
        if not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise OptionError(
                f"expected positive weights, got {', '.join(map(str, self.weights))}; leave out "
                "objectives that should not count"
            )
        dimensions = [part.r for part in self.parts]
        if len(set(dimensions)) > 1:
            raise OptionError(
                "expected objectives of points of one dimension, got points of "
                f"{', '.join(map(str, dimensions))} coordinates; restrict all evidence to the same "
                "subspace"
            )

    @property
    def equations(self) -> int:
        return sum(part.equations for part in self.parts)

    @property
    def name(self) -> str:
        counts = Counter(part.name for part in self.parts)
        return " + ".join(f"{k} × {name}" if k > 1 else name for name, k in counts.items())

    @property
    def capturable(self) -> bool:
        return all(part.capturable for part in self.parts)

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(note for part in self.parts for note in part.notes))

    @property
    def r(self) -> int:
        return self.parts[0].r

    @property
    def endpoints(self) -> Endpoints:
        """Those of the first part."""
        return self.parts[0].endpoints

    @property
    def lifted(self) -> bool:
        """Whether some part is lifted, so that there is a system for the signs.

        The signs of the points matter to the parts that are not lifted.
        """
        return any(part.lifted for part in self.parts)

    def at(self, endpoints: Endpoints) -> SumObjective:
        return SumObjective([part.at(endpoints) for part in self.parts], self.weights)

    def unknowns(self, n: int, r: int, geometry: Geometry) -> int:
        """The coordinates of the points, counted once, and the coefficients of all parts."""
        coordinates = n * geometry.free_dimensions(r)
        unknowns = (part.unknowns(n, r, geometry) for part in self.parts)
        return coordinates + sum(count - coordinates for count in unknowns)

    def effective_equations(self, n: int) -> int:
        return sum(part.effective_equations(n) for part in self.parts)

    def flops(self, n: int) -> float:
        return sum(part.flops(n) for part in self.parts)

    def normal_flops(self, n: int) -> float:
        return sum(part.normal_flops(n) for part in self.parts)

    def dense(self, n: int, *, coupled: bool = False) -> bool:
        return all(part.dense(n, coupled=coupled) for part in self.parts)

    def fit(
        self,
        X: Float[Tensor, "*s n d"],
        *,
        gradient: bool = True,
        jitter: Float[Tensor, "*s"] | None = None,
    ) -> Fit:
        return self._sum([part.fit(X, gradient=gradient, jitter=jitter) for part in self.parts])

    def _sum(self, fits: Sequence[Fit]) -> Fit:
        """The parts' losses and gradients added, their α side by side."""
        slopes = [fit.gradient for fit in fits if fit.gradient is not None]
        return Fit(
            weighted(self.weights, (fit.loss for fit in fits)),
            torch.cat([fit.alpha for fit in fits], dim=-1),
            weighted(self.weights, slopes) if len(slopes) == len(fits) else None,
        )

    def linearise(
        self, Z: Float[Tensor, "n r"], geometry: Geometry, jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Fit, Normal]:
        linear = [part.linearise(Z, geometry, jitter) for part in self.parts]
        fit = self._sum([fit for fit, _ in linear])
        return fit, combined([normal for _, normal in linear], self.weights, fit.loss)

    def costs(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> Float[Tensor, " n"]:
        return weighted(self.weights, (part.costs(Z, jitter) for part in self.parts))

    def gains(self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None) -> Gains:
        parts = [part.gains(Z, jitter) for part in self.parts]
        return lambda new: weighted(self.weights, (gains(new) for gains in parts))

    def sign_system(
        self, Z: Float[Tensor, "n r"], jitter: Float[Tensor, ""] | None = None
    ) -> tuple[Float[Tensor, "e n"], Float[Tensor, " e"]]:
        """The equations of all lifted parts, each multiplied by √w_k as the residuals are."""
        if not self.lifted:
            raise ValueError("only a lifted objective has signs to find")
        systems = [
            (math.sqrt(weight), *part.sign_system(Z, jitter))
            for weight, part in zip(self.weights, self.parts, strict=True)
            if part.lifted
        ]
        M = torch.cat([root * M for root, M, _ in systems])
        return M, torch.cat([root * t for root, _, t in systems])
