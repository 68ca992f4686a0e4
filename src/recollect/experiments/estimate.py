"""What a job will take: floating-point operations over what the machine does in a second, and bytes.

Written down before anything is trained, from sizes alone: r, p, c, the depth. How many steps a search needs is not
known beforehand, so times are right within a factor of about three; they order the work and say whether a plan takes
minutes or days. Memory follows the arrays that are largest in each method.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from recollect.cell import pays
from recollect.experiments.job import Job
from recollect.machine import Machine
from recollect.span.normal import DENSE_AT_MOST, DENSE_UNKNOWNS, dense_normal_bytes

_TRAINING_STEPS = 2_000
_SEARCH_STEPS = 150
"""Of `auto`: both endpoints, respawns and all."""
_ITERATIONS = 10_000
_START = 0.05
"""Seconds that any job takes: reading the victim, scoring."""
_WAIT = {"cpu": 4e-4, "cuda": 2.5e-4}
"""Seconds an iteration takes at least: its many small operations, or their launches as one CUDA graph."""
_LOADED = 6e8
"""Bytes of a worker with torch in it."""


@dataclass(frozen=True)
class Cost:
    seconds: float
    bytes: float


def training_cost(job: Job, sizes: Mapping[str, tuple[int, int]], machine: Machine) -> Cost:
    recipe = job.recipe
    d, c = sizes[dataset_key(job)]
    parameters = _parameters(job, d, c)
    size = 8 if recipe.dtype == "float64" else 4
    inside = _parameters(job, min(d, recipe.n), c) if recipe.dtype == "float64" and 2 * recipe.n <= d else parameters
    flops = 6.0 * recipe.n * inside
    if recipe.victim == "rf":
        return Cost(_START + flops / machine.double, _LOADED + 3 * parameters * size)
    step = max(_WAIT[machine.device.type], flops / (machine.double if size == 8 else machine.single))
    return Cost(_START + min(_TRAINING_STEPS, recipe.max_steps) * step, _LOADED + 4.0 * parameters * size)


def attack_cost(jobs: tuple[Job, ...], sizes: Mapping[str, tuple[int, int]], machine: Machine) -> Cost:
    """Of some jobs that are one task."""
    job = jobs[0]
    recipe = job.recipe
    (d, c), n, p, r = sizes[dataset_key(job)], recipe.n, recipe.width, _coordinates(job, sizes)
    victims = len({one.victim_name for one in jobs})
    kept = _LOADED + 2.0 * victims * _parameters(job, d, c) * (8 if recipe.dtype == "float64" else 4)
    last, fit = job.parameters == "last", _fit(job, sizes)
    held = 6.0 * n * (p * (recipe.depth - 1) + r)
    if not last:
        rows = n * c
        held += 4.0 * rows * (rows + p * recipe.depth)
    if job.solver == "gd":
        starts = len(jobs) * job.restarts
        together = starts if share(jobs, sizes, machine) else job.restarts
        together = max(1, min(together, int(machine.memory / 4 / (4 * held))))
        step = max(_WAIT[machine.device.type], together * fit / machine.single)
        return Cost(
            len(jobs) * _START + (job.iterations or _ITERATIONS) * step * starts / together,
            kept + 4 * held * together + 4.0 * victims * _parameters(job, r, c),
        )
    families = 1 if job.endpoints in ("final", "initial") else 2
    needed: float = dense_normal_bytes(families, p, n, r) + (0 if last else 8 * (families * n * c) ** 2)
    most = DENSE_AT_MOST if machine.device.type == "cuda" else DENSE_UNKNOWNS
    if n * r <= most and 2 * needed <= machine.memory:
        step = (families**2 if last else 2 * families**2) * 2.0 * p * (n * r) ** 2 * min(c, families) + (n * r) ** 3 / 3
    else:
        step, needed = 60 * families * fit, 16 * families * held
    steps = min(_SEARCH_STEPS, 4 * (job.iterations or _SEARCH_STEPS)) * job.restarts * (1 if last else 3)
    seconds = steps * max(10 * _WAIT[machine.device.type], step / machine.double)
    return Cost(len(jobs) * (_START + seconds), kept + needed + 8.0 * held)


def share(jobs: Sequence[Job], sizes: Mapping[str, tuple[int, int]], machine: Machine) -> bool:
    """Whether these jobs, which differ in their seeds alone, are one task since they share their products."""
    job, victims = jobs[0], len({one.victim_name for one in jobs})
    able = job.solver == "gd" and job.restarts == 1 and (victims == 1 or job.parameters == "last")
    return able and pays(machine.device, _fit(job, sizes), victims, len(jobs) // victims)


def _fit(job: Job, sizes: Mapping[str, tuple[int, int]]) -> float:
    """Operations of one fit with its gradient."""
    recipe, c = job.recipe, sizes[dataset_key(job)][1]
    n, p, r = recipe.n, recipe.width, _coordinates(job, sizes)
    hidden = (recipe.depth - 2) * p * p if recipe.victim == "mlp" else 0
    k = {"both": 2, "path": 3}.get(job.endpoints, 1)
    fit = 6.0 * k * n * (r * p + hidden) + 2.0 * k * n * p * (k * n + 3 * c)
    if job.parameters == "last":
        return fit
    return fit + 2.0 * (k * n * c) ** 2 * (p * recipe.depth) + (k * n * c) ** 3 / 3


def _coordinates(job: Job, sizes: Mapping[str, tuple[int, int]]) -> int:
    """r, as far as it is known beforehand."""
    recipe, d = job.recipe, sizes[dataset_key(job)][0]
    if job.method == "full":
        return d
    if job.method == "subspace" and isinstance(job.subspace_rank, int):
        return min(d, job.subspace_rank)
    return recipe.rank if recipe.dataset == "synthetic" else min(recipe.n, d)


def dataset_key(job: Job) -> str:
    """Jobs with the same key have inputs and targets of the same dimensions."""
    recipe = job.recipe
    return f"{recipe.dataset} {recipe.dim}" if recipe.dataset == "synthetic" else recipe.dataset


def dimensions(jobs: tuple[Job, ...], sources: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """d and c of every data set of the jobs; a data set that cannot be had fails here, before anything is run."""
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
