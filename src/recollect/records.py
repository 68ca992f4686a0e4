"""The files of a reconstruction, which `reconstruct` writes, reads back and resumes from.

They contain nothing of the true data. Records have schema 2; records of schema 1, from version
0.1.0, can still be read.

`reconstruction.safetensors`  inputs, coefficients, predictions, confidence, trace, singular_values
`reconstruct.json`            options, loss, status, stages, notes, versions
`resume.safetensors`          the state of the run, to resume it where it stopped
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from recollect.attacks.base import Attack
from recollect.attacks.options import Exact, attack_words
from recollect.attacks.result import Reconstruction, SavedRun
from recollect.errors import FileError
from recollect.shapes import Float, Tensor
from recollect.solve.loop import Outcome, Run, Status
from recollect.system.files import (
    json_bytes,
    read_json,
    read_tensors,
    tensor_bytes,
    write_bytes,
    write_files,
)
from recollect.victim.victim import Victim

SCHEMA = 2
TENSORS = "reconstruction.safetensors"
FACTS = "reconstruct.json"
RESUME = "resume.safetensors"


@dataclass(frozen=True)
class Record:
    """A reconstruction as it is stored in a folder, or as it would be stored."""

    inputs: Float[Tensor, "n d"]
    norms_identifiable: bool
    trace: Float[Tensor, " k"]
    singular_values: Float[Tensor, " s"] | None
    confidence: Float[Tensor, " n"] | None
    image_shape: tuple[int, int, int] | None
    """Channels, height and width, if the victim specifies them."""
    facts: dict[str, Any] = field(repr=False)
    """The content of `reconstruct.json`."""
    extra: Mapping[str, Tensor] = field(default_factory=dict, repr=False)
    """Further tensors of a fresh reconstruction: coefficients and predictions."""

    @property
    def run(self) -> str | None:
        """The name of the training run of the victim, if it is known."""
        name = self.facts.get("run")
        return name if isinstance(name, str) else None

    @property
    def withheld(self) -> dict[str, tuple[int, ...]]:
        """Points that must not be reported as recovered, by reason."""
        found: dict[str, tuple[int, ...]] = {}
        for one in self.facts.get("withheld", ()):
            found[one["why"]] = (*found.get(one["why"], ()), *one["points"])
        return found


def record_of(
    found: Reconstruction,
    victim: Victim,
    *,
    attack: Attack | None = None,
    options: Mapping[str, Any] | None = None,
    files: Sequence[Path | str] = (),
) -> Record:
    """The record of a reconstruction.

    `attack` and `options` are what the user asked for. `files` are the checkpoints of the victim,
    whose hashes are recorded.
    """
    described = {} if attack is None else attack_words(attack)
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "victim": victim.describe(),
        "input_shape": victim.input_shape,
        "options": {**dict(options or {}), **described},
        "tuning": asdict(attack.tuning) if isinstance(attack, Exact) else None,
        "run": victim.run,
        "files": [{"path": str(path), "sha256": file_hash(Path(path))} for path in files],
        "status": found.status.name.lower(),
        "message": found.status.value,
        "loss": finite(found.loss),
        "n": len(found.inputs),
        "n_source": found.n_source,
        "n_clear": found.n_clear,
        "n_tried": [{"n": n, "loss": finite(loss)} for n, loss in found.n_tried],
        "mismatch": None if found.mismatch is None else finite(found.mismatch),
        "signs_settled": found.signs_settled,
        "withheld": [asdict(withheld) for withheld in found.withheld],
        "rank": found.rank,
        "equations": found.equations,
        "unknowns": found.unknowns,
        "equations_effective": found.equations_effective,
        "coordinates": found.coordinates,
        "step_size": found.step_size,
        "span": found.objective,
        "resumed_at": found.resumed_at,
        "norms_identifiable": found.norms_identifiable,
        "confidence": None if found.confidence is None else found.confidence.tolist(),
        "notes": list(found.notes),
        "stages": [{**asdict(stage), "loss": finite(stage.loss)} for stage in found.stages],
        "details": dict(found.details),
        "versions": versions(),
        "threads": torch.get_num_threads(),
    }
    trace = torch.zeros(0, dtype=torch.float64) if found.trace is None else found.trace
    extra = {"coefficients": found.coefficients, "predictions": found.predictions}
    return Record(
        inputs=found.inputs.cpu().double(),
        norms_identifiable=found.norms_identifiable,
        trace=trace,
        singular_values=found.singular_values,
        confidence=found.confidence,
        image_shape=_image_shape(list(victim.input_shape or ()), found.inputs.shape[1]),
        facts=facts,
        extra={name: tensor for name, tensor in extra.items() if tensor is not None},
    )


def write_record(folder: Path, record: Record) -> dict[str, Any]:
    """Write both files together; returns the content of `reconstruct.json`.

    The file of tensors holds recovered data, so that its owner alone can read it.
    """
    files, content = record_files(folder, record)
    write_files(files, private=(folder / TENSORS,))
    return content


def record_files(folder: Path, record: Record) -> tuple[dict[Path, bytes], dict[str, Any]]:
    """Both files of a record by path, and the content of `reconstruct.json`."""
    tensors = {"inputs": record.inputs, "trace": record.trace, **record.extra}
    if record.confidence is not None:
        tensors["confidence"] = record.confidence
    if record.singular_values is not None:
        tensors["singular_values"] = record.singular_values
    packed = tensor_bytes(tensors)
    content = {**record.facts, "sha256": hashlib.sha256(packed).hexdigest()}
    return {folder / TENSORS: packed, folder / FACTS: json_bytes(content)}, content


def file_hash(path: Path) -> str | None:
    """The SHA-256 of a file, or None if there is no such file."""
    if not path.is_file():
        return None
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_record(folder: Path) -> Record:
    """Read a reconstruction from its folder."""
    facts = read_json(folder / FACTS)
    if not _well_formed(facts):
        raise FileError(
            f"expected the facts of a reconstruction in {folder / FACTS}, got others; reconstruct "
            "again"
        )
    tensors, _ = read_tensors(folder / TENSORS)
    if facts.get("sha256") != file_hash(folder / TENSORS):
        raise FileError(
            f"expected {TENSORS} and {FACTS} of one run in {folder}, got two that do not belong "
            "together; "
            "reconstruct again"
        )
    inputs = tensors.get("inputs", torch.zeros(0))
    trace = tensors.get("trace", torch.zeros(0, dtype=torch.float64))
    sure = tensors.get("confidence")
    curves = [
        tensor for tensor in (trace, sure, tensors.get("singular_values")) if tensor is not None
    ]
    plain = all(tensor.dtype == torch.float64 for tensor in (inputs, *curves))
    shaped = (
        inputs.dim() == 2 and inputs.numel() > 0 and all(tensor.dim() == 1 for tensor in curves)
    )
    # The trace is excluded, because a failed step leaves NaN in it.
    finite_ones = (inputs, *(tensor for tensor in curves if tensor is not trace))
    if (
        not (plain and shaped)
        or not all(bool(torch.isfinite(tensor).all()) for tensor in finite_ones)
        or float(inputs.abs().max()) > 1e150
    ):
        raise FileError(
            f"expected finite `inputs` n×d in {folder / TENSORS}, got none; reconstruct again"
        )
    return Record(
        inputs=inputs,
        norms_identifiable=facts.get("norms_identifiable") is True,
        trace=trace,
        singular_values=tensors.get("singular_values"),
        confidence=sure if sure is not None and sure.shape == inputs.shape[:1] else None,
        image_shape=_image_shape(facts.get("input_shape"), inputs.shape[1]),
        facts=facts,
    )


def _image_shape(shape: Any, d: int) -> tuple[int, int, int] | None:
    if (
        not isinstance(shape, list)
        or len(shape) != 3
        or not all(isinstance(size, int) for size in shape)
    ):
        return None
    channels, height, width = shape
    fits = channels in (1, 3) and height > 0 and width > 0 and channels * height * width == d
    return (channels, height, width) if fits else None


def _well_formed(facts: Mapping[str, Any]) -> bool:
    """Whether every value that is shown later has the expected type; the file may come from
    anywhere."""
    stages, withheld = facts.get("stages"), facts.get("withheld", [])

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and abs(value) < 1e300

    return (
        isinstance(facts.get("rank"), int | None)
        and all(facts.get(name) is None or number(facts.get(name)) for name in ("loss", "mismatch"))
        and all(isinstance(facts.get(name, {}), dict) for name in ("options", "versions"))
        and isinstance(facts.get("notes", []), list)
        and isinstance(withheld, list)
        and all(
            isinstance(one, dict)
            and isinstance(one.get("why"), str)
            and isinstance(one.get("points"), list | tuple)
            and all(isinstance(point, int) for point in one["points"])
            for one in withheld
        )
        and isinstance(stages, list)
        and all(
            isinstance(stage, dict)
            and (stage.get("loss") is None or number(stage.get("loss")))
            and number(stage.get("seconds"))
            and {"name", "loss", "iterations"} <= set(stage)
            for stage in stages
        )
    )


class ResumeFile:
    """The state of a run in `resume.safetensors`. A file that is damaged or belongs to another
    computation is ignored and replaced."""

    def __init__(self, folder: Path, *, resume: bool = True) -> None:
        self._path = folder / RESUME
        self._resume = resume

    def load(self, fingerprint: str) -> SavedRun | None:
        """The state saved under this fingerprint, or None if there is none that can be used."""
        if not self._resume or not self._path.is_file():
            return None
        with contextlib.suppress(
            FileError,
            KeyError,
            ValueError,
            TypeError,
            AttributeError,
            OverflowError,
            RecursionError,
        ):
            tensors, metadata = read_tensors(self._path)
            facts = json.loads(metadata["run"])
            if facts["fingerprint"] != fingerprint:
                return None
            outcomes = tuple(
                Outcome(
                    tensors[f"outcome.{k}.Z"],
                    trace=tensors[f"outcome.{k}.trace"],
                    **{**kept, "status": Status[kept["status"]]},
                )
                for k, kept in enumerate(facts["outcomes"])
            )
            seconds = float(facts["seconds"])
            if not (math.isfinite(seconds) and seconds >= 0):
                return None
            return SavedRun(outcomes, Run.of(tensors), seconds)
        return None

    def save(self, fingerprint: str, saved: SavedRun) -> None:
        """Save this state, replacing the previous one."""
        tensors = saved.run.tensors()
        for k, outcome in enumerate(saved.outcomes):
            tensors |= {f"outcome.{k}.Z": outcome.Z, f"outcome.{k}.trace": outcome.trace}
        facts = {
            "fingerprint": fingerprint,
            "seconds": saved.seconds,
            "outcomes": [
                {
                    **{
                        name: getattr(outcome, name)
                        for name in ("loss", "iterations", "seconds", "jitter")
                    },
                    "status": outcome.status.name,
                }
                for outcome in saved.outcomes
            ],
        }
        write_bytes(self._path, tensor_bytes(tensors, {"run": json.dumps(facts)}), private=True)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in ("recollect", "torch", "numpy", "scipy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def finite(value: float) -> float | None:
    """The value, or None if it is not finite, since JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
