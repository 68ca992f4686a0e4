"""The cost of a search, estimated before it runs: seconds, bytes, and equations against unknowns.

The number of steps that a search needs is not known beforehand. The seconds are those of a typical
number of steps, correct within a factor of a few. Studies use these functions with the sizes of
victims that are not trained yet.
"""

from __future__ import annotations

import torch

from recollect.attacks.base import Cost
from recollect.attacks.options import Exact, Projection, Search
from recollect.attacks.problem import Problem, has_rules
from recollect.objective.endpoints import Endpoints
from recollect.objective.layerwise import layerwise_sizes
from recollect.objective.sizes import Sizes
from recollect.solve.gradient_descent import GradientDescent
from recollect.system.device import Machine
from recollect.victim.victim import Victim

_SEARCH_STEPS = {"last": 60, "all": 200}
"""Typical number of Levenberg–Marquardt steps over all stages."""
_MIN_STEP_SECONDS = {"last": 6e-3, "all": 3e-2}
"""Minimum seconds of a step: many small operations, and the evaluation between steps."""
_MIN_ITERATION_SECONDS = {"cpu": 4e-4, "cuda": 2.5e-4}
"""Minimum seconds of an iteration of gradient descent."""
_PRODUCTS_PER_STEP = 40
"""Products with JᵀJ in a matrix-free step, for conjugate gradients and for rejected steps."""
_COPIES_OF_WEIGHTS = 5


def victim_cost(search: Search, victim: Victim, n: int, machine: Machine) -> Cost:
    """The cost of a search for n points in a victim."""
    problem = Problem.of(
        victim, search, torch.device("cpu")
    )  # only its sizes are used; nothing is computed on this device
    cost = search_cost(
        search, sizes_of(problem, n), n, machine, ruled=has_rules(victim, search.parameters)
    )
    return Cost(
        seconds=cost.seconds,
        step_seconds=cost.step_seconds,
        bytes=cost.bytes,
        equations_effective=problem.effective_equations(n),
        coordinates=problem.coordinates(n),
    )


def sizes_of(problem: Problem, n: int) -> Sizes:
    """The sizes of the objective that dominates the search."""
    endpoints = problem.search.endpoints
    if endpoints is None and isinstance(problem.search, Exact):
        endpoints = Endpoints.BOTH if problem.evidence.moving else Endpoints.FINAL
    if problem.search.parameters == "last":
        ends = Endpoints.BOTH if endpoints is Endpoints.PATH else endpoints or Endpoints.FINAL
        return problem.last_layer(ends).sizes
    evidence = problem.evidence.at(endpoints or Endpoints.FINAL)
    return layerwise_sizes(
        evidence, tuple(set(problem.names) - set(problem.unruled)), problem.dtype
    )


def search_cost(
    search: Search, sizes: Sizes, n: int, machine: Machine, *, ruled: bool = True
) -> Cost:
    """The cost of a search for n points in a victim of these sizes.

    `ruled` says whether every layer has a rule for the layerwise Gram matrix.
    """
    device = machine.device
    weights = _COPIES_OF_WEIGHTS * 8 * sizes.weights
    if (isinstance(search, Projection) and isinstance(search.solver, GradientDescent)) or not ruled:
        solver = search.solver if isinstance(search, Projection) else GradientDescent()
        rate = machine.double if sizes.itemsize == 8 else machine.single
        step = max(_MIN_ITERATION_SECONDS[device.type], sizes.fit_flops(n) / rate)
        held = sizes.fit_bytes(n) if ruled else 8 * n * sizes.c * sizes.weights
        return _cost(search.restarts * solver.iterations, step, int(held + weights))
    kind, families, nr = "last" if sizes.last else "all", sizes.families, n * sizes.r
    flops = sizes.normal_flops(n, device)
    if sizes.steps_dense(n, device):
        flops = families**2 * flops + nr**3 / 3
    else:
        flops = _PRODUCTS_PER_STEP * families * flops
    held = sizes.normal_bytes(n) if sizes.dense(n, device) else 6 * families * sizes.fit_bytes(n)
    steps = search.restarts * _SEARCH_STEPS[kind]
    return _cost(steps, max(_MIN_STEP_SECONDS[kind], flops / machine.double), int(held + weights))


def _cost(steps: int, step: float, held: int) -> Cost:
    return Cost(seconds=steps * step, step_seconds=step, bytes=held)
