"""Carrying out jobs: a victim is trained, or jobs that differ in their seeds are run. Results go to the store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from recollect.cell import reconstruct_cell
from recollect.errors import FileError
from recollect.experiments.job import Job
from recollect.experiments.store import Store
from recollect.files import read_json, read_tensors
from recollect.metrics import evaluate
from recollect.problem import RecollectWarning
from recollect.reconstruct import choose_device
from recollect.records import finite, versions
from recollect.result import Reconstruction
from recollect.shapes import Float, Tensor
from recollect.subspace import spectrum
from recollect.truth import read_truth, write_training
from recollect.victim import Victim


@dataclass(frozen=True)
class Task:
    """What is given to a worker at once: train the victim of the jobs, or run them.

    Jobs that are run at once differ in their seeds alone, and each of their victims has the same reconstruction seeds.
    """

    jobs: tuple[Job, ...]
    trains: bool
    folder: Path
    """Of the store. Every worker must see it."""
    device: str
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where data sets lie that the plan knows by name."""
    bytes: float = 0.0
    seconds: float = 0.0
    """What it will take, as estimated."""

    @property
    def victims(self) -> dict[str, tuple[Job, ...]]:
        """The jobs of each victim, by its name."""
        found: dict[str, tuple[Job, ...]] = {}
        for job in self.jobs:
            found[job.victim_name] = (*found.get(job.victim_name, ()), job)
        return found

    def __str__(self) -> str:
        job = self.jobs[0]
        recipe = job.recipe
        trained = ", ".join(str(jobs[0].recipe.seed) for jobs in self.victims.values())
        what = f"{recipe.dataset}, n {recipe.n}, width {recipe.width}, depth {recipe.depth}, seed {trained}"
        if self.trains:
            return f"train on {what}"
        seeds = ", ".join(str(one.reconstruction_seed) for one in self.victims[job.victim_name])
        return f"{job.method} {job.solver} {job.parameters} of {what}; start {seeds}"


def perform(task: Task) -> None:
    store, device = Store(task.folder), choose_device(task.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecollectWarning)  # the notes of each result tell
        for jobs in task.victims.values():
            if not store.has_victim(jobs[0]):
                _train(store, jobs[0], device, task.sources)
        if not task.trains:
            _attack(store, list(task.victims.values()), device)


def _train(store: Store, job: Job, device: torch.device, sources: Mapping[str, str]) -> None:
    recipe = job.recipe
    data = recipe.data(sources)
    done = recipe.make(data, device)
    found = spectrum(done.victim) if done.victim.theta_0 is not None and recipe.victim == "mlp" else None
    facts = {
        "recipe": asdict(recipe),
        "mse": done.mse,
        "steps": done.steps,
        "learning_rate": done.learning_rate,
        "lambda_max": done.lambda_max,
        "seconds": done.seconds,
        "device": device.type,
        "singular_values": None if found is None else found.singular_values.tolist(),
        "gap_rank": None if found is None else found.rank,
        "versions": versions(),
    }
    write_training(store.victim(job), data, done, facts)


@dataclass(frozen=True)
class _Trained:
    """A victim of the store, with what is known of it."""

    victim: Victim
    facts: dict[str, Any]
    truth: Float[Tensor, "n d"]
    basis: Float[Tensor, "d r"]

    @classmethod
    def read(cls, folder: Path) -> _Trained:
        facts = read_json(folder / "train.json")
        truth, basis = read_truth(folder / "truth.safetensors"), read_tensors(folder / "basis.safetensors")[0]["U"]
        victim = Victim.load(folder / "init.safetensors", folder / "trained.safetensors")
        return cls(victim, facts, truth.inputs, basis)


def _read(store: Store, jobs: Sequence[Job]) -> list[_Trained]:
    """The victims of these jobs. Those that are damaged are dropped, all of them: the next try trains them again."""
    trained, trouble = [], list[Exception]()
    for job in jobs:
        try:
            trained.append(_Trained.read(store.victim(job)))
        except (FileError, KeyError) as error:
            store.drop_victim(job)
            trouble.append(error)
    if trouble:
        raise trouble[0]
    return trained


def _attack(store: Store, cell: Sequence[Sequence[Job]], device: torch.device) -> None:
    """The jobs of each victim; the victims' differ in their seeds alone."""
    trained = _read(store, [jobs[0] for jobs in cell])
    began = time.perf_counter()
    found = reconstruct_cell(
        [one.victim for one in trained],
        cell[0][0].recipe.n,
        [jobs[0].attack(one.basis) for jobs, one in zip(cell, trained, strict=True)],
        seeds=[job.reconstruction_seed for job in cell[0]],
        device=device,
    )
    results = [
        (job, one, run)
        for jobs, one, runs in zip(cell, trained, found, strict=True)
        for job, run in zip(jobs, runs, strict=True)
    ]
    # What is missing comes last: if this ends here, all is run again, and no two runs are mixed.
    for job, one, run in sorted(results, key=lambda result: not store.has(result[0])):
        result = {
            **_scored(run, one.truth),
            "outputs": one.victim.c,
            "training_mse": one.facts["mse"],
            "training_steps": one.facts["steps"],
            "training_step_size": one.facts["learning_rate"],
            "gap_rank": one.facts["gap_rank"],
            "device": device.type,
            "torch": torch.__version__,
        }
        spent = {
            "attack_seconds": sum(stage.seconds for stage in run.stages),
            "group_seconds": time.perf_counter() - began,
            "training_seconds": one.facts["seconds"],
        }
        store.keep(job, result, spent, run.inputs)


def _scored(found: Reconstruction, truth: Float[Tensor, "n d"]) -> dict[str, Any]:
    score = evaluate(found, truth)
    return {
        "rho": score.rho,
        "rho_up_to_sign": score.rho_up_to_sign,
        "rho_closest": score.rho_closest,
        "median_error": finite(float(score.errors.median())),
        "worst_error": finite(float(score.errors.max())),
        "recovered": score.recovered,
        "missed": score.missed,
        "spurious": score.spurious,
        "residual": finite(found.loss),
        "status": found.status.name.lower(),
        "rank_used": found.rank,
        "equations": found.equations,
        "unknowns": found.unknowns,
        "steps": sum(stage.iterations for stage in found.stages),
        "step_size": found.step_size,
        "confidence": None if found.confidence is None else float(found.confidence.min()),
        **{f"chance_{name}": score.chance.get(name) for name in ("sphere", "span", "span_up_to_sign", "other_points")},
    }
