"""Options of an attack, as classes: what is searched, where, with which parameters, by which solver."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from recollect.errors import OptionError
from recollect.shapes import Tensor
from recollect.solve import GradientDescent


@dataclass(frozen=True, kw_only=True)
class FullSpace:
    """Algorithm 1: candidates anywhere in R^d."""


@dataclass(frozen=True, kw_only=True)
class Subspace:
    """Algorithm 2: candidates in the span of ΔW_1's leading right singular vectors; `rank` None: r from the gap."""

    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Basis:
    """The paper's true-subspace variant: candidates in the span of a d×r matrix the caller hands over."""

    U: Tensor = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The paper's attack: minimise ‖P⊥_G Δθ‖²/‖Δθ‖².

    `parameters`: `last`, `all`, or names joined by commas. `norm`: a radius, `"free"`, or None for the default: √d
    where the network is positively homogeneous and hides norms, free where it is not. `gram`: how to solve for α when
    more than the last layer takes part: `dense`, `cg`, or `auto` (dense where it fits in a quarter of the memory).
    """

    space: FullSpace | Subspace | Basis = Subspace()
    parameters: str = "last"
    norm: float | str | None = None
    solver: GradientDescent = GradientDescent()
    restarts: int = 1
    gram: str = "auto"
    dtype: torch.dtype = torch.float32
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if self.restarts < 1:
            raise OptionError(f"expected --restarts of at least 1, got {self.restarts}; one is a single run")
        if self.gram not in ("auto", "dense", "cg"):
            raise OptionError(f"expected gram auto, dense or cg, got {self.gram!r}; choose one of those")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise OptionError(f"expected a tolerance of zero or more, got {self.tolerance}; 0 runs all iterations")
