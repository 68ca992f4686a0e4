"""Carry out a task: train a victim, or run a job on it. Results go to the store."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recollect.attacks.problem import read_basis
from recollect.attacks.reconstruct import reconstruct
from recollect.attacks.result import Reconstruction
from recollect.errors import DataError, InputError, RecollectWarning
from recollect.examine.subspace import check_basis
from recollect.records import finite
from recollect.shapes import Float, Tensor
from recollect.solve.loop import Status
from recollect.study.job import Job
from recollect.study.store import Store, check_value
from recollect.system.device import choose_device
from recollect.system.files import read_json
from recollect.truth.files import check_run, read_truth
from recollect.truth.metrics import evaluate
from recollect.truth.recipe import make
from recollect.victim.victim import Victim


@dataclass(frozen=True)
class Task:
    """The unit of work for a worker: to train the victim of a job, or to run the job."""

    job: Job
    trains: bool
    folder: Path
    """The folder of the store. Every worker must have access to it."""
    device: str
    sources: Mapping[str, str] = field(default_factory=dict)
    """The paths of data sets that the plan refers to by name."""
    bytes: float = 0.0
    seconds: float = 0.0
    """`bytes` and `seconds` are estimates."""

    def __str__(self) -> str:
        job, recipe = self.job, self.job.recipe
        what = f"{recipe.dataset}, n {recipe.n}, width {recipe.width}, depth {recipe.depth}"
        what += f", seed {recipe.seed}"
        if self.trains:
            return f"train on {what}"
        columns = job.columns()
        how = f"{columns['solver']} {columns['parameters']}" if job.built_in else job.attack_name
        return f"{job.study.method} {how} of {what}; start {job.reconstruction_seed}"


def perform(task: Task) -> None:
    """Carry out a task. The victim is trained if the store does not have it."""
    store, device, job = Store(task.folder), choose_device(task.device), task.job
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecollectWarning)  # the notes of the result repeat them
        if not store.has_victim(job):
            make(job.recipe, device=device, out=store.victim(job), sources=task.sources)
        if not task.trains:
            _attack(store, job, device)


TOLD: dict[str, type] = {
    "mse": float,
    "steps": int,
    "learning_rate": float,
    "gap_rank": int,
    "seconds": float,
}
"""What a result repeats of the record of training, with its types."""


@dataclass(frozen=True)
class Trained:
    """A trained victim from the store, with its training record and the true data."""

    victim: Victim
    facts: dict[str, Any]
    truth: Float[Tensor, "n d"]
    basis: Float[Tensor, "d r"]

    @classmethod
    def read(cls, folder: Path) -> Trained:
        facts = read_json(folder / "train.json")
        for name, kind in TOLD.items():
            check_value(name, kind, facts.get(name))
        truth = read_truth(folder / "truth.safetensors")
        victim = Victim.load(folder / "init.safetensors", folder / "trained.safetensors")
        check_run(truth, victim.run)
        if truth.inputs.shape[1] != victim.d:
            raise DataError(
                f"expected true inputs of the network's {victim.d} dimensions in {folder}, got "
                f"{truth.inputs.shape[1]}; train the victim again"
            )
        basis = check_basis(read_basis(folder / "basis.safetensors"), victim.d)
        return cls(victim, facts, truth.inputs, basis)


def _read(store: Store, job: Job) -> Trained:
    """The victim of a job. A damaged victim is deleted, so that the next try trains it again."""
    try:
        return Trained.read(store.victim(job))
    except InputError:
        store.drop_victim(job)
        raise


def _attack(store: Store, job: Job, device: torch.device) -> None:
    trained = _read(store, job)
    began = time.perf_counter()
    found = reconstruct(
        trained.victim,
        job.recipe.n,
        job.attack(trained.basis),
        seed=job.reconstruction_seed,
        device=device,
    )
    if found.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
    result = {
        **_scored(found, trained.truth),
        "outputs": trained.victim.c,
        "training_mse": trained.facts.get("mse"),
        "training_steps": trained.facts.get("steps"),
        "training_step_size": trained.facts.get("learning_rate"),
        "gap_rank": trained.facts.get("gap_rank"),
        "device": device.type,
        "torch": torch.__version__,
    }
    spent = {
        "attack_seconds": time.perf_counter() - began,
        "training_seconds": trained.facts.get("seconds"),
    }
    store.keep(job, result, spent, found.inputs)


def _scored(found: Reconstruction, truth: Float[Tensor, "n d"]) -> dict[str, Any]:
    score = evaluate(found, truth)
    levels = ("sphere", "span", "span_up_to_sign", "other_points")
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
        **{f"chance_{name}": score.chance.get(name) for name in levels},
    }
