"""What both sequences of stages share: the state they hand on, and how a descent is run, kept and
recorded."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from recollect.attacks.exact.confidence import DOUBTFUL, expected_errors
from recollect.attacks.exact.signs import find_signs
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.options import Exact
from recollect.attacks.problem import Problem
from recollect.attacks.result import Stage
from recollect.attacks.runs import Runs
from recollect.geometry import Geometry
from recollect.objective.base import ExactObjective
from recollect.shapes import Float, Tensor
from recollect.solve.levenberg_marquardt import LevenbergMarquardt
from recollect.solve.loop import Outcome, Status
from recollect.system.device import threads_for

S = TypeVar("S", bound=ExactObjective)


@dataclass(frozen=True)
class State(Generic[S]):
    """Where the search stands: points, the problem whose coordinates they are in, the objective
    that judges them."""

    problem: Problem
    objective: S
    outcome: Outcome
    signs_settled: bool = True


@dataclass(frozen=True)
class Found:
    """Where the search ended, and what there is to say about it."""

    state: State[ExactObjective]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    n_clear: bool | None
    n_tried: tuple[tuple[int, float], ...] = ()


class Stopped(Exception):
    """The search was interrupted, or its time is over; what it had found is kept."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.value)
        self.status = status


class Stages(ABC, Generic[S]):
    """A sequence of stages: each goes on from the state that the one before it left."""

    def __init__(self, problem: Problem, runs: Runs, options: Exact, seed: int) -> None:
        self._runs, self._options, self._seed = runs, options, seed
        self._solver = LevenbergMarquardt(iterations=options.iterations)
        self.problem = problem
        self.state: State[S] | None = None
        self.stages: tuple[Stage, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.n_clear: bool | None = None
        self.n_tried: tuple[tuple[int, float], ...] = ()

    @property
    def tuning(self) -> Tuning:
        return self._options.tuning

    def run(self, n: int | None) -> Found:
        """All stages. n None: as many points as the residual asks for. Stopped early, the best
        state so far."""
        try:
            with threads_for(
                self.step_flops(n), self.problem.device
            ):  # work between two runs is no larger
                self.explore(n)
        except (Stopped, KeyboardInterrupt) as stop:
            if self.state is None:
                raise KeyboardInterrupt from None
            status = stop.status if isinstance(stop, Stopped) else Status.INTERRUPTED
            self.state = replace(self.state, outcome=replace(self.state.outcome, status=status))
        assert self.state is not None
        state = self.state
        whole: State[ExactObjective] = State(
            state.problem, state.objective, state.outcome, state.signs_settled
        )
        return Found(whole, self.stages, self.notes, self.n_clear, self.n_tried)

    @abstractmethod
    def explore(self, n: int | None) -> None:
        """All stages, one after the other; the result is `state`."""

    @abstractmethod
    def step_flops(self, n: int | None) -> float:
        """About how many floating-point operations a step of a descent takes."""

    @property
    def objective(self) -> S:
        assert self.state is not None
        return self.state.objective

    @property
    def outcome(self) -> Outcome:
        assert self.state is not None
        return self.state.outcome

    @property
    def Z(self) -> Float[Tensor, "n r"]:
        return self.outcome.Z

    @property
    def _jitter(self) -> Float[Tensor, ""]:
        return torch.tensor(self.outcome.jitter, dtype=torch.float64, device=self.problem.device)

    def _descend(
        self,
        name: str,
        objective: S,
        Z: Float[Tensor, "n r"],
        geometry: Geometry | None = None,
        solver: LevenbergMarquardt | None = None,
    ) -> Outcome:
        outcome = self._runs.descend(
            name,
            solver or self._solver,
            objective,
            geometry or self.problem.geometry,
            Z,
            tolerance=max(self.tuning.exact, self.problem.search.tolerance),
        )
        if outcome.status in (Status.INTERRUPTED, Status.TIME):
            better = self.state is None or (
                objective is self.objective
                and len(Z) == len(self.Z)
                and outcome.loss < self.outcome.loss
            )
            if better:
                self._keep(objective, outcome)
            raise Stopped(outcome.status)
        return outcome

    def _keep(self, objective: S, outcome: Outcome) -> None:
        trace = outcome.trace
        if self.state is not None and trace is not self.outcome.trace:
            trace = torch.cat([self.outcome.trace, trace])
        settled = self.state is None or self.state.signs_settled
        self.state = State(self.problem, objective, replace(outcome, trace=trace), settled)

    def _best_start(self, attempt: Callable[[int], None], *, least: int = 1, most: int = 1) -> None:
        """Random starts, each by itself; the state with the smallest loss is kept.

        There are as many as the options ask for, at least `least`, and up to `most` while some
        point of the best one is in doubt.
        """
        before, best = self.state, None
        least = max(least, self.problem.search.restarts)
        try:
            for restart in range(max(least, most)):
                if restart >= least and not self._in_doubt():
                    break
                self.state = None
                attempt(restart)
                if best is None or self.outcome.loss < best.outcome.loss:
                    best = self.state
                if self.outcome.loss <= self.tuning.exact:
                    break
                self.state = best
        except (Stopped, KeyboardInterrupt):
            # What was found before counts for more than a start that is half done.
            self.state = best or before or self.state
            raise
        self.state = best

    def _in_doubt(self) -> bool:
        errors = expected_errors(self.objective, self.problem.geometry, self.Z, self._jitter)
        return bool((errors > DOUBTFUL).any())

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes += (note,)

    def _record(self, name: str, outcome: Outcome) -> None:
        self.stages += (
            Stage(name, outcome.loss, outcome.iterations, outcome.seconds, outcome.status.value),
        )

    def _settle_signs(self, plain: S) -> None:
        """From a lifted span to the plain one, with signs that the linear part allows."""
        lifted = self.objective
        M, t = lifted.sign_system(self.Z, self._jitter)
        before = self.outcome
        if not bool(torch.isfinite(M).all() & torch.isfinite(t).all()):
            self._signs_open("the Gram of the points could not be solved")
            return

        def explains(values: Tensor) -> bool:
            loss = plain.fit(
                values.to(before.Z)[:, None] * before.Z, gradient=False, jitter=self._jitter
            ).loss
            return float(loss) < max(min(self.tuning.as_good * before.loss, 0.1), self.tuning.exact)

        n = len(before.Z)
        spare = lifted.effective_equations(n) - self.problem.coordinates(n)
        signs = find_signs(M, t, math.sqrt(before.loss / max(spare, 1)), explains)
        signed = signs.values.to(before.Z)[:, None] * before.Z
        if not signs.settled:
            self._keep(lifted, replace(before, Z=signed))  # which does not mind the signs
            self._signs_open(signs.how)
            return
        outcome = self._descend("signs settled", plain, signed)
        self._keep(plain, outcome)
        self._record(signs.how, outcome)
        if bool((self._turned_losses() < self.tuning.wrong_side * self.outcome.loss).any()):
            self._signs_open("some points explain as much on the other side of the origin")

    def _turned_losses(self) -> Float[Tensor, " n"]:
        """The loss with each point in turn on the other side of the origin, all else as it is."""
        losses = []
        for i in range(len(self.Z)):
            Z = self.Z.clone()
            Z[i] = -Z[i]
            losses.append(self.objective.fit(Z, gradient=False, jitter=self._jitter).loss)
        return torch.stack(losses)

    def _signs_open(self, why: str) -> None:
        assert self.state is not None
        outcome = self.outcome
        if outcome.status in (Status.CONVERGED, Status.STATIONARY):
            outcome = replace(outcome, status=Status.SIGNS)
        self.state = replace(self.state, outcome=outcome, signs_settled=False)
        self._note(f"signs are not settled: {why}")
