"""`auto` on the last layer: Levenberg–Marquardt in stages, each from where the one before it ended.

1. From a random start, features at θf, signs lifted where they hide: few unknowns, a wide valley.
2. Respawn: points that explain nothing are put where most is left to explain.
3. Both endpoints: the residual at the data falls by orders of magnitude, and false minima stand
   out.
4. Out of Û: a victim trained in float32 tilts it. Where counting allows, the points share some
   r-dimensional subspace, and it turns with them.
5. Respawn again, now that false minima show; if that helped, turn once more.
6. Signs, and a last descent with everything in place.

Nothing here knows the data. Respawns and turns are kept only if they lower the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from recollect.attacks.exact.base import Stages, State, Stopped
from recollect.attacks.exact.confidence import expected_errors
from recollect.attacks.problem import Problem
from recollect.geometry import SharedSubspace, random_start
from recollect.objective.endpoints import Endpoints
from recollect.objective.last_layer import LastLayerObjective
from recollect.shapes import Float, Tensor
from recollect.solve.loop import Outcome
from recollect.system.device import total_memory
from recollect.system.seeds import stream
from recollect.victim.parity import Parity

_SEED_STEP = 10**6
"""Added to the seed for each further search, so that its random starts are others."""


@dataclass(frozen=True)
class Objectives:
    """What a search minimises: first with features at one endpoint, then at both."""

    one: LastLayerObjective
    both: LastLayerObjective | None


class LastLayerStages(Stages[LastLayerObjective]):
    """Features at θf, respawn, both endpoints, turning Û, respawn, signs."""

    def judge(self, n: int) -> LastLayerObjective:
        both = self._endpoints() is Endpoints.BOTH
        objective = self._objective(Endpoints.BOTH if both else Endpoints.FINAL, False)
        if both and not self.problem.determined(n, objective):
            return self._objective(Endpoints.FINAL, False)
        return objective

    def _endpoints(self) -> Endpoints:
        moving = self.problem.evidence.moving
        endpoints = self.problem.search.endpoints
        return endpoints or (Endpoints.BOTH if moving else Endpoints.FINAL)

    def explore(self, n: int | None) -> None:
        problem = self.problem
        parity, endpoints = problem.parity, self._endpoints()
        if endpoints is Endpoints.BOTH and not problem.evidence.moving:
            endpoints = Endpoints.FINAL
            self._note("training did not move the features: both endpoints are one")
        one = Endpoints.INITIAL if endpoints is Endpoints.INITIAL else Endpoints.FINAL
        # A span with more unknowns than equations explains anything by any points: rather less is
        # asked of it.
        least = 1 if n is None else n
        lifted = parity is Parity.LINEAR and self.problem.determined(
            least, self._objective(one, True)
        )
        if endpoints is Endpoints.BOTH and not self.problem.determined(
            least, self._objective(endpoints, lifted)
        ):
            endpoints = one
            self._note(
                "too few equations for the coefficients of both endpoints: features at θf alone "
                "were used"
            )
        stages = Objectives(
            self._objective(one, lifted),
            self._objective(endpoints, lifted) if endpoints is Endpoints.BOTH else None,
        )
        self._find_points(n, stages)
        if lifted:
            self._settle_signs(self._objective(endpoints, False))
        elif parity is not Parity.NONE:
            few = "too few equations to lift the signs: some points may be stuck on the wrong side"
            self._signs_open(few if parity is Parity.LINEAR else parity.value)

    def step_flops(self, n: int | None) -> float:
        return self._objective(Endpoints.FINAL, False).normal_flops(n or self.problem.r)

    def _objective(self, endpoints: Endpoints, lifted: bool) -> LastLayerObjective:
        return self.problem.last_layer(endpoints, lifted=lifted)

    def _on_the_path(self, problem: Problem, tau: float) -> LastLayerObjective:
        return problem.last_layer(Endpoints.BOTH)

    # One stage each.

    def _find_points(self, n: int | None, stages: Objectives) -> None:
        """Stages 1 to 5, from other random starts too while a point is in doubt."""
        assert n is not None  # an unknown number of points is the matter of `number.py`
        cheap = self.step_flops(n) <= self.tuning.restart_flops
        whole, best = self.problem, None
        for start in range(self.tuning.searches_in_doubt if cheap else 1):
            try:
                self._search_afresh(n, stages, whole, start)
            except (Stopped, KeyboardInterrupt):
                self._return_to(best or self.state)
                raise
            if best is None or self.outcome.loss < best.outcome.loss:
                best = self.state
            self._return_to(best)
            if not self._in_doubt():
                break

    def _search_afresh(self, n: int, stages: Objectives, whole: Problem, start: int) -> None:
        """Stages 1 to 5 for n points, from fresh random starts."""
        before, problem, seed = self.state, self.problem, self._seed
        self.state, self.problem, self._seed = None, whole, seed + _SEED_STEP * start
        try:
            self._search(n, stages)
        except (Stopped, KeyboardInterrupt):
            if before is not None:
                self.state, self.problem = before, problem
            raise
        finally:
            self._seed = seed

    def _return_to(self, state: State[LastLayerObjective] | None) -> None:
        if state is not None:
            self.state, self.problem = state, state.problem

    def _search(self, n: int, stages: Objectives) -> None:
        """Stages 1 to 5 for n points, from random starts."""
        moving = self.problem.evidence.moving
        self._start(n, stages.one)
        if moving:
            self._respawn(1 if stages.both is not None else self.tuning.patience)
        else:  # the data leave no residual at all, so it is worth searching on until none is left
            self._respawn(self.tuning.patience_exact, self.tuning.vanished, effort=5)
        goal = self._floor
        if stages.both is not None:
            goal = min(goal, self.outcome.loss / self.tuning.fall)
            self._switch("both endpoints", stages.both)
        self._finish(goal, again=stages.both is not None)

    def _finish(self, goal: float, *, again: bool) -> None:
        """Stages 4 and 5."""
        self._turn_subspace()
        if again and self._respawn(self.tuning.patience, goal):
            self._turn_subspace()  # the points that were wrong had held it back

    def _start(self, n: int, objective: LastLayerObjective) -> None:
        problem = self.problem

        def attempt(restart: int) -> None:
            Z = random_start(problem.geometry, n, problem.r, stream(f"start {restart}", self._seed))
            outcome = self._descend("random start", objective, Z.to(problem.device, problem.dtype))
            self._keep(objective, outcome)
            self._record(f"random start {restart + 1}", outcome)

        self._best_start(attempt)

    def _switch(self, name: str, objective: LastLayerObjective) -> None:
        """Go on from the same points with another span."""
        outcome = self._descend(name, objective, self.Z)
        if not math.isfinite(outcome.loss):
            self._note(f"{name}: {outcome.status.value}")
            return
        self._keep(objective, outcome)
        self._record(name, outcome)

    def _respawn(self, patience: int, goal: float = math.inf, effort: int = 1) -> bool:
        """Rounds of `_exchange` with the objective as it is. `effort` multiplies their number."""

        def descend(Z: Float[Tensor, "m r"]) -> Outcome:
            return self._descend("respawn", self.objective, Z)

        return self._exchange(patience, goal, effort * self._options.rounds, descend, descend)

    def _turn_subspace(self) -> None:
        """Û tilted by rounding: descend in R^d among points that share some r-dimensional subspace,
        whichever it is.

        Rounding tilts Û by about 1/gap. Where points are further off than that for other reasons, a
        subspace that may turn only serves to explain those: it ends far from Û, and from the data.
        What it found is dropped then.
        """
        problem, objective, before = self.problem, self.objective, self.outcome
        found, n, r, d = problem.spectrum, len(self.Z), problem.r, problem.whole.d
        if (
            found is None
            or found.gap > self.tuning.clear_gap
            or r == d
            or n < r
            or before.loss <= self.tuning.exact
        ):
            return
        errors = expected_errors(objective, problem.geometry, self.Z, self._jitter)
        if float(errors.median()) * found.gap > 1:
            return
        frame = 8 * (n * d) * (n * r + r * (d - r))
        sizes = replace(objective.sizes, r=d)
        fits = sizes.dense(n, problem.device, coupled=True) and 8 * frame <= total_memory(
            problem.device
        )
        spare = objective.effective_equations(n) - problem.coordinates(n)
        if r * (d - r) > spare or not fits:
            self._note(
                "rounding in training may have tilted the subspace of ΔW1 (its gap is "
                f"{found.gap:.3g}×), and there "
                "are too few equations, or too many coordinates, to turn it: that limits the "
                "accuracy"
            )
            return
        shared = SharedSubspace(problem.everywhere, r)
        self.problem = problem.within(None)
        everywhere = self._objective(objective.endpoints, objective.lifted)
        outcome = self._descend("turning the subspace", everywhere, problem.lift(before.Z), shared)
        self.problem = problem
        if not outcome.loss < before.loss:
            return
        U = torch.linalg.svd(outcome.Z, full_matrices=False).Vh[:r].T
        assert problem.U is not None  # it was found from the spectrum
        cosines = torch.linalg.svdvals(U.cpu().T @ problem.U.to(U).cpu())
        if not float(cosines.min()) > self.tuning.tilted:
            return
        self.problem = problem.within(U.cpu())
        self._keep(
            self._objective(objective.endpoints, objective.lifted),
            replace(outcome, Z=self.problem.geometry.project(outcome.Z @ U)),
        )
        self._record("turning the subspace", outcome)
