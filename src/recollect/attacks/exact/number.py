"""The number of points n, where nobody gave it: L(n) falls steeply up to n, and hardly after it.

1. Points are added until the loss levels off, and those that cost least are dropped while the loss
   bears it. The number that is left is a first guess.
2. From there n goes up or down. Each number of points gets a whole search of its own from fresh
   random starts, since the points that were found for one number are a poor start for the next: if
   one of them stands between two points of the data, an additional point does not part them.

n is called clear only if n − 1 points leave a much larger loss, if a search for n + 1 points that
was not stuck leaves hardly less, and if there are equations to spare.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.attacks.exact.base import State
from recollect.attacks.exact.last_layer import LastLayerStages, Objectives
from recollect.attacks.exact.respawn import spawn
from recollect.geometry import random_start
from recollect.objective.last_layer import LastLayerObjective
from recollect.system.seeds import stream

_FRESH_SEARCHES = 3
"""Searches from random starts for one number of points, while they end above a smaller number's
loss."""


class NumberStages(LastLayerStages):
    """The stages of the last layer for an unknown number of points."""

    def _find_points(self, n: int | None, stages: Objectives) -> None:
        """Find the number of points, and the points."""
        self._whole, self._objectives = self.problem, stages
        self._found: dict[int, State[LastLayerObjective]] = {}
        self._fresh: dict[int, float] = {}
        """The lowest loss of the searches from fresh random starts."""
        most = max(1, self.problem.most_points(stages.both or stages.one))
        self._guess(stages, most)
        self._finish(math.inf, again=True)
        n = len(self.Z)
        self._offer()
        while True:
            if n < most and self._loss(n) > self.tuning.jump * self._loss(n + 1):
                n += 1
            elif n > 1 and self._loss(n - 1) <= self.tuning.jump * self._loss(n):
                n -= 1
            else:
                break
        self._return_to(self._found[n])
        self.n_tried = tuple((k, self._found[k].outcome.loss) for k in sorted(self._found))
        self._judge(n, most)

    def _judge(self, n: int, most: int) -> None:
        """Say whether n is clear, and why."""
        jump = (1.0 if n == 1 else self._loss(n - 1)) / self._loss(n)
        more, stuck = math.nan, False
        if n < most:
            more = self._loss(n) / self._loss(n + 1)
            # A point added to the n that were found cannot end above their loss. Only the fresh
            # searches for n + 1 tell whether the search was stuck: then they all end above the loss
            # of n points by more than the factor `accepted`.
            stuck = self._fresh[n + 1] > self.tuning.accepted * self._loss(n)
        coordinates, equations = self.problem.coordinates(n), self.objective.effective_equations(n)
        self.n_clear = (
            coordinates <= self.tuning.enough * equations
            and jump > self.tuning.clear_jump
            and more < self.tuning.jump  # false for NaN, where no more could be tried
            and not stuck
        )
        lowers = "" if math.isnan(more) else f", one more lowers it {more:.2g}×"
        if stuck:
            lowers = ", and the search for one more was stuck"
        sure = "clear" if self.n_clear else "not clear: give --n if you know it"
        self._note(
            f"n = {n} from the residual: one point fewer raises it {jump:.2g}×{lowers}; {sure}"
        )

    def _loss(self, n: int) -> float:
        """The loss of n points, searched for from fresh random starts."""
        if n not in self._fresh:
            self._fresh[n] = math.inf
            if n - 1 in self._found:
                self._return_to(self._found[n - 1])
                self._one_more()
            fewer = min((self._found[k].outcome.loss for k in self._found if k < n), default=1.0)
            for start in range(_FRESH_SEARCHES):
                self._fresh[n] = min(self._fresh[n], self._search_anew(n, start))
                if self._fresh[n] <= max(self.tuning.accepted * fewer, self.tuning.exact):
                    break
        return max(self._found[n].outcome.loss, self.tuning.exact)

    def _offer(self) -> None:
        """Keep the present state, if no better one of so many points is known."""
        assert self.state is not None
        known = self._found.get(len(self.Z))
        if known is None or self.outcome.loss < known.outcome.loss:
            self._found[len(self.Z)] = self.state

    def _search_anew(self, n: int, start: int) -> float:
        self._search_afresh(n, self._objectives, self._whole, start)
        self._offer()
        return self.outcome.loss

    def _one_more(self) -> None:
        """One more point where most is left to explain, all others as they are."""
        generator = stream(f"one more {len(self.Z)}", self._seed)
        new = spawn(self.objective, self.problem.geometry, self.Z, 1, generator, self._jitter)
        outcome = self._descend("one more", self.objective, torch.cat([self.Z, new]))
        if len(new):
            self._keep(self.objective, outcome)
            self._offer()

    # The first guess.

    def _guess(self, stages: Objectives, most: int) -> None:
        """Grow until more points explain little more, then drop those that are not needed.

        If none was dropped, grow again.
        """
        problem, one = self.problem, stages.one
        n = min(most, problem.r if problem.U is not None else 2)
        Z = random_start(problem.geometry, n, problem.r, stream("start 0", self._seed))
        outcome = self._descend("growing", one, Z.to(problem.device, problem.dtype))
        self._keep(one, outcome)
        self._record(f"random start of {n} points", outcome)
        generator = stream("grow", self._seed)
        while True:
            self._grow(one, most, generator)
            grown, full = self.state, len(self.Z) >= most or self.outcome.loss <= self.tuning.exact
            if stages.both is not None:
                self._switch("both endpoints", stages.both)
            self._turn_subspace()  # in a tilted one the points that explain least do not stand out
            if self._prune():
                return
            self.state, self.problem = grown, problem
            if full:
                return

    def _grow(self, objective: LastLayerObjective, most: int, generator: torch.Generator) -> None:
        geometry, r = self.problem.geometry, self.problem.r
        iterations, seconds, level = 0, 0.0, 0
        while len(self.Z) < most and self.outcome.loss > self.tuning.exact and level < 2:
            count = min(most, math.ceil(self.tuning.growth * len(self.Z))) - len(self.Z)
            new = spawn(objective, geometry, self.Z, count, generator, self._jitter)
            # Where fewer stand apart, the rest starts anywhere: too few new points would show too
            # little of a change.
            rest = random_start(geometry, count - len(new), r, generator).to(new)
            before, outcome = (
                self.outcome.loss,
                self._descend("growing", objective, torch.cat([self.Z, new, rest])),
            )
            iterations, seconds = iterations + outcome.iterations, seconds + outcome.seconds
            self._keep(objective, outcome)
            level = level + 1 if before < 0.1 and before < self.tuning.jump * outcome.loss else 0
        self._record(
            f"grown to {len(self.Z)} points",
            replace(self.outcome, iterations=iterations, seconds=seconds),
        )

    def _prune(self) -> bool:
        """Drop the points that cost least while the loss bears it.

        Returns whether it rose steeply at last, so that the points that are left are all needed.
        """
        objective, began = self.objective, self.outcome.loss
        batch, iterations, seconds, steep = max(1, len(self.Z) // 8), 0, 0.0, False
        while len(self.Z) > 1 and self.outcome.loss < min(
            0.5, max(self.tuning.too_far * began, self.tuning.exact)
        ):
            Z = self.Z
            for _ in range(min(batch, len(Z) - 1)):
                cost = objective.costs(Z, self._jitter).nan_to_num(torch.inf)
                Z = Z[torch.arange(len(Z), device=Z.device) != cost.argmin()]
            outcome = self._descend("pruning", objective, Z)
            iterations, seconds = iterations + outcome.iterations, seconds + outcome.seconds
            steep = outcome.loss >= self.tuning.jump * max(self.outcome.loss, self.tuning.exact)
            if not steep:
                self._keep(objective, outcome)
            elif batch > 1:
                batch //= 2
            else:
                break
        self._record(
            f"pruned to {len(self.Z)} points",
            replace(self.outcome, iterations=iterations, seconds=seconds),
        )
        return steep or len(self.Z) == 1
