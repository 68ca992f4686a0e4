"""The result of an attack, and the state that is saved so that it can be resumed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from recollect.shapes import Float, Tensor
from recollect.solve.loop import Outcome, Run, Status


@dataclass(frozen=True)
class Stage:
    """One part of a run, as it is listed in the result.

    Parameters
    ----------
    name
        What was done.
    loss
        The loss at its end.
    iterations, seconds
        The iterations and the time that it took.
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
        Indices of their rows in `inputs`.
    why
        The reason, as the rest of a sentence that begins with "because".
    """

    points: tuple[int, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class Reconstruction:
    """The result of an attack. An attack has to set only the first three fields.

    Parameters
    ----------
    inputs
        The points found, one per row.
    loss
        ‖P⊥_G Δθ‖²/‖Δθ‖²: 0 if the points explain all of the change, 1 if they explain none of it.
    status
        How the attack ended. Its value is a message that says what to try next.
    confidence
        One number between 0 and 1 per point, from the weights alone
        (`attacks/exact/confidence.py`): how well the weights determine the point, and whether it
        explains more than is left unexplained. It ranks points and is not a probability. None if
        the attack has no such estimate.
    signs_settled
        Whether each point is known with its sign. If not, any point may be the negative of a
        training point.
    withheld
        Points that must not be reported as recovered, and why.
    n_source
        Where the number of points comes from: `given`, or `residual`.
    n_clear
        Whether the residual clearly shows the number of points; None if the number was given.
    n_tried
        The numbers of points that were tried, each with its loss.
    mismatch
        ‖θ̂ − θf‖/‖θf − θ0‖, where θ̂ is reached from θ0 by training on the points found: 0 if they
        lead to the trained weights, about 1 and more if they have nothing to do with them. A small
        value does not show that each single point is true. None if that was not tried, or did not
        come to an end.
    norms_identifiable
        Whether the norms of the points are meaningful. If not, only their directions are.
    predictions
        f(x̂_i; θf), which are the labels if the network interpolates.
    coefficients
        The coefficients α, one row per point.
    trace
        The loss at each iteration.
    stages
        The parts of the run.
    notes
        What a reader should know before trusting the result.
    rank
        Number of coordinates of a point in the search: r, or d in full space.
    equations, unknowns
        Their numbers in the objective whose loss is reported.
    equations_effective, coordinates
        Equations that remain for the coordinates once the coefficients are eliminated, and the
        number of free coordinates of all points (`examine/counting.py`).
    step_size
        Step size of gradient descent.
    objective
        A description of how α was solved for.
    resumed_at
        Iterations that an earlier, interrupted run had done; 0 for a fresh run.
    singular_values
        Singular values of ΔW_1, if they were computed.
    details
        Anything else that an attack reports, as plain values.
    """

    inputs: Float[Tensor, "n d"]
    loss: float
    status: Status
    confidence: Float[Tensor, " n"] | None = None
    signs_settled: bool = True
    withheld: tuple[Withheld, ...] = ()
    n_source: str = "given"
    n_clear: bool | None = None
    mismatch: float | None = None
    norms_identifiable: bool = True
    predictions: Float[Tensor, "n c"] | None = None
    coefficients: Float[Tensor, "n a"] | None = None
    trace: Float[Tensor, " t"] | None = None
    stages: tuple[Stage, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    equations: int | None = None
    unknowns: int | None = None
    equations_effective: int | None = None
    coordinates: int | None = None
    n_tried: tuple[tuple[int, float], ...] = ()
    step_size: float | None = None
    objective: str | None = None
    resumed_at: int = 0
    singular_values: Float[Tensor, " s"] | None = None
    details: Mapping[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedRun:
    """An interrupted attack: the outcomes of the finished runs, and the run that was interrupted
    after `seconds`."""

    outcomes: tuple[Outcome, ...]
    run: Run
    seconds: float


@runtime_checkable
class ResumeSlot(Protocol):
    """Where the state of an interrupted attack is saved. The fingerprint ties it to one victim and
    one set of options."""

    def load(self, fingerprint: str) -> SavedRun | None:
        """The state saved under this fingerprint, or None if there is none that can be used."""

    def save(self, fingerprint: str, saved: SavedRun) -> None:
        """Save this state, replacing the previous one."""
