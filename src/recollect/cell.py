"""min_Z ‖P⊥_G Δθ‖² from several starts, of one victim or of several, in the same matrix products.

A study runs one attack with several seeds on several victims that were trained alike: a cell of its grid. A step of
gradient descent on one of them is some fifty small operations, and their launches take longer than their arithmetic.
Starts stacked along a first dimension cost hardly more than one: H for all of them is one product with W, or, where W
differs from victim to victim, one batched product; every start keeps its own Gram, jitter and best point. What comes of
a start depends on its company all the same: sums are taken in another order, and descent makes much of little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from recollect.geometry import random_start
from recollect.options import Projection
from recollect.problem import Problem
from recollect.reconstruct import as_result, choose_device, reconstruct, starts_at_once, with_step
from recollect.result import Reconstruction, Stage
from recollect.seeds import stream
from recollect.shapes import Float, Tensor
from recollect.solve import GradientDescent, Status, minimise, start
from recollect.span import Endpoints, LastLayerSpan, Span
from recollect.victim import Victim

_LAUNCHES = {"cpu": 5e7, "cuda": 1e10}
"""Floating-point operations that take about as long as the launches of a step do: beyond, company gains little."""


def reconstruct_cell(
    victims: Sequence[Victim],
    n: int | None,
    attacks: Sequence[Projection],
    *,
    seeds: Sequence[int],
    device: torch.device | str = "auto",
) -> tuple[tuple[Reconstruction, ...], ...]:
    """`reconstruct` of each victim, by its attack, with each of these seeds.

    Starts of gradient descent share their matrix products where it pays and memory allows.
    """
    where = choose_device(device)
    pairs = list(zip(victims, attacks, strict=True))
    if n is not None and len(pairs) * len(seeds) > 1 and all(_one_descent(attack) for attack in attacks):
        runs = [_Runs.of(victim, attack, n, where) for victim, attack in pairs]
        if (found := _shared(runs, n, seeds)) is not None:
            return found
        each = [_shared([one], n, seeds) for one in runs]
    else:
        each = [None] * len(pairs)
    return tuple(
        tuple(reconstruct(victim, n, attack, seed=seed, device=where) for seed in seeds) if found is None else found[0]
        for (victim, attack), found in zip(pairs, each, strict=True)
    )


def pays(device: torch.device, flops: float, victims: int, seeds: int) -> bool:
    """Whether runs whose fits take so many operations should share their products; told from sizes alone.

    On a CPU what one run does for others keeps other cores idle, and victims stay by themselves.
    """
    small = victims * seeds * flops < _LAUNCHES[device.type]
    return victims == 1 and small if device.type == "cpu" else victims == 1 or small


def _one_descent(attack: Projection) -> bool:
    return isinstance(attack.solver, GradientDescent) and attack.restarts == 1 and attack.tolerance == 0


@dataclass(frozen=True)
class _Runs:
    """An attack on one victim, made ready."""

    problem: Problem
    span: Span
    solver: GradientDescent
    doubts: tuple[str, ...]

    @classmethod
    def of(cls, victim: Victim, attack: Projection, n: int, device: torch.device) -> _Runs:
        assert isinstance(attack.solver, GradientDescent)
        problem = Problem.of(victim, attack, device)
        doubts = problem.check(n)
        span = problem.span(n, attack.endpoints or Endpoints.FINAL)
        return cls(problem, span, with_step(attack.solver, victim), doubts)

    def alike(self, other: _Runs) -> bool:
        """Whether they differ in their weights alone."""
        ours, theirs = self.problem, other.problem
        return (
            isinstance(self.span, LastLayerSpan)
            and isinstance(other.span, LastLayerSpan)
            and ours.restricted.network == theirs.restricted.network
            and (ours.geometry, ours.dtype, self.solver) == (theirs.geometry, theirs.dtype, other.solver)
            and self.span.endpoints == other.span.endpoints
        )


def _shared(runs: Sequence[_Runs], n: int, seeds: Sequence[int]) -> tuple[tuple[Reconstruction, ...], ...] | None:
    """All starts together, as many at once as memory holds; None where that cannot be or does not pay."""
    one = runs[0]
    at_once = starts_at_once(one.problem, one.solver, one.span, n) // len(runs)
    possible = at_once >= 1 and at_once * len(runs) > 1 and all(one.alike(other) for other in runs[1:])
    if not (possible and pays(one.problem.device, one.span.flops(n), len(runs), len(seeds))):
        return None
    span = one.span
    if len(runs) > 1:
        span = LastLayerSpan.stacked([run.span for run in runs if isinstance(run.span, LastLayerSpan)])
    found: list[list[Reconstruction]] = [[] for _ in runs]
    for some in (seeds[k : k + at_once] for k in range(0, len(seeds), at_once)):
        Z = torch.stack([_starts(run.problem, n, some) for run in runs])
        outcomes = minimise(
            one.solver,
            span,
            one.problem.geometry,
            start(one.solver, Z if len(runs) > 1 else Z[0]),
            tolerance=-1.0,  # one that has arrived must not end the others
            report=lambda done, message: None,
            save=lambda run, seconds: None,
        )
        if outcomes[0].status is Status.INTERRUPTED:
            raise KeyboardInterrupt
        for k, outcome in enumerate(outcomes):  # victim by victim; each took its share of the time
            run, spent = runs[k // len(some)], outcome.seconds / len(outcomes)
            if outcome.loss <= 0:
                outcome = replace(outcome, status=Status.CONVERGED)
            stage = Stage("gradient descent, start 1", outcome.loss, outcome.iterations, spent, outcome.status.value)
            told = (run.problem, run.span, run.span, outcome, (stage,), run.doubts, one.solver.step_size)
            found[k // len(some)].append(as_result(*told, resumed_at=0, exact=False))
    return tuple(tuple(each) for each in found)


def _starts(problem: Problem, n: int, seeds: Sequence[int]) -> Float[Tensor, "s n r"]:
    """Where `reconstruct` starts with each of these seeds."""
    Z = [random_start(problem.geometry, n, problem.r, stream("start 0", seed)) for seed in seeds]
    return torch.stack(Z).to(problem.device, problem.dtype)
