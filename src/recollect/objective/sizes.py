"""Operations and bytes of a fit and of a step of Levenberg–Marquardt, counted from sizes alone.

This is the one cost model of the package. Objectives use it to choose between dense and matrix-free
steps, attacks to say beforehand how much time and memory they will take, and studies to plan runs
whose victims are not trained yet.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from recollect.objective.normal import dense_normal_bytes, forms_dense, multiplies


@dataclass(frozen=True)
class Sizes:
    """The sizes of an objective.

    A layer is (positions t, inputs a, outputs b), where a bias counts as one more input.
    """

    r: int
    """Coordinates of a point."""
    c: int
    """Outputs of the network."""
    layers: tuple[tuple[int, int, int], ...]
    """The layers that take part, in order. The last layer alone is one entry."""
    weights: int
    """All numbers in θ, restricted to r coordinates."""
    units: int
    """Outputs of all layers together, including layers that do not take part.

    Only the memory of the last layer's objective depends on it.
    """
    families: int = 1
    """The number of θ_e at which gradients are taken."""
    last: bool = True
    """Whether the last layer alone takes part, with one Gram matrix for all outputs."""
    bends: bool = True
    """Whether the network can say how its layers bend, which forming JᵀJ of all layers needs."""
    itemsize: int = 8

    def pass_flops(self, n: int) -> float:
        """One forward and one backward pass of n points."""
        return 4.0 * n * self.weights

    def fit_flops(self, n: int) -> float:
        """L(X) of n points and its gradient."""
        k, c = self.families, self.c
        if self.last:
            p = self.layers[-1][1]
            return k * self.pass_flops(n) + 2.0 * k * n * p * (k * n + 3 * c)
        outputs = sum(b for _, _, b in self.layers)
        return k * (c + 5) * self.pass_flops(n) / 2 + 2.0 * (k * n * c) ** 2 * outputs

    def fit_bytes(self, n: int) -> int:
        """Peak memory of a fit.

        For the last layer this counts the features, what they are computed from, and their
        gradients. For all layers it counts R and its norm in float64, what comes back to the
        layers, the Gram matrix and its factor, and for a layer with positions its part of G.
        `benchmarks/layers.py` compares it with the peak memory of a GPU.
        """
        size, rows = self.itemsize, n * self.c
        if self.last:
            return 6 * self.families * n * (self.units + self.r) * size
        R = sum(size * a * b for _, a, b in self.layers) + max(8 * a * b for _, a, b in self.layers)
        back = 2 * size * rows * sum(t * b for t, _, b in self.layers)
        G = max(2 * size * rows * a * b if t > 1 else 0 for t, a, b in self.layers)
        return R + back + G + (2 * size + 2 * 8) * rows**2

    def normal_bytes(self, n: int) -> int:
        """Peak memory of a step that forms JᵀJ.

        For all layers this counts how the layers bend at each θ_e, GM and its whitened copy, and
        JᵀJ and its factors.
        """
        nr, k = n * self.r, self.families
        if self.last:
            return dense_normal_bytes(k, self.layers[-1][1], n, self.r)
        sides = sum(a + b for _, a, b in self.layers)
        return 8 * nr * (2 * k * sides + 4 * nr + 2 * k * n * self.c)

    def normal_flops(self, n: int, device: torch.device) -> float:
        """A step of Levenberg–Marquardt: forming JᵀJ, or one product with it."""
        if not self.steps_dense(n, device):
            return self.fit_flops(n)
        if self.last:
            return 2.0 * self.layers[-1][1] * (n * self.r) ** 2
        return 4.0 * sum(b for _, _, b in self.layers) * (n * self.r) ** 2

    def dense(self, n: int, device: torch.device, *, coupled: bool = False) -> bool:
        """Whether JᵀJ of n points is formed as a matrix."""
        possible = self.last or self.bends
        return possible and forms_dense(n, self.r, self.normal_bytes(n), device, coupled=coupled)

    def steps_dense(self, n: int, device: torch.device, *, coupled: bool = False) -> bool:
        """Whether steps are found from the matrix, and not from products with it."""
        by_products = multiplies(n, self.r, device, coupled=coupled)
        return not by_products and self.dense(n, device, coupled=coupled)
