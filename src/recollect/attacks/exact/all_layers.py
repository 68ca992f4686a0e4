"""`auto` on all layers: Levenberg–Marquardt while the gates of the network close, each stage from
the one before it.

∂f/∂W_1 = (W_2ᵀα ∘ gate(W_1x)) xᵀ jumps wherever x crosses the kink of a unit, and between the jumps
nothing tells which way to go. With gates that open gradually, φ_τ(t) = t·sigmoid(t/τ), the
landscape is smooth; at τ = 1 descents from random starts met in one minimum in small trials, and
lowering τ step by step leads from there towards the data.

1. The last layer alone, where it has equations to spare: two endpoints explain it much better than
   the others. If it holds every point, nothing more is needed.
2. From a random start at θf, τ from 1 to 0.02. The layers' residuals are scaled to equal norm.
3. Both endpoints. Points are turned to the other side of the origin where that explains as much,
   since for two layers without bias the other side is a minimum of its own, and a false one.
4. Respawn: new points join where most is left to explain, and τ falls again. Then as many points
   leave as have joined: those that explain least. Turning and respawning go on while either helps.
   Stages 2 to 4 are run from two random starts, unless one start takes long and leaves no doubt.
   Where the data are known to leave nothing, as of a single gradient, gates close at once, and
   other starts follow until one leaves nothing.
5. The middle of the way as a third end: units that switched on the way are explained better.
6. Hard gates: the network as it is. Points still in doubt are respawned once more, and gates close
   again.
7. The last layer alone, from there. Of all that was found, what is held most firmly is kept.

Nothing here knows the data.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.attacks.exact.base import Stages, State
from recollect.attacks.exact.confidence import DOUBTFUL, expected_errors
from recollect.attacks.exact.last_layer import LastLayerStages
from recollect.attacks.exact.respawn import spawn
from recollect.attacks.problem import Problem
from recollect.geometry import random_start
from recollect.objective.base import SplitObjective
from recollect.objective.endpoints import Endpoints
from recollect.objective.last_layer import LastLayerObjective
from recollect.shapes import Float, Int, Tensor
from recollect.solve.loop import Outcome, Status
from recollect.system.seeds import stream
from recollect.victim.mlp import MLP
from recollect.victim.parity import Parity


class AllLayerStages(Stages[SplitObjective]):
    """The stages that the module lists."""

    _lifted = False
    """Whether points own their even parts alone: where signs could not be told from one another."""

    def explore(self, n: int | None) -> None:
        assert n is not None  # `reconstruct` has asked for it
        problem = self.problem
        hidden = problem.parity is Parity.LINEAR and n > problem.r * problem.victim.c
        self._lifted = hidden and self._can_lift(n)
        if self._spare(n) >= (
            self.tuning.spare_hidden if hidden else self.tuning.spare
        ) and self._last_layer_first(n):
            return
        first, its_notes = self.state, self.notes
        endpoints = self._endpoints(n)
        # Each start goes as far as gates that are all but closed at these endpoints.
        # A start that ends in a false minimum need not show any doubt, so one is compared with
        # another where that takes seconds.
        small = self._objective(endpoints, 0.0).dense(n)
        exact = small and math.isfinite(self._floor)
        self._best_start(
            lambda restart: self._from_start(n, endpoints, restart, close=exact),
            least=self.tuning.starts if small and not exact else 1,
            most=self.tuning.starts_exact if exact else self.tuning.starts_in_doubt,
        )
        if endpoints is Endpoints.BOTH and not exact and self._between(n):
            objective, outcome = self._through(
                "the way between", self.tuning.rungs_between, Endpoints.PATH, self.Z
            )
            if math.isfinite(outcome.loss):
                endpoints = Endpoints.PATH
                self._keep(objective, outcome)
                self._record("the way between", outcome)
        if not exact:
            self._descend_through("hard gates", self.tuning.rungs_closed, endpoints)
        self._mend_closed(endpoints)
        if self._lifted:
            self._settle_signs(problem.layerwise(endpoints, balanced=True))
        assert self.state is not None
        if self.outcome.status is not Status.SIGNS:
            self._last_layer_last(Endpoints.BOTH if endpoints is Endpoints.PATH else endpoints)
        if problem.parity in (Parity.EVEN, Parity.ODD) or (hidden and not self._lifted):
            self._signs_open(problem.parity.value)
        assert self.state is not None
        if first is not None and _rank(first) < _rank(self.state):
            self.state, self.notes = first, its_notes
        else:
            self.notes = tuple(note for note in self.notes if note not in its_notes)
        if isinstance(self.objective, LastLayerObjective):
            self._note("the last layer alone holds the points most firmly: they are its answer")

    def judge(self, n: int) -> SplitObjective:
        self._lifted = False
        return self._objective(self._endpoints(n), 0.0)

    def step_flops(self, n: int | None) -> float:
        return self._objective(Endpoints.FINAL, 0.0).normal_flops(n or 1)

    def _objective(self, endpoints: Endpoints, tau: float) -> SplitObjective:
        return self.problem.layerwise(endpoints, tau=tau, balanced=True, lifted=self._lifted)

    def _on_the_path(self, problem: Problem, tau: float) -> SplitObjective:
        if isinstance(self.objective, LastLayerObjective):
            return problem.last_layer(Endpoints.BOTH)
        tau = tau if problem.evidence.network.kinked else 0.0
        objective = problem.layerwise(Endpoints.PATH, tau=tau, balanced=True)
        asked = problem.search.endpoints in (None, Endpoints.PATH)
        if asked and problem.determined(len(self.Z), objective):
            return objective
        return objective.at(Endpoints.BOTH)

    # One stage each.

    def _spare(self, n: int, endpoints: Endpoints = Endpoints.FINAL) -> float:
        """Equations of the last layer over its unknowns; 0 where it does not take part."""
        problem = self.problem
        network = problem.victim.network
        names = [name for name in network.last.names if name in network.trained]
        if network.last.weight not in names or not set(names) <= set(problem.names):
            return 0.0
        if not any(bool(problem.evidence.target[name].any()) for name in names):
            return 0.0
        objective = problem.last_layer(endpoints)
        k = min(n, objective.evidence.output_rank)
        coefficients = k * objective.families * n
        equations = objective.effective_equations(n) + coefficients
        return equations / (problem.coordinates(n) + coefficients)

    def _can_lift(self, n: int) -> bool:
        """For two layers written out, and where the linear part does not use up the equations."""
        network = self.problem.evidence.network
        if not (isinstance(network, MLP) and network.depth == 2):
            return False
        return self.problem.determined(n, self.problem.layerwise(Endpoints.FINAL, lifted=True))

    def _endpoints(self, n: int) -> Endpoints:
        problem = self.problem
        moving = problem.evidence.moving
        endpoints = problem.search.endpoints or (Endpoints.BOTH if moving else Endpoints.FINAL)
        if endpoints is Endpoints.PATH:
            endpoints = Endpoints.BOTH
        if endpoints is Endpoints.BOTH and not moving:
            self._note("training did not move the features: both endpoints are one")
            return Endpoints.FINAL
        if endpoints is Endpoints.BOTH and not self.problem.determined(
            n, self._objective(endpoints, 0.0)
        ):
            self._note(
                "too few equations for the coefficients of both endpoints: gradients at θf alone "
                "were used"
            )
            return Endpoints.FINAL
        return endpoints

    def _between(self, n: int) -> bool:
        """Whether the middle of the way joins the ends."""
        if self._lifted or self.problem.search.endpoints is Endpoints.BOTH:
            return False
        return self.problem.determined(n, self._objective(Endpoints.PATH, 0.0))

    def _last_layer_first(self, n: int) -> bool:
        """Whether the stages of the last layer leave nothing to wish for."""
        ends = self.problem.search.endpoints
        search = replace(
            self.problem.search,
            parameters="last",
            endpoints=Endpoints.BOTH if ends is Endpoints.PATH else ends,
        )
        # One search: if it leaves a doubt, the other layers tell more than another start would.
        once = replace(self._options, tuning=replace(self.tuning, searches_in_doubt=1))
        inner = LastLayerStages(replace(self.problem, search=search), self._runs, once, self._seed)
        try:
            inner.explore(n)
        finally:
            if inner.state is not None:
                # Points and objective are those of the last layer; what follows searches all layers
                # again.
                state = inner.state
                self.state = State(
                    state.problem, state.objective, state.outcome, state.signs_settled
                )
                self.stages, self.notes = inner.stages, inner.notes
        assert self.state is not None
        geometry = self.state.problem.geometry
        errors = expected_errors(self.objective, geometry, self.Z, self._jitter)
        return not bool((errors > DOUBTFUL).any()) and float(errors.median()) < self.tuning.firm

    def _last_layer_last(self, endpoints: Endpoints) -> None:
        """Fewer equations, but better explained: which of the two counts for more is what ê
        says."""
        if self._spare(len(self.Z), endpoints) < self.tuning.spare_last:
            return
        objective = self.problem.last_layer(endpoints)
        outcome = self._descend("last layer alone", objective, self.Z)
        alone: State[SplitObjective] = State(self.problem, objective, outcome)
        assert self.state is not None
        if math.isfinite(outcome.loss) and _looseness(alone) < _looseness(self.state):
            self._keep(objective, outcome)
            self._record("last layer alone", outcome)

    def _from_start(self, n: int, endpoints: Endpoints, restart: int, *, close: bool) -> None:
        """One random start. `close`: to hard gates, where the loss tells whether it succeeded."""
        problem = self.problem
        one = Endpoints.INITIAL if endpoints is Endpoints.INITIAL else Endpoints.FINAL
        Z = random_start(problem.geometry, n, problem.r, stream(f"start {restart}", self._seed))
        objective, outcome = self._through(
            "random start", self.tuning.rungs_falling, one, Z.to(problem.device, problem.dtype)
        )
        self._keep(objective, outcome)
        self._record(f"random start {restart + 1}, gates closing", outcome)
        if endpoints is Endpoints.BOTH:
            self._descend_through("both endpoints", self.tuning.rungs_closing, endpoints)
        self._mend(endpoints)
        if close:
            self._descend_through("hard gates", self.tuning.rungs_closed, endpoints)

    def _descend_through(self, name: str, rungs: tuple[float, ...], endpoints: Endpoints) -> None:
        objective, outcome = self._through(name, rungs, endpoints, self.Z)
        self._keep(objective, outcome)
        self._record(name, outcome)

    def _mend(self, endpoints: Endpoints) -> None:
        """Points turned, then respawned, while the loss falls: each shows what the other could not
        see."""
        first, before = True, math.inf
        while self.outcome.loss < self.tuning.better * before:
            before = self.outcome.loss
            if self.problem.parity is Parity.LINEAR and not self._lifted:
                self._turn(endpoints)
            self._respawn(endpoints, always=first)
            first = False

    def _respawn(self, endpoints: Endpoints, *, always: bool = False) -> None:
        """While something is missing, or points explain little or are held loosely: a round.

        `always`: in any case until one round fails. A search that is stuck does not always show it.
        """
        generator = stream(f"respawn {len(self.stages)}", self._seed)
        failures, tried, iterations, seconds = 0, 0, 0, 0.0
        while tried < self._options.rounds and failures < self.tuning.patience_all:
            new = self._missing(generator, always=always and not failures)
            if not len(new):
                break
            outcome = self._round(endpoints, new)
            tried, iterations, seconds = (
                tried + 1,
                iterations + outcome.iterations,
                seconds + outcome.seconds,
            )
            if outcome.loss < self.tuning.better * self.outcome.loss:
                failures = 0
                self._keep(self.objective, outcome)
            else:
                failures += 1
        if tried:
            ended = replace(self.outcome, iterations=iterations, seconds=seconds)
            self._record(f"{tried} respawn{'s' if tried > 1 else ''}", ended)

    def _mend_closed(self, endpoints: Endpoints) -> None:
        """Points in doubt are replaced once more, now that the gates are hard.

        Gates that are not closed leave a residual at the data, in which what a single point
        explains may be lost.
        """
        rungs = (*self.tuning.rungs_closing, *self.tuning.rungs_closed)
        known = math.isfinite(self._floor)
        self._exchange(
            self.tuning.patience_exact if known else self.tuning.patience_all,
            self._floor,
            self._options.rounds,
            descend=lambda Z: self._descend("respawn", self.objective, Z),
            join=lambda Z: self._through("respawn", rungs, endpoints, Z)[1],
        )

    def _missing(self, generator: torch.Generator, *, always: bool = False) -> Float[Tensor, "m r"]:
        """New points: as many as would explain much of the rest, or as seem wrong now, if that is
        more. `always`: `few` of them in any case."""
        objective, Z = self.objective, self.Z
        costs = objective.costs(Z, self._jitter).nan_to_num(0.0)
        errors = expected_errors(objective, self.problem.geometry, Z, self._jitter)
        wrong = int(((costs < self.tuning.little * costs.median()) | (errors > DOUBTFUL)).sum())
        most = max(self.tuning.few, len(Z) // 10)
        most = next(
            (m for m in range(most, 0, -1) if self.problem.determined(len(Z) + m, objective)), 0
        )
        if not most:
            return Z[:0]
        new = spawn(objective, self.problem.geometry, Z, most, generator, self._jitter)
        with torch.no_grad():
            promising = int(
                (
                    objective.gains(Z, self._jitter)(new)
                    > self.tuning.missing * self.outcome.loss / len(Z)
                ).sum()
            )
        return new[: max(wrong, promising, self.tuning.few if always else 0)]

    def _round(self, endpoints: Endpoints, new: Float[Tensor, "m r"]) -> Outcome:
        """With the new points among them all find their places; then as many go as explain least.

        First to leave points out and then to add some is worse: where two points share what is one
        image's, none of them seems wrong before a third has come.
        """
        n = len(self.Z)
        objective, grown = self._through(
            "respawn", self.tuning.rungs_again, endpoints, torch.cat([self.Z, new])
        )
        costs = objective.costs(grown.Z, self._jitter).nan_to_num(0.0)
        stays = costs.argsort(descending=True, stable=True)[:n].sort().values
        outcome = self._through("respawn", self.tuning.rungs_closing, endpoints, grown.Z[stays])[1]
        return replace(
            outcome,
            iterations=outcome.iterations + grown.iterations,
            seconds=outcome.seconds + grown.seconds,
        )

    def _turn(self, endpoints: Endpoints) -> None:
        """Turn points to the other side while the loss, once the others have moved too, falls by
        it.

        The gradients at x and −x differ by a linear part, which the other points can nearly make up
        for; a point on the wrong side is therefore held there, but turning it costs nothing.
        """
        turned, iterations, seconds, fell = 0, 0, 0.0, True
        while fell and turned < len(self.Z):
            before, fell = self.outcome.loss, False
            for some in self._doubted(before)[: self.tuning.patience_all]:
                Z = self.Z.clone()
                Z[some] = -Z[some]
                outcome = self._through(
                    "signs one by one", self.tuning.rungs_closing, endpoints, Z
                )[1]
                iterations, seconds = iterations + outcome.iterations, seconds + outcome.seconds
                if outcome.loss < self.tuning.better * before:
                    turned, fell = turned + len(some), True
                    self._keep(self.objective, outcome)
                    break
        if turned:
            ended = replace(self.outcome, iterations=iterations, seconds=seconds)
            self._record(
                f"{turned} point{'s' if turned > 1 else ''} turned to the other side", ended
            )

    def _doubted(self, loss: float) -> list[Int[Tensor, " m"]]:
        """Points that may be on the wrong side: all that seem to be together, then the likeliest
        one by one."""
        losses = self._turned_losses().nan_to_num(torch.inf)
        order = losses.argsort(stable=True)
        wrong = order[losses[order] < self.tuning.wrong_side * loss]
        alone = [i[None] for i in order[losses[order] < self.tuning.doubted_side * loss]]
        return [wrong, *alone] if len(wrong) > 1 else alone

    # How gates close.

    def _through(
        self, name: str, rungs: tuple[float, ...], endpoints: Endpoints, Z: Float[Tensor, "n r"]
    ) -> tuple[SplitObjective, Outcome]:
        """One descent a rung, each from where the one before it ended."""
        iterations, seconds = 0, 0.0
        for tau in rungs if self.problem.evidence.network.kinked else (0.0,):
            objective = self._objective(endpoints, tau)
            outcome = self._descend(
                f"{name}, gates over {tau:g}", objective, Z, solver=None if tau == 0 else self._rung
            )
            Z, iterations, seconds = (
                outcome.Z,
                iterations + outcome.iterations,
                seconds + outcome.seconds,
            )
        return objective, replace(outcome, iterations=iterations, seconds=seconds)


def _rank(state: State[SplitObjective]) -> tuple[bool, float]:
    """Less is better: signs that are settled count first, then how firmly points are held."""
    return state.outcome.status is Status.SIGNS, _looseness(state)


def _looseness(state: State[SplitObjective]) -> float:
    """The median ê (`attacks/exact/confidence.py`): how far off most points are likely to be."""
    problem, outcome = state.problem, state.outcome
    jitter = torch.tensor(outcome.jitter, dtype=torch.float64, device=problem.device)
    return float(expected_errors(state.objective, problem.geometry, outcome.Z, jitter).median())
