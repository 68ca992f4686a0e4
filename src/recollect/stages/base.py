"""What every sequence of stages shares: the state they hand on, and how a descent is run, kept and told of."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from recollect.geometry import Geometry
from recollect.options import Auto
from recollect.problem import Problem
from recollect.result import Stage
from recollect.search import Search
from recollect.shapes import Float, Tensor
from recollect.solve import LevenbergMarquardt, Outcome, Status
from recollect.solve.signs import find_signs
from recollect.span import ExactSpan
from recollect.threads import threads_for

UNSETTLED = "signs are not settled"
EXACT = 1e-20
"""A residual at the rounding of float64: nothing is left to explain."""

_AS_GOOD = 10.0
"""Without the free linear part the residual of the same points is a little larger; with a wrong sign, much."""

WRONG_SIDE = 1.2
"""Where turning a point multiplies the loss by less, it may be on the wrong side of the origin."""

S = TypeVar("S", bound=ExactSpan)


@dataclass(frozen=True)
class Found:
    """Where an attack ended: points, the problem whose coordinates they are in, the span that judges them."""

    problem: Problem
    span: ExactSpan
    outcome: Outcome
    stages: tuple[Stage, ...]
    notes: tuple[str, ...]


class Interrupted(Exception):
    """Ctrl-C during a run; what it had found is kept."""


class Stages(ABC, Generic[S]):
    """The state that stages hand on: problem, span, outcome; and what is told of them: stages, notes."""

    def __init__(self, problem: Problem, search: Search, options: Auto, seed: int) -> None:
        self._search, self._options, self._seed = search, options, seed
        self._solver = LevenbergMarquardt(iterations=options.iterations)
        self.problem = problem
        self.stages: tuple[Stage, ...] = ()
        self.notes: tuple[str, ...] = ()
        self._kept: tuple[Problem, S, Outcome] | None = None

    def run(self, n: int | None) -> Found:
        """n None: as many points as the residual asks for."""
        try:
            with threads_for(self._step_flops(n), self.problem.device):  # what is done between runs is no larger
                self._all(n)
        except (Interrupted, KeyboardInterrupt):
            if self._kept is None:
                raise KeyboardInterrupt from None
            self._kept = (*self._kept[:2], replace(self._kept[2], status=Status.INTERRUPTED))
        assert self._kept is not None
        return Found(*self._kept, self.stages, self.notes)

    @abstractmethod
    def _all(self, n: int | None) -> None:
        """All stages, one after the other."""

    @abstractmethod
    def _step_flops(self, n: int | None) -> float:
        """About how many operations a step of a descent takes."""

    @property
    def span(self) -> S:
        assert self._kept is not None
        return self._kept[1]

    @property
    def outcome(self) -> Outcome:
        assert self._kept is not None
        return self._kept[2]

    @property
    def Z(self) -> Float[Tensor, "n r"]:
        return self.outcome.Z

    def _counts(self, n: int, span: S) -> bool:
        """Whether there are as many equations as unknowns: a span with fewer explains anything by any points."""
        return self.problem.unknowns(n, span) <= self.problem.equations

    @property
    def _jitter(self) -> Float[Tensor, ""]:
        return torch.tensor(self.outcome.jitter, dtype=torch.float64, device=self.problem.device)

    def _descend(
        self,
        name: str,
        span: S,
        Z: Float[Tensor, "n r"],
        geometry: Geometry | None = None,
        solver: LevenbergMarquardt | None = None,
    ) -> Outcome:
        outcome = self._search.minimise(
            name,
            solver or self._solver,
            span,
            geometry or self.problem.geometry,
            Z,
            tolerance=max(EXACT, self.problem.attack.tolerance),
        )
        if outcome.status is Status.INTERRUPTED:
            if self._kept is None or (span is self.span and len(Z) == len(self.Z) and outcome.loss < self.outcome.loss):
                self._keep(span, outcome)
            raise Interrupted
        return outcome

    def _keep(self, span: S, outcome: Outcome) -> None:
        trace = outcome.trace
        if self._kept is not None and trace is not self._kept[2].trace:
            trace = torch.cat([self._kept[2].trace, trace])
        self._kept = (self.problem, span, replace(outcome, trace=trace))

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes += (note,)

    def _tell(self, name: str, outcome: Outcome) -> None:
        self.stages += (Stage(name, outcome.loss, outcome.iterations, outcome.seconds, outcome.status.value),)

    def _settle_signs(self, plain: S) -> None:
        """From a lifted span to the plain one, with signs that the linear part allows."""
        lifted = self.span
        M, t = lifted.sign_system(self.Z, self._jitter)
        before = self.outcome
        if not bool(torch.isfinite(M).all() & torch.isfinite(t).all()):
            self._signs_open("the Gram of the points could not be solved")
            return

        def explains(values: Tensor) -> bool:
            loss = plain.fit(values.to(before.Z)[:, None] * before.Z, gradient=False, jitter=self._jitter).loss
            return float(loss) < max(min(_AS_GOOD * before.loss, 0.1), EXACT)

        spare = lifted.equations - self.problem.unknowns(len(before.Z), lifted)
        signs = find_signs(M, t, math.sqrt(before.loss / max(spare, 1)), explains)
        signed = signs.values.to(before.Z)[:, None] * before.Z
        if not signs.settled:
            self._keep(lifted, replace(before, Z=signed))  # which does not mind the signs
            self._signs_open(signs.how)
            return
        outcome = self._descend("signs settled", plain, signed)
        self._keep(plain, outcome)
        self._tell(signs.how, outcome)
        if bool((self._turned_losses() < WRONG_SIDE * self.outcome.loss).any()):
            self._signs_open("some points explain as much on the other side of the origin")

    def _turned_losses(self) -> Float[Tensor, " n"]:
        """The loss with each point in turn on the other side of the origin, all else as it is."""
        losses = []
        for i in range(len(self.Z)):
            Z = self.Z.clone()
            Z[i] = -Z[i]
            losses.append(self.span.fit(Z, gradient=False, jitter=self._jitter).loss)
        return torch.stack(losses)

    def _signs_open(self, why: str) -> None:
        if self.outcome.status in (Status.CONVERGED, Status.STATIONARY):
            self._keep(self.span, replace(self.outcome, status=Status.SIGNS))
        self._note(f"{UNSETTLED}: {why}")
