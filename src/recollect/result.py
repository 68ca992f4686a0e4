"""What a reconstruction gives back, and what it keeps to go on from after an interruption."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from recollect.shapes import Float, Tensor
from recollect.solve import Outcome, Run, Status


@dataclass(frozen=True)
class Stage:
    """One part of a run, as the result tells it."""

    name: str
    loss: float
    iterations: int
    seconds: float
    status: str


@dataclass(frozen=True)
class Reconstruction:
    """What was read out of the weights. `status` says how it ended and what to try next."""

    inputs: Float[Tensor, "n d"]
    coefficients: Float[Tensor, "n c"]
    predictions: Float[Tensor, "n c"]
    """f(x̂_i; θf): at interpolation, the labels."""
    loss: float
    """‖P⊥_G Δθ‖²/‖Δθ‖²: 0 explains all of the change, 1 none of it."""
    status: Status
    trace: Float[Tensor, " k"]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    rank: int
    norms_identifiable: bool
    equations: int
    unknowns: int
    step_size: float | None
    """Of gradient descent; other solvers have none."""
    span: str
    """How α was solved for."""
    resumed_at: int
    """Iterations that an earlier, interrupted run had done; 0 for a fresh one."""
    singular_values: Float[Tensor, " s"] | None
    confidence: Float[Tensor, " n"] | None
    """Between 0 and 1, from the weights alone (`solve/confidence.py`): how firmly a point is held, and whether it
    explains more than is left unexplained. It ranks points; it is no probability. None where the solver has no such
    estimate."""


@dataclass(frozen=True)
class Saved:
    """An interrupted attack: what the runs that were done gave, and the one that was under way."""

    outcomes: tuple[Outcome, ...]
    run: Run
    seconds: float


@runtime_checkable
class Checkpoint(Protocol):
    """Where an interrupted run is kept. The fingerprint ties it to one victim and one set of options."""

    def load(self, fingerprint: str) -> Saved | None: ...

    def save(self, fingerprint: str, saved: Saved) -> None: ...
