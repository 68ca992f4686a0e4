"""`auto` on all layers: Levenberg–Marquardt while the gates of the network close, each stage from the one before it.

∂f/∂W_1 = (W_2ᵀα ∘ gate(W_1x)) xᵀ jumps wherever x crosses the kink of a unit, and between the jumps nothing tells which
way to go. With gates that open gradually, φ_τ(t) = t·sigmoid(t/τ), the landscape is smooth; at τ = 1 descents from
random starts met in one minimum in small trials, and lowering τ step by step leads from there towards the data.

1. The last layer alone, where it has equations to spare: two endpoints explain it much better than the others. If it
   holds every point, nothing more is needed.
2. From a random start at θf, τ from 1 to 0.02. The layers' residuals are scaled to equal norm.
3. Respawn: new points join where most is left to explain, τ falls again, and as many that explain least leave.
4. Both endpoints. Points are turned to the other side of the origin where that explains as much, since for two layers
   without bias the other side is a minimum of its own, and a false one; then respawn; both again while either helps.
5. The middle of the way as a third end: units that switched on the way are explained better.
6. Hard gates: the network as it is.
7. The last layer alone, from there. Of all that was found, what is held most firmly is kept.

Nothing here knows the data.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.geometry import random_start
from recollect.seeds import stream
from recollect.shapes import Float, Int, Tensor
from recollect.solve import LevenbergMarquardt, Outcome, Status
from recollect.solve.confidence import DOUBTFUL, expected_errors
from recollect.solve.respawn import spawn
from recollect.span import Endpoints, ExactSpan, LastLayerSpan, Parity
from recollect.stages.base import WRONG_SIDE, Interrupted, Stages
from recollect.stages.last_layer import LastLayerStages
from recollect.victim import MLP

_FALLING = (1.0, 0.5, 0.25, 0.12, 0.06, 0.03, 0.02)
_AGAIN = (0.5, 0.12, 0.03, 0.02)
_CLOSING = (0.1, 0.05, 0.02)
_CLOSED = (0.01, 0.0)
_SPARE, _SPARE_HIDDEN = 3.3, 1.5
"""From so many equations an unknown the last layer is tried first; from fewer where signs hide: it is good at those."""
_SPARE_LAST = 2.4
"""From so many the last layer has one answer (docs/benchmarks.md, where recovery starts); with fewer ê flatters it."""
_FIRM = 0.01
"""A last layer that holds most points so firmly cannot be improved upon by the others."""
_LITTLE = 0.2
"""A point that costs so much less than most explains nothing of its own."""
_MISSING = 3.0
"""A new point that explains so many times a point's share of what is left is one that is missing (measured: 10 times
where one was, 0.2 times where none)."""
_FEW = 2
_BETTER = 0.99
_DOUBTED_SIDE = 2.0
"""Turning a point on the right side multiplies the loss by 3 or more where all are; on the wrong side, by about 1."""
_PATIENCE = 4
_RUNG_STEPS, _RUNG_SETTLED = 30, 1e-3
"""A stop on the way down need not be exact."""


class AllLayerStages(Stages[ExactSpan]):
    """Gates close at θf, respawn, both endpoints, respawn, the way between, hard gates, the last layer."""

    _lifted = False
    """Whether points own their even parts alone: where signs could not be told from one another."""

    def _all(self, n: int | None) -> None:
        assert n is not None  # `reconstruct` has asked for it
        problem = self.problem
        hidden = problem.parity is Parity.LINEAR and n > problem.r * problem.victim.c
        self._lifted = hidden and self._can_lift(n)
        if self._spare(n) >= (_SPARE_HIDDEN if hidden else _SPARE) and self._last_layer_first(n):
            return
        first, its_notes = self._kept, self.notes
        endpoints = self._endpoints(n)
        self._starts(n, endpoints)
        if endpoints is Endpoints.BOTH and self._between(n):
            span, outcome = self._through("the way between", _CLOSING, Endpoints.PATH, self.Z)
            if math.isfinite(outcome.loss):
                endpoints = Endpoints.PATH
                self._keep(span, outcome)
                self._tell("the way between", outcome)
        self._descend_through("hard gates", _CLOSED, endpoints)
        if self._lifted:
            self._settle_signs(problem.layerwise(endpoints, balanced=True))
        if self.outcome.status is not Status.SIGNS:
            self._last_layer_last(Endpoints.BOTH if endpoints is Endpoints.PATH else endpoints)
        if problem.parity in (Parity.EVEN, Parity.ODD) or (hidden and not self._lifted):
            self._signs_open(problem.parity.value)
        if first is not None and self._rank(*first[1:]) < self._rank(self.span, self.outcome):
            self._kept, self.notes = first, its_notes
        else:
            self.notes = tuple(note for note in self.notes if note not in its_notes)
        if isinstance(self.span, LastLayerSpan):
            self._note("the last layer alone holds the points most firmly: they are its answer")

    def _step_flops(self, n: int | None) -> float:
        return self._span(Endpoints.FINAL, 0.0).normal_flops(n or 1, self.problem.r)

    def _span(self, endpoints: Endpoints, tau: float) -> ExactSpan:
        return self.problem.layerwise(endpoints, tau=tau, balanced=True, lifted=self._lifted)

    # One stage each.

    def _spare(self, n: int, endpoints: Endpoints = Endpoints.FINAL) -> float:
        """Equations of the last layer over its unknowns; 0 where it does not take part."""
        problem = self.problem
        names = problem.victim.network.last.names
        if not set(names) <= set(problem.victim.select(problem.attack.parameters)):
            return 0.0
        if not any(bool(part.any()) for part in problem.victim.delta(names).values()):
            return 0.0
        span = problem.last_layer(endpoints)
        return span.equations / span.unknowns(n, problem.r, problem.geometry)

    def _can_lift(self, n: int) -> bool:
        """For two layers written out, and where the linear part does not use up the equations."""
        network = self.problem.restricted.network
        if not (isinstance(network, MLP) and network.depth == 2):
            return False
        return self._counts(n, self.problem.layerwise(Endpoints.FINAL, lifted=True))

    def _endpoints(self, n: int) -> Endpoints:
        problem = self.problem
        endpoints = problem.attack.endpoints or (Endpoints.BOTH if problem.moving else Endpoints.FINAL)
        if endpoints is Endpoints.PATH:
            endpoints = Endpoints.BOTH
        if endpoints is Endpoints.BOTH and not problem.moving:
            self._note("training did not move the features: both endpoints are one")
            return Endpoints.FINAL
        if endpoints is Endpoints.BOTH and not self._counts(n, self._span(endpoints, 0.0)):
            self._note("too few equations for the coefficients of both endpoints: gradients at θf alone were used")
            return Endpoints.FINAL
        return endpoints

    def _between(self, n: int) -> bool:
        """Whether the middle of the way joins the ends."""
        if self._lifted or self.problem.attack.endpoints is Endpoints.BOTH:
            return False
        return self._counts(n, self._span(Endpoints.PATH, 0.0))

    def _last_layer_first(self, n: int) -> bool:
        """Whether the stages of the last layer leave nothing to wish for."""
        ends = self.problem.attack.endpoints
        attack = replace(
            self.problem.attack, parameters="last", endpoints=Endpoints.BOTH if ends is Endpoints.PATH else ends
        )
        stages = LastLayerStages(replace(self.problem, attack=attack), self._search, self._options, self._seed)
        try:
            stages._all(n)
        finally:
            if stages._kept is not None:
                self._kept, self.stages, self.notes = (*stages._kept,), stages.stages, stages.notes
        errors = expected_errors(self.span, self.problem.geometry, self.Z, self._jitter)
        return not bool((errors > DOUBTFUL).any()) and float(errors.median()) < _FIRM

    def _last_layer_last(self, endpoints: Endpoints) -> None:
        """Fewer equations, but better explained: which of the two counts for more is what ê says."""
        if self._spare(len(self.Z), endpoints) < _SPARE_LAST:
            return
        span = self.problem.last_layer(endpoints)
        outcome = self._descend("last layer alone", span, self.Z)
        if math.isfinite(outcome.loss) and self._looseness(span, outcome) < self._looseness(self.span, self.outcome):
            self._keep(span, outcome)
            self._tell("last layer alone", outcome)

    def _rank(self, span: ExactSpan, outcome: Outcome) -> tuple[bool, float]:
        """Less is better: signs settled first, then how firmly points are held."""
        return outcome.status is Status.SIGNS, self._looseness(span, outcome)

    def _looseness(self, span: ExactSpan, outcome: Outcome) -> float:
        """The median ê (`solve/confidence.py`): how far off most points are likely to be."""
        jitter = torch.tensor(outcome.jitter, dtype=torch.float64, device=self.problem.device)
        return float(expected_errors(span, self.problem.geometry, outcome.Z, jitter).median())

    def _starts(self, n: int, endpoints: Endpoints) -> None:
        """Random starts, each as far as gates all but closed at these endpoints; the one that explains most is kept."""
        before, best = self._kept, None
        try:
            for restart in range(self.problem.attack.restarts):
                self._kept = None
                self._from_start(n, endpoints, restart)
                if best is None or self.outcome.loss < best[2].loss:
                    best = self._kept
        except (Interrupted, KeyboardInterrupt):  # what was found before counts for more than a start half done
            self._kept = best or before or self._kept
            raise
        self._kept = best

    def _from_start(self, n: int, endpoints: Endpoints, restart: int) -> None:
        problem = self.problem
        one = Endpoints.INITIAL if endpoints is Endpoints.INITIAL else Endpoints.FINAL
        Z = random_start(problem.geometry, n, problem.r, stream(f"start {restart}", self._seed))
        span, outcome = self._through("random start", _FALLING, one, Z.to(problem.device, problem.dtype))
        self._keep(span, outcome)
        self._tell(f"random start {restart + 1}, gates closing", outcome)
        self._respawn(one)
        if endpoints is Endpoints.BOTH:
            self._descend_through("both endpoints", _CLOSING, endpoints)
        self._mend(endpoints)

    def _descend_through(self, name: str, rungs: tuple[float, ...], endpoints: Endpoints) -> None:
        span, outcome = self._through(name, rungs, endpoints, self.Z)
        self._keep(span, outcome)
        self._tell(name, outcome)

    def _mend(self, endpoints: Endpoints) -> None:
        """Points turned, then respawned, while the loss falls: each shows what the other could not see."""
        before = math.inf
        while self.outcome.loss < _BETTER * before:
            before = self.outcome.loss
            if self.problem.parity is Parity.LINEAR and not self._lifted:
                self._turn(endpoints)
            self._respawn(endpoints)

    def _respawn(self, endpoints: Endpoints) -> None:
        """While something is missing, or points explain little or are held loosely: a round."""
        generator = stream(f"respawn {len(self.stages)}", self._seed)
        failures, tried, iterations, seconds = 0, 0, 0, 0.0
        while tried < self._options.rounds and failures < _PATIENCE:
            new = self._missing(generator)
            if not len(new):
                break
            outcome = self._round(endpoints, new)
            tried, iterations, seconds = tried + 1, iterations + outcome.iterations, seconds + outcome.seconds
            if outcome.loss < _BETTER * self.outcome.loss:
                failures = 0
                self._keep(self.span, outcome)
            else:
                failures += 1
        if tried:
            ended = replace(self.outcome, iterations=iterations, seconds=seconds)
            self._tell(f"{tried} respawn{'s' if tried > 1 else ''}", ended)

    def _missing(self, generator: torch.Generator) -> Float[Tensor, "m r"]:
        """Points that would explain much of what is left; as many more as some that are there seem wrong."""
        span, Z = self.span, self.Z
        costs = span.costs(Z, self._jitter).nan_to_num(0.0)
        errors = expected_errors(span, self.problem.geometry, Z, self._jitter)
        wrong = int(((costs < _LITTLE * costs.median()) | (errors > DOUBTFUL)).sum())
        most = max(_FEW, len(Z) // 10)
        most = next((m for m in range(most, 0, -1) if self._counts(len(Z) + m, span)), 0)
        if not most:
            return Z[:0]
        new = spawn(span, self.problem.geometry, Z, most, generator, self._jitter)
        with torch.no_grad():
            promising = int((span.gains(Z, self._jitter)(new) > _MISSING * self.outcome.loss / len(Z)).sum())
        return new[: max(wrong, promising)]

    def _round(self, endpoints: Endpoints, new: Float[Tensor, "m r"]) -> Outcome:
        """With the new points among them all find their places; then as many go as explain least.

        First to leave points out and then to add some is worse: where two points share what is one image's, none of
        them seems wrong before a third has come.
        """
        n = len(self.Z)
        span, grown = self._through("respawn", _AGAIN, endpoints, torch.cat([self.Z, new]))
        costs = span.costs(grown.Z, self._jitter).nan_to_num(0.0)
        stays = costs.argsort(descending=True, stable=True)[:n].sort().values
        outcome = self._through("respawn", _CLOSING, endpoints, grown.Z[stays])[1]
        return replace(
            outcome, iterations=outcome.iterations + grown.iterations, seconds=outcome.seconds + grown.seconds
        )

    def _turn(self, endpoints: Endpoints) -> None:
        """Turn points to the other side while the loss, once the others have moved too, falls by it.

        The gradients at x and −x differ by a linear part, which the other points can nearly make up for; a point on the
        wrong side is therefore held there, but turning it costs nothing.
        """
        turned, iterations, seconds, fell = 0, 0, 0.0, True
        while fell and turned < len(self.Z):
            before, fell = self.outcome.loss, False
            for some in self._doubted(before)[:_PATIENCE]:
                Z = self.Z.clone()
                Z[some] = -Z[some]
                outcome = self._through("signs one by one", _CLOSING, endpoints, Z)[1]
                iterations, seconds = iterations + outcome.iterations, seconds + outcome.seconds
                if outcome.loss < _BETTER * before:
                    turned, fell = turned + len(some), True
                    self._keep(self.span, outcome)
                    break
        if turned:
            ended = replace(self.outcome, iterations=iterations, seconds=seconds)
            self._tell(f"{turned} point{'s' if turned > 1 else ''} turned to the other side", ended)

    def _doubted(self, loss: float) -> list[Int[Tensor, " m"]]:
        """Points that may be on the wrong side: all that seem to be together, then the likeliest one by one."""
        losses = self._turned_losses().nan_to_num(torch.inf)
        order = losses.argsort(stable=True)
        wrong = order[losses[order] < WRONG_SIDE * loss]
        alone = [i[None] for i in order[losses[order] < _DOUBTED_SIDE * loss]]
        return [wrong, *alone] if len(wrong) > 1 else alone

    # How gates close.

    @property
    def _rung(self) -> LevenbergMarquardt:
        return LevenbergMarquardt(iterations=min(_RUNG_STEPS, self._options.iterations), settled=_RUNG_SETTLED)

    def _through(
        self, name: str, rungs: tuple[float, ...], endpoints: Endpoints, Z: Float[Tensor, "n r"]
    ) -> tuple[ExactSpan, Outcome]:
        """One descent a rung, each from where the one before it ended."""
        iterations, seconds = 0, 0.0
        for tau in rungs if self.problem.restricted.network.kinked else (0.0,):
            span = self._span(endpoints, tau)
            outcome = self._descend(f"{name}, gates over {tau:g}", span, Z, solver=None if tau == 0 else self._rung)
            Z, iterations, seconds = outcome.Z, iterations + outcome.iterations, seconds + outcome.seconds
        return span, replace(outcome, iterations=iterations, seconds=seconds)
