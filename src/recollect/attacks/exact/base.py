"""What both sequences of stages share: the state they hand on, and how a descent is run, kept and
recorded."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch
from scipy.optimize import linear_sum_assignment

from recollect.attacks.exact.confidence import DOUBTFUL, doubtful, expected_errors
from recollect.attacks.exact.first_layer import first_layer
from recollect.attacks.exact.respawn import spawn
from recollect.attacks.exact.retrace import Retraced, corrected, imitable, improve
from recollect.attacks.exact.signs import find_signs
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.exact.unmix import Unmixed, Unmixing
from recollect.attacks.options import Exact
from recollect.attacks.problem import Problem
from recollect.attacks.result import Stage
from recollect.attacks.runs import Late, Runs
from recollect.geometry import Geometry, random_start
from recollect.objective.base import SplitObjective
from recollect.shapes import Float, Int, Tensor
from recollect.solve.levenberg_marquardt import LevenbergMarquardt
from recollect.solve.loop import JITTERS, Outcome, Status
from recollect.system.device import threads_for
from recollect.system.seeds import stream

READ_OFF = "points read off the zeros of ΔW1"
NOT_READ = "nothing but closed units was looked at"
S = TypeVar("S", bound=SplitObjective)
"""The kind of objective that a sequence of stages minimises."""


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

    state: State[SplitObjective]
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]
    n_clear: bool | None
    n_tried: tuple[tuple[int, float], ...] = ()
    mismatch: float | None = None
    """How far training on the points ends from θf (`attacks/exact/retrace.py`)."""
    corrected: bool = False
    """Whether the objective explains Δθ less what retraining leaves."""
    stuck: bool = False
    """Whether more is left unexplained than the data leave, where that is known."""
    errors: Float[Tensor, " n"] | None = None
    """Expected errors of points that were read off the zeros of ΔW_1 (`unmix.py`); infinite for
    others."""


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
        self.mismatch: float | None = None
        self._stuck: bool | None = None
        self._corrected = False
        self._begun = problem
        self.errors: Float[Tensor, " n"] | None = None
        self._partly: Unmixed | None = None

    @property
    def tuning(self) -> Tuning:
        return self._options.tuning

    def run(self, n: int | None) -> Found:
        """All stages. n None: as many points as the residual asks for. Stopped early, the best
        state so far."""
        try:
            with threads_for(self.step_flops(n), self.problem.device):
                if not self._read_off(n) and self._options.unmix == "only":
                    self._give_up(n)
                elif self.state is None:
                    self.explore(n)
                    # What retraining corrects is no longer what the data leave.
                    self._stuck = self.outcome.loss > self._floor
                    self._retrace()
                    self._read_off(len(self.Z))
        except (Stopped, KeyboardInterrupt) as stop:
            if self.state is None:
                raise KeyboardInterrupt from None
            status = stop.status if isinstance(stop, Stopped) else Status.INTERRUPTED
            self.state = replace(self.state, outcome=replace(self.state.outcome, status=status))
        assert self.state is not None
        state = self.state
        whole: State[SplitObjective] = State(
            state.problem, state.objective, state.outcome, state.signs_settled
        )
        stuck = self.outcome.loss > self._floor if self._stuck is None else self._stuck
        return Found(
            whole,
            self.stages,
            self.notes,
            self.n_clear,
            self.n_tried,
            mismatch=self.mismatch,
            corrected=self._corrected,
            stuck=stuck,
            errors=self.errors,
        )

    @abstractmethod
    def explore(self, n: int | None) -> None:
        """All stages, one after the other; the result is `state`."""

    @abstractmethod
    def step_flops(self, n: int | None) -> float:
        """About how many floating-point operations a step of a descent takes."""

    @abstractmethod
    def judge(self, n: int) -> S:
        """The objective that judges n points which no search has led to."""

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

    def _errors(self) -> Float[Tensor, " n"]:
        """ê of each point, on the CPU."""
        return expected_errors(self.objective, self.problem.geometry, self.Z, self._jitter).cpu()

    def _in_doubt(self) -> bool:
        """Whether a point is more likely wrong than right, or more is left than the data leave."""
        return self.outcome.loss > self._floor or bool((self._errors() > DOUBTFUL).any())

    @property
    def _floor(self) -> float:
        """A loss that the data themselves hardly exceed, where that is known; else infinity.

        It is known where the two ends of training are nearly one (`Evidence.movement`). Where it is
        too low after all, for instance because many units switched, a search takes longer than it
        need.
        """
        movement = self.problem.evidence.movement
        if movement > self.tuning.still:
            return math.inf
        return max(self.tuning.vanished, self.tuning.left * movement**2)

    def _exchange(
        self,
        patience: int,
        goal: float,
        most: int,
        descend: Callable[[Float[Tensor, "m r"]], Outcome],
        join: Callable[[Float[Tensor, "n r"]], Outcome],
    ) -> bool:
        """While a point is in doubt, or the loss is above the goal: drop points, put new ones where
        most is left.

        The search goes on from the new points even if they explain a little less (threshold
        accepting, Dueck & Scheuer 1990), since one round rarely mends several wrong points at once.
        At the end the best state is restored. There are at most `most` rounds, of which `patience`
        in a row may fail. `descend` moves the points that are left, and `join` all points once new
        ones are among them. Returns whether the loss fell.
        """
        before = best = self.state
        assert best is not None
        generator = stream(f"respawn {len(self.stages)}", self._seed)
        failures, tried, iterations, seconds = 0, 0, 0, 0.0
        while tried < most and self.outcome.loss > self.tuning.exact:
            errors = self._errors()
            wrong = self.outcome.loss > goal or bool((errors > DOUBTFUL).any())
            if failures >= (patience if wrong else 2) or not (
                wrong or bool(doubtful(errors).any())
            ):
                break
            dropped = _loosest(errors) if failures == 0 else _drawn(errors, generator)
            try:
                outcome, steps, spent = self._swap(dropped, generator, descend, join)
            except (Stopped, KeyboardInterrupt):
                self.state = best
                raise
            tried, iterations, seconds = tried + 1, iterations + steps, seconds + spent
            failures += 1
            if outcome.loss < self.tuning.accepted * best.outcome.loss:
                self._keep(self.objective, outcome)
            if outcome.loss < self.tuning.better * best.outcome.loss:
                assert self.state is not None
                failures, best = 0, self.state
        self.state = best
        if tried:
            ended = replace(self.outcome, iterations=iterations, seconds=seconds)
            self._record(f"{tried} respawn{'s' if tried > 1 else ''}", ended)
        return best is not before

    def _swap(
        self,
        dropped: Int[Tensor, " m"],
        generator: torch.Generator,
        descend: Callable[[Float[Tensor, "m r"]], Outcome],
        join: Callable[[Float[Tensor, "n r"]], Outcome],
    ) -> tuple[Outcome, int, float]:
        objective, Z, n = self.objective, self.Z, len(self.Z)
        stays = torch.ones(n, dtype=torch.bool)
        stays[dropped] = False
        Z, steps, spent = Z[stays.to(Z.device)], 0, 0.0
        geometry = self.problem.geometry
        if not len(Z):  # without any point there are no gradients to compute gains with
            Z = random_start(geometry, n, self.Z.shape[1], generator).to(self.Z)
        while True:
            outcome = join(Z) if len(Z) == n else descend(Z)
            Z, steps, spent = outcome.Z, steps + outcome.iterations, spent + outcome.seconds
            if len(Z) == n:
                return outcome, steps, spent
            # Fewer than were dropped, if no more than that stand apart: then there is another turn.
            new = spawn(objective, geometry, Z, n - len(Z), generator, self._jitter)
            Z = torch.cat([Z, new])

    @property
    def _rung(self) -> LevenbergMarquardt:
        """The solver for descents that need not be exact, since others follow."""
        return LevenbergMarquardt(
            iterations=min(self.tuning.rung_steps, self._options.iterations),
            settled=self.tuning.rung_settled,
        )

    def _read_off(self, n: int | None) -> bool:
        """Points from the zeros of ΔW_1: after a search from its points, before it from random
        ones. Returns whether all points could be read off."""
        first = None if self._options.unmix == "never" else first_layer(self._begun)
        if first is None:
            return False
        began, searched = time.perf_counter(), self.state is not None
        try:
            unmixing = Unmixing(first, n or first.rank)
            starts = int(
                min(self.tuning.unmixing_starts, self.tuning.unmixing_flops / unmixing.flops)
            )
            near = unmixing.refine(self._coordinates()) if searched else None
            found = unmixing.complete(
                near,
                stream(f"unmixing {searched}", self._seed),
                starts=starts,
                rounds=self.tuning.unmixing_rounds if starts >= unmixing.n else 0,
                in_time=self._in_time,
            )
        except (ValueError, torch.linalg.LinAlgError):  # type: ignore[attr-defined]
            return False
        seconds = time.perf_counter() - began
        if found is not None and bool(found.trusted.all()):
            self._adopt_all(found, seconds, READ_OFF)
            if n is None:  # each point has zeros of its own, and they span the whole change
                self.n_clear, self.n_tried = True, ((len(self.Z), self.outcome.loss),)
            return True
        if near is None:
            self._partly = found
            return False
        several = [one for one in (near, found, self._partly) if one is not None]
        best = max(several, key=lambda one: int(one.trusted.sum()))
        if bool(best.trusted.any()):
            self._adopt_trusted(best, seconds)
        elif self._stuck:
            self._descend_from(near)
        return False

    def _in_time(self) -> bool:
        try:
            self._runs.working("reading points off the zeros of ΔW1")
        except Late:
            return False
        return True

    def _descend_from(self, found: Unmixed) -> None:
        """A search that is known to be stuck goes on from here, if that leads further."""
        state = self.state
        assert state is not None
        outcome = self._descend("from closed units", state.objective, self._in_state(found))
        if outcome.loss < self.tuning.better * state.outcome.loss:
            self._keep(state.objective, outcome)
            self._record("from closed units", outcome)
            self._stuck = outcome.loss > self._floor

    def _in_state(self, found: Unmixed) -> Float[Tensor, "n r"]:
        """These points, in the coordinates of the present state."""
        assert self.state is not None
        problem, lifted = self.state.problem, self._begun.lift(found.Z)
        Z = lifted if problem.U is None else lifted @ problem.U.to(lifted).cpu()
        return problem.geometry.project(Z.to(self.Z))

    def _give_up(self, n: int | None) -> None:
        """What was read off in part, or random points: none of them has any confidence."""
        found, problem = self._partly, self.problem
        if found is None:
            n = n or problem.r
            Z = random_start(problem.geometry, n, problem.r, stream("start 0", self._seed))
            found = Unmixed(Z, torch.zeros(n, dtype=torch.bool), torch.full((n,), torch.inf))
        unknown = torch.full_like(found.errors, torch.inf)
        self._adopt_all(replace(found, errors=unknown), 0.0, NOT_READ)
        self.notes = ("not all points could be read off, and no search was made",)

    def _coordinates(self) -> Float[Tensor, "n r"]:
        """The points of the search, in the coordinates that it began with."""
        assert self.state is not None
        lifted, U = self.state.problem.lift(self.Z).cpu().double(), self._begun.U
        return lifted if U is None else lifted @ U.to(lifted).cpu()

    def _adopt_all(self, found: Unmixed, seconds: float, how: str) -> None:
        """These points, judged by the network as it is."""
        problem = self.problem = self._begun
        Z, n = found.Z.to(problem.device, problem.dtype), len(found.Z)
        objective = self.judge(n)
        for jitter in JITTERS:
            raised = torch.tensor(jitter, dtype=torch.float64, device=problem.device)
            loss = float(objective.fit(Z, gradient=False, jitter=raised).loss)
            if math.isfinite(loss):
                break
        status = Status.CONVERGED if loss <= self.tuning.exact else Status.STATIONARY
        empty = torch.zeros(0, dtype=torch.float64)
        trace = empty if self.state is None else self.outcome.trace
        outcome = Outcome(Z, loss, trace, 0, seconds, jitter, status)
        self.state = State(problem, objective, outcome)
        self.errors, self.mismatch, self._corrected, self._stuck = found.errors, None, False, False
        self._record(how, outcome)
        # What was said of the search does not hold for these points.
        self.notes = (
            "each point was read off the units that it left closed, which did not move for it",
        )

    def _adopt_trusted(self, found: Unmixed, seconds: float) -> None:
        """Each trusted point in place of the nearest one of the search; the others stay."""
        state, trusted = self.state, found.trusted
        assert state is not None
        known = self._in_state(found)[trusted.to(self.Z.device)]
        _, places = linear_sum_assignment(torch.cdist(known, self.Z).cpu().numpy())
        Z = self.Z.clone()
        Z[places] = known
        loss = float(state.objective.fit(Z, gradient=False, jitter=self._jitter).loss)
        if not loss <= self.tuning.partly_read * state.outcome.loss:  # also false for NaN
            return
        # Their confidence is that of the gradients: the others may be blends, and these with them.
        outcome = replace(state.outcome, Z=Z, loss=loss, iterations=0, seconds=seconds)
        self._keep(state.objective, outcome)
        self._record(f"{int(trusted.sum())} points read off the zeros of ΔW1", self.outcome)

    @abstractmethod
    def _on_the_path(self, problem: Problem, tau: float) -> S:
        """The objective of a corrected problem, with gates of width τ."""

    def _retrace(self) -> None:
        """Correct what gradients leave unexplained even at the data, by training on the points."""
        state = self.state
        assert state is not None
        quick = len(self.Z) * self._weights <= self.tuning.quick_retracing
        auto = 0.0 if quick else self.tuning.limiting
        least = {None: auto, "always": 0.0, "never": math.inf}[self._options.retrain]
        if not least < state.outcome.loss or not imitable(state.problem):
            return
        # The points may be in other coordinates than those searched last: in a turned subspace, or
        # as the last layer alone had found them.
        self.problem = state.problem
        began, iterations = time.perf_counter(), 0
        rounds: list[Retraced] = []
        searched = sum(stage.iterations for stage in self.stages)
        allowed = max(self.tuning.steps_retracing, searched // 2)

        def descend(
            problem: Problem, Z: Float[Tensor, "n r"], tau: float
        ) -> Float[Tensor, "n r"] | None:
            nonlocal iterations
            if iterations >= allowed:
                return None
            objective = self._on_the_path(problem, tau)
            outcome = self._descend("moving retrained points", objective, Z, solver=self._rung)
            iterations += outcome.iterations
            return outcome.Z if math.isfinite(outcome.loss) else None

        coming = improve(
            state.problem, self.Z, self.tuning, descend, self._on_the_path, self._runs.working
        )
        try:
            rounds.extend(coming)  # one by one, so that an exception leaves those before it
        except (Late, Stopped) as stop:
            if isinstance(stop, Stopped) and stop.status is not Status.TIME:
                raise
            # The search itself had come to its end, so this is no reason to doubt its points.
            self._note("the time was over before retraining could correct the points further")
        finally:
            if rounds:
                self._adopt(rounds, iterations, time.perf_counter() - began)

    @property
    def _weights(self) -> int:
        theta, network = self.problem.victim.theta_f, self.problem.victim.network
        return sum(theta[name].numel() for name in network.trained)

    def _adopt(self, rounds: list[Retraced], iterations: int, seconds: float) -> None:
        """Keep the points from which training leads nearest to θf, if they are better by all that
        can be seen without the truth."""
        state, best = self.state, min(rounds, key=lambda one: one.mismatch)
        assert state is not None
        self.mismatch = rounds[0].mismatch
        objective, loss = state.objective, math.inf
        if best.mismatch < self.tuning.retraced * self.mismatch:
            objective = self._on_the_path(
                corrected(state.problem, best, 0.0, self._on_the_path), 0.0
            )
            loss = float(objective.fit(best.Z, gradient=False, jitter=self._jitter).loss)
        spent = replace(state.outcome, iterations=iterations, seconds=seconds)
        if not loss <= state.outcome.loss:  # false for NaN
            self._record("retraining without gain", spent)
            return
        self.mismatch = best.mismatch
        self._corrected = True
        self._keep(objective, replace(spent, Z=best.Z, loss=loss))
        count = len(rounds) - 1
        self._record(f"{count} round{'s' if count > 1 else ''} of retraining", self.outcome)

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


def _loosest(errors: Float[Tensor, " n"]) -> Int[Tensor, " m"]:
    """The points in doubt, at most a tenth of all; at least the one that is held least."""
    worst = errors.argsort(descending=True, stable=True)[: max(1, len(errors) // 10)]
    return worst[doubtful(errors)[worst]] if bool(doubtful(errors)[worst[0]]) else worst[:1]


def _drawn(errors: Float[Tensor, " n"], generator: torch.Generator) -> Int[Tensor, " m"]:
    """Up to a quarter of the points, the less they are held the likelier: what was dropped before
    did not help."""
    most = max(1, min(len(errors) - 1, math.ceil(len(errors) / 4)))
    count = int(torch.randint(1, most + 1, (), generator=generator))
    return torch.multinomial(errors.clamp(1e-3, 1.0), count, generator=generator)
