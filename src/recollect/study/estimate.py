"""Estimates of the seconds and bytes of a job, from sizes alone, before anything is trained.

The cost of an attack comes from `attacks/cost.py`, for the sizes that the victim will have. Times
are correct within a factor of about three. They show the progress of a sweep, and whether a plan
takes minutes or days.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from recollect.attacks.cost import search_cost
from recollect.attacks.options import Exact, FullSpace, Projection, Search
from recollect.objective.endpoints import Endpoints
from recollect.objective.sizes import Sizes
from recollect.solve.gradient_descent import GradientDescent
from recollect.study.job import Job
from recollect.system.device import Machine

_TRAINING_STEPS = 2_000
_JOB_SECONDS = 0.05
"""Seconds that every job takes to read the victim and to score the result."""
_MIN_STEP_SECONDS = {"cpu": 4e-4, "cuda": 2.5e-4}
_WORKER_BYTES = 6e8
"""Memory of a worker that has imported torch."""


@dataclass(frozen=True)
class Estimate:
    """Estimated time and memory of a task."""

    seconds: float
    bytes: float


def training_cost(
    job: Job, dimensions: Mapping[str, tuple[int, int]], machine: Machine
) -> Estimate:
    """The estimated cost of training the victim of a job."""
    recipe = job.recipe
    d, c = dimensions[dataset_key(job)]
    parameters = _parameters(job, d, c)
    size = 8 if recipe.dtype == "float64" else 4
    # In float64 training runs within the span of the inputs.
    inside = parameters
    if recipe.dtype == "float64" and 2 * recipe.n <= d:
        inside = _parameters(job, min(d, recipe.n), c)
    flops = 6.0 * recipe.n * inside
    if recipe.victim == "rf":
        return Estimate(
            _JOB_SECONDS + flops / machine.double, _WORKER_BYTES + 3 * parameters * size
        )
    rate = machine.double if size == 8 else machine.single
    step = max(_MIN_STEP_SECONDS[machine.device.type], flops / rate)
    steps = min(_TRAINING_STEPS, recipe.max_steps)
    return Estimate(_JOB_SECONDS + steps * step, _WORKER_BYTES + 4.0 * parameters * size)


def attack_cost(job: Job, dimensions: Mapping[str, tuple[int, int]], machine: Machine) -> Estimate:
    """The estimated cost of the attack of a job.

    For an attack that is not built in, only the fixed cost of every job is counted.
    """
    d, c = dimensions[dataset_key(job)]
    held = _WORKER_BYTES + 2.0 * _parameters(job, d, c) * (
        8 if job.recipe.dtype == "float64" else 4
    )
    if not job.built_in:
        return Estimate(_JOB_SECONDS, held)
    attack = job.attack_in(FullSpace())
    assert isinstance(attack, Search)
    cost = search_cost(attack, _sizes(job, attack, d, c), job.recipe.n, machine)
    return Estimate(_JOB_SECONDS + cost.seconds, held + cost.bytes)


def _sizes(job: Job, attack: Search, d: int, c: int) -> Sizes:
    """The sizes that the objective of this job will have."""
    recipe, r = job.recipe, _coordinates(job, d)
    depth = 2 if recipe.victim == "rf" else recipe.depth
    widths = (r, *[recipe.width] * (depth - 1), c)
    bias = int(recipe.bias)
    layers = tuple((1, a + bias, b) for a, b in itertools.pairwise(widths))
    last = attack.parameters == "last"
    moving = recipe.victim == "mlp"
    ends = attack.endpoints or (Endpoints.BOTH if isinstance(attack, Exact) else Endpoints.FINAL)
    families = {Endpoints.BOTH: 2, Endpoints.PATH: 2 if last else 3}.get(ends, 1) if moving else 1
    descent = isinstance(attack, Projection) and isinstance(attack.solver, GradientDescent)
    return Sizes(
        r=r,
        c=c,
        layers=layers[-1:] if last else layers,
        weights=sum(a * b for _, a, b in layers),
        units=sum(widths[1:]),
        families=families,
        last=last,
        itemsize=4 if descent else 8,
    )


def _coordinates(job: Job, d: int) -> int:
    """The number of coordinates r, as far as it is known before training."""
    recipe, study = job.recipe, job.study
    if study.method == "full":
        return d
    if study.method == "subspace" and isinstance(study.subspace_rank, int):
        return min(d, study.subspace_rank)
    return recipe.rank if recipe.dataset == "synthetic" else min(recipe.n, d)


def dataset_key(job: Job) -> str:
    """Jobs with the same key have inputs and targets of the same dimensions."""
    recipe = job.recipe
    return f"{recipe.dataset} {recipe.dim}" if recipe.dataset == "synthetic" else recipe.dataset


def dimensions(jobs: tuple[Job, ...], sources: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """The input and output dimensions (d, c) of each data set of the jobs.

    A data set that cannot be read raises an error here, before anything is run.
    """
    found: dict[str, tuple[int, int]] = {}
    for job in jobs:
        if dataset_key(job) not in found:
            data = job.recipe.data(sources)
            found[dataset_key(job)] = (data.inputs.shape[1], data.targets.shape[1])
    return found


def _parameters(job: Job, d: int, c: int) -> float:
    recipe = job.recipe
    hidden = (recipe.depth - 2) * recipe.width if recipe.victim == "mlp" else 0
    return float(recipe.width * (d + hidden + c))
