"""The files of a reconstruction: what `reconstruct` writes, reads back, and resumes from. No truth comes near them.

`reconstruction.safetensors`  inputs, coefficients, predictions, confidence, trace, singular_values
`reconstruct.json`            options, loss, status, stages, notes, versions
`resume.safetensors`          the run itself, for going on where it stopped
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from recollect.errors import FileError
from recollect.files import json_bytes, read_json, read_tensors, tensor_bytes, write_bytes, write_files
from recollect.result import Reconstruction, Saved
from recollect.shapes import Float, Tensor
from recollect.solve import Outcome, Run, Status
from recollect.victim import Victim

TENSORS = "reconstruction.safetensors"
FACTS = "reconstruct.json"
CHECKPOINT = "resume.safetensors"


@dataclass(frozen=True)
class Record:
    """A reconstruction as it lies in a folder."""

    inputs: Float[Tensor, "n d"]
    norms_identifiable: bool
    trace: Float[Tensor, " k"]
    singular_values: Float[Tensor, " s"] | None
    confidence: Float[Tensor, " n"] | None
    image_shape: tuple[int, int, int] | None
    """Channels, height, width, where the victim says so."""
    facts: dict[str, Any] = field(repr=False)


def write_reconstruction(
    folder: Path, found: Reconstruction, victim: Victim, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Write both files at once; returns what went into `reconstruct.json`."""
    tensors = {
        "inputs": found.inputs,
        "coefficients": found.coefficients,
        "predictions": found.predictions,
        "trace": found.trace,
    }
    if found.confidence is not None:
        tensors["confidence"] = found.confidence
    if found.singular_values is not None:
        tensors["singular_values"] = found.singular_values
    content = {
        "victim": victim.describe(),
        "input_shape": victim.input_shape,
        "options": dict(options),
        "status": found.status.name.lower(),
        "message": found.status.value,
        "loss": finite(found.loss),
        "n": len(found.inputs),
        "rank": found.rank,
        "equations": found.equations,
        "unknowns": found.unknowns,
        "step_size": found.step_size,
        "span": found.span,
        "resumed_at": found.resumed_at,
        "norms_identifiable": found.norms_identifiable,
        "confidence": None if found.confidence is None else found.confidence.tolist(),
        "notes": list(found.notes),
        "stages": [{**asdict(stage), "loss": finite(stage.loss)} for stage in found.stages],
        "versions": versions(),
    }
    packed = tensor_bytes(tensors)
    content["sha256"] = hashlib.sha256(packed).hexdigest()
    write_files({folder / TENSORS: packed, folder / FACTS: json_bytes(content)})
    return content


def read_reconstruction(folder: Path) -> Record:
    facts = read_json(folder / FACTS)
    if not _well_formed(facts):
        raise FileError(f"expected the facts of a reconstruction in {folder / FACTS}, got others; reconstruct again")
    tensors, _ = read_tensors(folder / TENSORS)
    if facts.get("sha256") != hashlib.sha256((folder / TENSORS).read_bytes()).hexdigest():
        raise FileError(
            f"expected {TENSORS} and {FACTS} of one run in {folder}, got two that do not belong together; "
            "reconstruct again"
        )
    inputs, trace = tensors.get("inputs", torch.zeros(0)), tensors.get("trace", torch.zeros(0, dtype=torch.float64))
    sure = tensors.get("confidence")
    curves = [tensor for tensor in (trace, sure, tensors.get("singular_values")) if tensor is not None]
    plain = all(tensor.dtype == torch.float64 for tensor in (inputs, *curves))
    shaped = inputs.dim() == 2 and inputs.numel() > 0 and all(tensor.dim() == 1 for tensor in curves)
    finite_ones = (inputs, *(tensor for tensor in curves if tensor is not trace))  # a failed step leaves NaN there
    if (
        not (plain and shaped)
        or not all(bool(torch.isfinite(tensor).all()) for tensor in finite_ones)
        or float(inputs.abs().max()) > 1e150
    ):
        raise FileError(f"expected finite `inputs` n×d in {folder / TENSORS}, got none; reconstruct again")
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
    if not isinstance(shape, list) or len(shape) != 3 or not all(isinstance(size, int) for size in shape):
        return None
    channels, height, width = shape
    fits = channels in (1, 3) and height > 0 and width > 0 and channels * height * width == d
    return (channels, height, width) if fits else None


def _well_formed(facts: Mapping[str, Any]) -> bool:
    """Whether everything that is shown later has the type it is shown as; the file may come from anywhere."""
    stages = facts.get("stages")

    def number(value: Any) -> bool:
        return isinstance(value, (int, float)) and abs(value) < 1e300

    return (
        isinstance(facts.get("rank"), int)
        and (facts.get("loss") is None or number(facts.get("loss")))
        and all(isinstance(facts.get(name, {}), dict) for name in ("options", "versions"))
        and isinstance(facts.get("notes", []), list)
        and isinstance(stages, list)
        and all(
            isinstance(stage, dict)
            and (stage.get("loss") is None or number(stage.get("loss")))
            and number(stage.get("seconds"))
            and {"name", "iterations"} <= set(stage)
            for stage in stages
        )
    )


class FileCheckpoint:
    """A run in `resume.safetensors`. A file that is damaged or of another computation is ignored and replaced."""

    def __init__(self, folder: Path, *, resume: bool = True) -> None:
        self._path = folder / CHECKPOINT
        self._resume = resume

    def load(self, fingerprint: str) -> Saved | None:
        if not self._resume or not self._path.is_file():
            return None
        with contextlib.suppress(
            FileError, KeyError, ValueError, TypeError, AttributeError, OverflowError, RecursionError
        ):
            tensors, metadata = read_tensors(self._path)
            facts = json.loads(metadata["run"])
            if facts["fingerprint"] != fingerprint:
                return None
            outcomes = tuple(
                Outcome(
                    tensors[f"outcome.{k}.Z"],
                    trace=tensors[f"outcome.{k}.trace"],
                    **{**told, "status": Status[told["status"]]},
                )
                for k, told in enumerate(facts["outcomes"])
            )
            return Saved(outcomes, Run.of(tensors), float(facts["seconds"]))
        return None

    def save(self, fingerprint: str, saved: Saved) -> None:
        tensors = saved.run.tensors()
        for k, outcome in enumerate(saved.outcomes):
            tensors |= {f"outcome.{k}.Z": outcome.Z, f"outcome.{k}.trace": outcome.trace}
        facts = {
            "fingerprint": fingerprint,
            "seconds": saved.seconds,
            "outcomes": [
                {
                    **{name: getattr(outcome, name) for name in ("loss", "iterations", "seconds", "jitter")},
                    "status": outcome.status.name,
                }
                for outcome in saved.outcomes
            ],
        }
        write_bytes(self._path, tensor_bytes(tensors, {"run": json.dumps(facts)}))


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("recollect", "torch", "numpy", "scipy"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
