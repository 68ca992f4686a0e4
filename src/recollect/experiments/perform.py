"""Carrying out jobs: a victim is trained, or some jobs of one group are run on it. Results go to the store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from recollect.errors import FileError
from recollect.experiments.job import Job
from recollect.experiments.store import Store
from recollect.files import read_json, read_tensors
from recollect.metrics import evaluate
from recollect.problem import RecollectWarning
from recollect.reconstruct import choose_device, reconstruct_seeds
from recollect.records import finite, versions
from recollect.result import Reconstruction
from recollect.shapes import Float, Tensor
from recollect.subspace import spectrum
from recollect.truth import read_truth, write_training
from recollect.victim import Victim


@dataclass(frozen=True)
class Task:
    """What is given to a worker at once: train the victim of the jobs, or run them; they share victim and options."""

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

    def __str__(self) -> str:
        job = self.jobs[0]
        recipe = job.recipe
        what = f"{recipe.dataset}, n {recipe.n}, width {recipe.width}, depth {recipe.depth}, seed {recipe.seed}"
        if self.trains:
            return f"train on {what}"
        seeds = ", ".join(str(one.reconstruction_seed) for one in self.jobs)
        return f"{job.method} {job.solver} {job.parameters} of {what}; start {seeds}"


def perform(task: Task) -> None:
    store, device = Store(task.folder), choose_device(task.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecollectWarning)  # the notes of each result tell
        if not store.has_victim(task.jobs[0]):
            _train(store, task.jobs[0], device, task.sources)
        if not task.trains:
            _attack(store, task.jobs, device)


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


def _attack(store: Store, jobs: Sequence[Job], device: torch.device) -> None:
    folder, one = store.victim(jobs[0]), jobs[0]
    try:
        facts = read_json(folder / "train.json")
        truth, basis = read_truth(folder / "truth.safetensors"), read_tensors(folder / "basis.safetensors")[0]["U"]
        victim = Victim.load(folder / "init.safetensors", folder / "trained.safetensors")
    except (FileError, KeyError):
        store.drop_victim(one)  # so that the next try trains it again
        raise
    began = time.perf_counter()
    seeds = [job.reconstruction_seed for job in jobs]
    attack = one.attack(basis)
    for job, found in zip(
        jobs, reconstruct_seeds(victim, one.recipe.n, attack, seeds=seeds, device=device), strict=True
    ):
        result = {
            **_scored(found, truth.inputs),
            "outputs": victim.c,
            "training_mse": facts["mse"],
            "training_steps": facts["steps"],
            "training_step_size": facts["learning_rate"],
            "gap_rank": facts["gap_rank"],
            "device": device.type,
            "torch": torch.__version__,
        }
        spent = {
            "attack_seconds": sum(stage.seconds for stage in found.stages),
            "group_seconds": time.perf_counter() - began,
            "training_seconds": facts["seconds"],
        }
        store.keep(job, result, spent, found.inputs)


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
