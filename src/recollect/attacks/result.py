"""What a reconstruction gives back, and what it keeps so that an interrupted one can go on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from recollect.shapes import Float, Tensor
from recollect.solve.loop import Outcome, Run, Status


@dataclass(frozen=True)
class Stage:
    """One part of a run, as the result lists it.

    Parameters
    ----------
    name
        What was done.
    loss
        The loss at its end.
    iterations, seconds
        What it took.
    status
        How it ended, as a sentence.
    """

    name: str
    loss: float
    iterations: int
    seconds: float
    status: str


@dataclass(frozen=True)
class Withheld:
    """Points that are not reported as recovered however high their confidence is.

    Parameters
    ----------
    points
        Their rows in `inputs`.
    why
        The reason, as the rest of a sentence that begins with "because".
    """

    points: tuple[int, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """What was read out of the weights. Only the first three fields are required of an attack.

    Parameters
    ----------
    inputs
        The points found, one per row.
    loss
        ‖P⊥_G Δθ‖²/‖Δθ‖²: 0 explains all of the change, 1 none of it.
    status
        How the attack ended; its value is a sentence that says what to try next.
    confidence
        One number between 0 and 1 per point, from the weights alone
        (`attacks/exact/confidence.py`): how firmly a point is held, and whether it explains more
        than is left unexplained. It ranks points and is not a probability. None where the attack
        has no such estimate.
    signs_settled
        Whether each point is known with its sign. If not, any point may be the negative of a
        training point.
    withheld
        Points that must not be reported as recovered, and why.
    n_source
        Where the number of points comes from: `given`, or `residual`.
    n_clear
        Whether the number of points stands out in the residual; None where it was given.
    norms_identifiable
        Whether the norms of the points mean something. If not, only their directions do.
    predictions
        f(x̂_i; θf): at interpolation, the labels.
    coefficients
        α, one row per point.
    trace
        The loss at each iteration.
    stages
        The parts of the run.
    notes
        What a reader should know before trusting the result.
    rank
        Coordinates that were searched: r, or d in full space.
    equations, unknowns
        Counted for the objective that judged the points.
    step_size
        Of gradient descent.
    objective
        How α was solved for, in words.
    resumed_at
        Iterations that an earlier, interrupted run had done; 0 for a fresh one.
    singular_values
        Of ΔW_1, where they were computed.
    details
        Whatever else an attack wants to report, as plain values.
    """

    inputs: Float[Tensor, "n d"]
    loss: float
    status: Status
    confidence: Float[Tensor, " n"] | None = None
    signs_settled: bool = True
    withheld: tuple[Withheld, ...] = ()
    n_source: str = "given"
    n_clear: bool | None = None
    norms_identifiable: bool = True
    predictions: Float[Tensor, "n c"] | None = None
    coefficients: Float[Tensor, "n a"] | None = None
    trace: Float[Tensor, " t"] | None = None
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    equations: int | None = None
    unknowns: int | None = None
    step_size: float | None = None
    objective: str | None = None
    resumed_at: int = 0
    singular_values: Float[Tensor, " s"] | None = None
    details: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedRun:
    """An interrupted attack: the outcomes of the runs that ended, and the run that was under
    way."""

    outcomes: tuple[Outcome, ...]
    run: Run
    seconds: float


@runtime_checkable
class ResumeSlot(Protocol):
    """Where an interrupted attack is kept. The fingerprint ties it to one victim and one set of
    options."""

    def load(self, fingerprint: str) -> SavedRun | None:
        """What was saved under this fingerprint; None if there is nothing, or nothing that can be
        used."""

    def save(self, fingerprint: str, saved: SavedRun) -> None:
        """Keep this, in place of what was there."""
