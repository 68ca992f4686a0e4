"""Options of an attack, as classes: what is searched, where, with which parameters, by which solver."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch

from recollect.errors import OptionError
from recollect.shapes import Tensor
from recollect.solve import GradientDescent, LevenbergMarquardt
from recollect.span import Endpoints


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
class Auto:
    """Levenberg–Marquardt in stages: `stages/last_layer.py`, or `stages/all_layers.py` for other parameters.

    Where a parameter belongs to a layer without a rule, the paper's gradient descent.
    """

    iterations: int = 200
    """Steps of each run at most."""
    rounds: int = 30
    """Respawns at most, at each endpoint."""

    def __post_init__(self) -> None:
        if not 1 <= self.iterations <= 10**6:
            raise OptionError(f"expected --iterations between 1 and 10⁶, got {self.iterations:.6g}; 200 is plenty")
        if not 0 <= self.rounds <= 10**6:
            raise OptionError(f"expected between 0 and 10⁶ rounds, got {self.rounds:.6g}; 30 is plenty")


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The paper's attack: minimise ‖P⊥_G Δθ‖²/‖Δθ‖².

    `parameters`: `last`, `all`, or names joined by commas. `norm`: a radius, `"free"`, or None for the default: √d
    where the network is positively homogeneous and hides norms, free where it is not. `endpoints`: where gradients are
    taken; None: for `Auto` both ends where features moved, and halfway too for all layers; θf otherwise. `gram`: how
    gradient descent solves for α: `layerwise`, `dense`, `cg`, or `auto` (one Gram of features for the last layer,
    `layerwise` for more, `cg` where some layer has no rule). `dtype` None: float32 for gradient descent, float64 for
    everything else.
    """

    space: FullSpace | Subspace | Basis = Subspace()
    parameters: str = "last"
    norm: float | str | None = None
    solver: Auto | LevenbergMarquardt | GradientDescent = Auto()
    endpoints: Endpoints | None = None
    restarts: int = 1
    gram: str = "auto"
    dtype: torch.dtype | None = None
    tolerance: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.restarts <= 10**6:
            raise OptionError(f"expected --restarts between 1 and 10⁶, got {self.restarts}; one is a single run")
        if self.gram not in ("auto", "layerwise", "dense", "cg"):
            raise OptionError(f"expected --gram auto, layerwise, dense or cg, got {self.gram!r}; choose one of those")
        if self.gram != "auto" and not isinstance(self.solver, GradientDescent):
            raise OptionError(f"expected --gram auto with --solver auto or lm, got {self.gram}; leave it out")
        if not (math.isfinite(self.tolerance) and self.tolerance >= 0):
            raise OptionError(f"expected a tolerance of zero or more, got {self.tolerance}; 0 runs all iterations")
