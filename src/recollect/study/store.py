"""The files of a sweep, in one folder:

`victims/NAME/`       the files of a training run, while jobs still need them
`results/NAME.json`   the job, its results and how long it took
`points/NAME.safetensors`   the inputs found, if the plan asks for them
`failures/NAME.json`  the last error of a job that did not succeed

Every file is written completely or not at all, and says what it belongs to. A sweep may therefore
be killed at any moment, and two sweeps may share a folder: at worst, something is computed twice.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from recollect.errors import FileError, RecollectError
from recollect.options import build
from recollect.shapes import Float, Tensor
from recollect.study.job import Job
from recollect.system.files import (
    json_bytes,
    read_json,
    read_tensors,
    tensor_bytes,
    write_bytes,
    write_files,
)
from recollect.truth.recipe import Recipe

_POINTS = (torch.float64, torch.float32)


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def victim(self, job: Job) -> Path:
        return self.folder / "victims" / job.victim_name

    def has_victim(self, job: Job) -> bool:
        """Whether the victim of this job is complete: its `train.json` is written last."""
        try:
            facts = read_json(self.victim(job) / "train.json")
            return is_of(job.recipe, facts.get("options", facts.get("recipe")))
        except FileError:
            return False

    def drop_victim(self, job: Job) -> None:
        folder = self.victim(job)
        with contextlib.suppress(OSError):
            (folder / "train.json").unlink(
                missing_ok=True
            )  # first, so that an incomplete victim is not taken for a complete one
            shutil.rmtree(folder)

    def has(self, job: Job) -> bool:
        try:
            found, _, _ = self._result(self._path("results", job))
            points = read_tensors(self.points(job))[0].get("inputs") if job.keep_points else None
        except FileError:
            return False
        lost = job.keep_points and (
            points is None or points.dim() != 2 or points.dtype not in _POINTS
        )
        return found.name == job.name and not lost

    def keep(
        self,
        job: Job,
        result: dict[str, Any],
        seconds: dict[str, float | None],
        points: Float[Tensor, "n d"],
    ) -> None:
        if job.keep_points:
            write_bytes(self.points(job), tensor_bytes({"inputs": points}), private=True)
        content = {"job": job.columns(), "result": result, "seconds": seconds}
        write_files({self._path("results", job): json_bytes(content)})
        self.forgive(job)

    def points(self, job: Job) -> Path:
        return self.folder / "points" / f"{job.name}.safetensors"

    def fail(self, job: Job, error: str) -> None:
        """Record the error of a job. If that fails, as on a full disk, the sweep still reports the
        error."""
        with contextlib.suppress(FileError):
            write_bytes(
                self._path("failures", job), json_bytes({"job": job.columns(), "error": error})
            )

    def forgive(self, job: Job) -> None:
        with contextlib.suppress(OSError):
            self._path("failures", job).unlink(missing_ok=True)

    def results(self) -> Iterator[tuple[Job, dict[str, Any], dict[str, float]]]:
        """All results, in no particular order. A file that is not a result is an error."""
        for path in (self.folder / "results").glob("*.json"):
            job, result, seconds = self._result(path)
            if path.stem != job.name:
                raise FileError(
                    f"expected the result of job {path.stem} in {path}, got that of {job.name}; "
                    "delete it"
                )
            yield job, result, seconds

    def _path(self, kind: str, job: Job) -> Path:
        return self.folder / kind / f"{job.name}.json"

    def _result(self, path: Path) -> tuple[Job, dict[str, Any], dict[str, float]]:
        row = read_json(path)
        parts = [row.get(part) for part in ("job", "result", "seconds")]
        try:
            if not all(isinstance(part, dict) for part in parts):
                raise FileError("no job and result")
            job, result, seconds = Job.of(row["job"]), row["result"], row["seconds"]
            for name, kind in (*RESULTS.items(), *dict.fromkeys(seconds, float).items()):
                value = result.get(name) if name in RESULTS else seconds[name]
                check_value(name, kind, value)
            seconds = {name: float(value) for name, value in seconds.items() if value is not None}
            if result.get("rho") is None:
                raise FileError("no ρ")
        except RecollectError as error:
            raise FileError(
                f"expected a job and its result in {path}, got: {error}; delete it"
            ) from None
        return job, result, seconds


RESULTS: dict[str, type] = {
    "rho": float,
    "rho_up_to_sign": float,
    "rho_closest": float,
    "median_error": float,
    "worst_error": float,
    "recovered": float,
    "missed": int,
    "spurious": int,
    "residual": float,
    "status": str,
    "rank_used": int,
    "equations": int,
    "unknowns": int,
    "steps": int,
    "step_size": float,
    "confidence": float,
    "chance_sphere": float,
    "chance_span": float,
    "chance_span_up_to_sign": float,
    "chance_other_points": float,
    "outputs": int,
    "training_mse": float,
    "training_steps": int,
    "training_step_size": float,
    "gap_rank": int,
    "device": str,
    "torch": str,
}
"""The results that are kept of a job, with their types. All except ρ may be missing (None)."""


def check_value(name: str, kind: type, value: Any) -> None:
    if value is None:
        return
    fits = isinstance(value, (float, int) if kind is float else kind) and not isinstance(
        value, bool
    )
    if (
        not fits
        or (kind is float and not abs(value) < 1e300)
        or (kind is int and abs(value) >= 2**63)
    ):
        raise FileError(f"{name} is {str(value)[:40]!r}")


def is_of(recipe: Recipe, facts: Any) -> bool:
    """Whether the options in a training record are those of the recipe. Options that the record
    lacks count as their defaults."""
    try:
        return isinstance(facts, dict) and build(Recipe, facts) == recipe
    except (RecollectError, TypeError):
        return False
