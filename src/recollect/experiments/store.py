"""What a sweep keeps, in one folder:

`victims/NAME/`       a training run's files, while jobs still need them
`results/NAME.json`   the job, what came of it, how long it took
`points/NAME.safetensors`   the inputs found, where the plan asks for them
`failures/NAME.json`  the last error of a job that did not succeed

Every file is written whole or not at all and says what it belongs to, so that a sweep may be killed at any moment and
two may share a folder: at worst something is computed twice, with the same result.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from recollect.errors import FileError, RecollectError
from recollect.experiments.job import Job
from recollect.files import json_bytes, read_json, tensor_bytes, write_bytes, write_files
from recollect.shapes import Float, Tensor


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def victim(self, job: Job) -> Path:
        return self.folder / "victims" / job.victim_name

    def has_victim(self, job: Job) -> bool:
        """`train.json` is written last."""
        try:
            return bool(read_json(self.victim(job) / "train.json").get("recipe") == asdict(job.recipe))
        except FileError:
            return False

    def drop_victim(self, job: Job) -> None:
        folder = self.victim(job)
        with contextlib.suppress(OSError):
            (folder / "train.json").unlink(missing_ok=True)  # first: half a victim must not pass for a whole one
            shutil.rmtree(folder)

    def has(self, job: Job) -> bool:
        try:
            row = self._result(self._path("results", job))
        except FileError:
            return False
        return row["job"] == job.columns() and (not job.keep_points or self.points(job).is_file())

    def keep(self, job: Job, result: dict[str, Any], seconds: dict[str, float], points: Float[Tensor, "n d"]) -> None:
        if job.keep_points:
            write_bytes(self.points(job), tensor_bytes({"inputs": points}))
        content = {"job": job.columns(), "result": result, "seconds": seconds}
        write_files({self._path("results", job): json_bytes(content)})
        self.forgive(job)

    def points(self, job: Job) -> Path:
        return self.folder / "points" / f"{job.name}.safetensors"

    def fail(self, job: Job, error: str) -> None:
        write_bytes(self._path("failures", job), json_bytes({"job": job.columns(), "error": error}))

    def forgive(self, job: Job) -> None:
        with contextlib.suppress(OSError):
            self._path("failures", job).unlink(missing_ok=True)

    def results(self) -> Iterator[tuple[Job, dict[str, Any], dict[str, float]]]:
        """Everything that is there, in no order; a file that is not a result is an error."""
        for path in (self.folder / "results").glob("*.json"):
            row = self._result(path)
            try:
                job = Job.of(row["job"])
            except RecollectError as error:
                raise FileError(f"expected a job in {path}, got another kind of file: {error}; delete it") from None
            yield job, row["result"], row["seconds"]

    def _path(self, kind: str, job: Job) -> Path:
        return self.folder / kind / f"{job.name}.json"

    def _result(self, path: Path) -> dict[str, Any]:
        row = read_json(path)
        if not all(isinstance(row.get(part), dict) for part in ("job", "result", "seconds")):
            raise FileError(f"expected a job and its result in {path}, got another kind of file; delete it")
        return row
