"""The runs of one attack, in order, with their outcomes saved so that an interrupted attack can be
resumed.

An attack is a sequence of runs of the loop (`solve/loop.py`). Everything between two runs is
determined by the outcomes of the earlier runs and by the seed, so it is enough to save the
outcomes. On resuming, the finished runs return at once, the interrupted run continues from its last
saved state, and the rest proceeds as it would have without the interruption.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from types import TracebackType

import torch

from recollect.attacks.base import Context
from recollect.attacks.result import SavedRun
from recollect.geometry import Geometry
from recollect.objective.base import Objective
from recollect.shapes import Float, Tensor
from recollect.solve.loop import JITTERS, Outcome, Run, Solver, Status, minimise, start

_SAVE_SECONDS = 5.0


class Late(Exception):
    """The time is over."""


@dataclass
class Runs:
    """A context manager. Runs inside it are reported to one progress bar and saved in the resume
    slot."""

    context: Context
    fingerprint: str
    total: int | None = None
    """Iterations of all runs together, if that is known beforehand."""

    def __enter__(self) -> Runs:
        slot = self.context.resume
        self._saved = slot.load(self.fingerprint) if slot else None
        self._outcomes: tuple[Outcome, ...] = ()
        self._pending: SavedRun | None = None
        self._written = time.perf_counter()
        self._iterations = 0
        self.resumed_at = 0
        self._task = self.context.progress("reconstructing", self.total)
        self._report = self._task.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._task.__exit__(kind, error, trace)
        self._write()

    def descend(
        self,
        name: str,
        solver: Solver,
        objective: Objective,
        geometry: Geometry,
        Z: Float[Tensor, "*s n r"],
        *,
        tolerance: float = 0.0,
    ) -> Outcome:
        """Run the loop from Z, one start or several stacked starts; returns the best outcome.

        If the resume slot holds the outcome of this run, that one is returned instead.
        """
        fresh = start(solver, Z)
        outcome = self._remembered(fresh)
        if outcome is None:
            run, seconds = self._interrupted(fresh)
            found = minimise(
                solver,
                objective,
                geometry,
                run,
                tolerance=tolerance,
                report=lambda done, message: self._report(
                    self._iterations + done, f"{name}: {message}"
                ),
                save=self._save,
                seconds=seconds,
                deadline=self.context.deadline,
            )
            outcome = min(found, key=lambda one: one.loss)
        self._outcomes = (*self._outcomes, replace(outcome, Z=outcome.Z.cpu()))
        self._iterations += outcome.iterations
        return outcome

    def working(self, message: str) -> None:
        """Report work between two runs. Past the deadline it raises `Late`."""
        if time.monotonic() > self.context.deadline:
            raise Late
        self._report(self._iterations, message)

    def _remembered(self, fresh: Run) -> Outcome | None:
        saved, k = self._saved, len(self._outcomes)
        if saved is None or k >= len(saved.outcomes):
            return None
        kept = saved.outcomes[k]
        if not _sound(kept, fresh):
            self._saved = None
            return None
        self.resumed_at += kept.iterations
        return replace(kept, Z=kept.Z.to(self.context.device))

    def _interrupted(self, fresh: Run) -> tuple[Run, float]:
        saved, self._saved = self._saved, None
        if saved is None or not _fits(saved.run, fresh):
            return fresh, 0.0
        self.resumed_at += int(saved.run.iteration)
        return Run.of(
            {name: tensor.to(self.context.device) for name, tensor in saved.run.tensors().items()}
        ), saved.seconds

    def _save(self, run: Run, seconds: float) -> None:
        self._pending = SavedRun(self._outcomes, run, seconds)
        if time.perf_counter() - self._written > _SAVE_SECONDS:
            self._write()

    def _write(self) -> None:
        if self.context.resume and self._pending is not None:
            self.context.resume.save(self.fingerprint, self._pending)
        self._pending, self._written = None, time.perf_counter()


def _sound(kept: Outcome, fresh: Run) -> bool:
    """Whether a saved outcome can belong to this run; the file may come from anywhere."""
    numbers = (kept.loss, kept.seconds, kept.jitter)
    return (
        (kept.Z.shape, kept.Z.dtype) == (fresh.best_Z.shape[-2:], fresh.best_Z.dtype)
        and bool(torch.isfinite(kept.Z).all())
        and kept.trace.dim() == 1
        and kept.trace.dtype == torch.float64
        and all(
            isinstance(number, float) and math.isfinite(number) and number >= 0
            for number in numbers
        )
        and kept.jitter in JITTERS
        and isinstance(kept.iterations, int)
        and 0 <= kept.iterations == len(kept.trace)
        and kept.status not in (Status.INTERRUPTED, Status.TIME)
    )


def _fits(saved: Run, fresh: Run) -> bool:
    """Whether a saved run has the shapes and types of a fresh one, and no more iterations than are
    asked for now."""
    tensors, expected = saved.tensors(), fresh.tensors()
    alike = set(tensors) == set(expected) and all(
        tensors[name].dtype == expected[name].dtype
        and tensors[name].dim() == expected[name].dim()
        and (name == "trace" or tensors[name].shape == expected[name].shape)
        for name in expected
    )
    if not alike or tensors["trace"].shape[:-1] != expected["trace"].shape[:-1]:
        return False
    return (
        0 <= int(saved.iteration) <= min(saved.trace.shape[-1], fresh.trace.shape[-1])
        and int(saved.rung.min()) >= 0
        and all(
            bool(torch.isfinite(tensor).all()) for tensor in (saved.best_Z, *saved.state.values())
        )
    )
