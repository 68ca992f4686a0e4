"""The files of a training run. They include the truth, which is for scoring and display and never
for the attack.

`init.safetensors`, `trained.safetensors`   θ0 and θf
`truth.safetensors`
        inputs n×d, targets n×c, norms; how pixels were standardised
`basis.safetensors`                         U, d×r
`train.json`                                options and how training went

All but the basis hold the name of the run, by which files of two runs in one folder are noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect.errors import DataError, FileError
from recollect.examine.subspace import spectrum
from recollect.options import words
from recollect.records import SCHEMA, finite, versions
from recollect.shapes import Float, Tensor
from recollect.system.files import (
    json_bytes,
    read_metadata,
    read_tensors,
    tensor_bytes,
    write_files,
)
from recollect.truth.data.files import load_npz
from recollect.truth.images import PixelSpace
from recollect.truth.recipe import Made
from recollect.victim.mlp import MLP
from recollect.victim.read.infer import METADATA_KEY, Architecture

INIT, TRAINED, TRUTH = "init.safetensors", "trained.safetensors", "truth.safetensors"
_NUMBERS = (
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8),
)


@dataclass(frozen=True)
class Truth:
    """The training inputs, and how to show them as images."""

    inputs: Float[Tensor, "n d"]
    norms: Float[Tensor, " n"]
    pixel_space: PixelSpace | None
    run: str | None = None
    """The name of the training run that it belongs to. None: not known."""


def write_training(folder: Path, made: Made) -> dict[str, Any]:
    """Write all files of a training run. Returns the content of `train.json`, which is written
    last."""
    data, victim = made.data, made.training.victim
    network = victim.network
    if victim.theta_0 is None or not isinstance(network, MLP):
        raise TypeError("a trained victim has θ0 and is an MLP")
    truth = {"inputs": data.inputs, "targets": data.targets, "norms": data.norms}
    packed = (tensor_bytes(tensors) for tensors in (victim.theta_0, victim.theta_f, truth))
    run = hashlib.sha256(b"".join(packed)).hexdigest()[:16]
    start = Architecture(
        activation=network.activation, input_shape=data.input_shape, run=run, step=0
    )
    end = replace(start, step=max(1, made.training.steps))
    space = data.pixel_space
    pixels = None if space is None else {"shape": space.shape, "mean": space.mean, "std": space.std}
    # One entry: several would be written in an order that changes from run to run.
    about_truth = {METADATA_KEY: json.dumps({"run": run, "pixels": pixels})}
    facts = {**training_facts(made), "run": run}
    write_files(
        {
            folder / INIT: tensor_bytes(victim.theta_0, start.to_metadata()),
            folder / TRAINED: tensor_bytes(victim.theta_f, end.to_metadata()),
            folder / TRUTH: tensor_bytes(truth, about_truth),
            folder / "basis.safetensors": tensor_bytes({"U": data.basis}),
            folder / "train.json": json_bytes(facts),
        },
        private=(folder / "truth.safetensors", folder / "basis.safetensors"),
    )
    return facts


def training_facts(made: Made) -> dict[str, Any]:
    """How a victim was made, and how training went: the content of `train.json`."""
    training, data = made.training, made.data
    found = spectrum(training.victim) if made.recipe.victim == "mlp" else None
    facts: dict[str, Any] = {
        "schema": SCHEMA,
        "options": words(made.recipe),
        "device": made.device,
        "dim": data.inputs.shape[1],
        "rank": data.basis.shape[1],
        "network": training.victim.describe(),
        "mse": training.mse,
        "steps": training.steps,
        "learning_rate": training.learning_rate,
        "lambda_max": training.lambda_max,
        "seconds": training.seconds,
        "singular_values": None if found is None else found.singular_values.tolist(),
        "gap_rank": None if found is None else found.rank,
        "versions": versions(),
    }
    if training.closed_form is not None:  # what `recollect bounds theorem` needs
        form = training.closed_form
        facts |= {"alpha": form.l1, "c": form.c, "separation": finite(form.separation)}
    return facts


def as_truth(truth: Truth | Tensor | np.ndarray | str | Path) -> Truth:
    """The truth from a file, a tensor or an array."""
    if isinstance(truth, Truth):
        return truth
    if isinstance(truth, str | Path):
        return read_truth(Path(truth))
    inputs = as_inputs(truth)
    return Truth(inputs, torch.linalg.vector_norm(inputs, dim=1), None)


def as_inputs(truth: Tensor | np.ndarray | str | Path | Any) -> Float[Tensor, "n d"]:
    """The true inputs as a matrix in float64."""
    if isinstance(truth, str | Path):
        return read_truth(Path(truth)).inputs
    try:
        inputs = torch.as_tensor(truth).detach().cpu().double()
    except (TypeError, ValueError, RuntimeError):
        raise DataError(
            f"expected true inputs as a tensor, an array or a file, got {type(truth).__name__}; "
            "give one of those"
        ) from None
    if inputs.dim() != 2:
        raise DataError(
            f"expected true inputs n×d, got the shape {list(inputs.shape)}; reshape them to one "
            "row per point"
        )
    return inputs


def read_truth(path: Path) -> Truth:
    """The truth in a `.safetensors` or `.npz` file. Only `inputs` is required in it."""
    tensors: dict[str, Tensor]
    metadata: dict[str, str] = {}
    if path.suffix == ".npz":
        arrays = load_npz(path)
        try:
            tensors = {
                name: torch.from_numpy(arrays[name])
                for name in ("inputs", "norms")
                if name in arrays
            }
        except TypeError:
            raise DataError(
                f"expected numbers in {path}, got another kind of array; save `inputs` as floats"
            ) from None
    elif path.suffix == ".safetensors":
        try:
            tensors, metadata = read_tensors(path)
        except FileError as error:
            raise DataError(str(error)) from None
    else:
        raise DataError(
            f"expected a .safetensors or .npz file with `inputs`, got {path.name}; save the true "
            "inputs as one of those"
        )
    inputs = tensors.get("inputs")
    if inputs is None or inputs.dim() != 2 or inputs.dtype not in _NUMBERS:
        raise DataError(
            f"expected `inputs` n×d in {path}, got {_described(inputs)}; save the true inputs "
            "under that name"
        )
    inputs = inputs.double()
    if not inputs.numel() or not float(inputs.abs().max()) < 1e100:
        raise DataError(
            f"expected finite true inputs of ordinary size in {path}, got others; check the file"
        )
    norms = tensors.get("norms")
    if norms is None or norms.shape != inputs.shape[:1] or norms.dtype not in _NUMBERS:
        norms = torch.linalg.vector_norm(inputs, dim=1)
    about = _about(metadata)
    run = about.get("run")
    run = run if isinstance(run, str) else None
    if run is not None:
        _check_neighbour(path, run)
    return Truth(inputs, norms.double(), _pixel_space(about.get("pixels"), inputs.shape[1]), run)


def _about(metadata: Mapping[str, str]) -> dict[str, Any]:
    """The run and the pixels of a truth file. Files from before it named the run have the pixels
    alone. The metadata of other people's files may be anything."""
    try:
        if METADATA_KEY in metadata:
            content = json.loads(metadata[METADATA_KEY])
        else:
            content = {"pixels": json.loads(metadata.get("pixels", "null"))}
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def check_run(truth: Truth, run: str | None) -> None:
    """Raise a `DataError` if the truth belongs to another training run than the one named.

    Names that are not known, as those of other people's files, are no reason to refuse.
    """
    if None not in (truth.run, run) and truth.run != run:
        raise DataError(
            f"expected the truth of training run {run}, got that of run {truth.run}; give the "
            "truth that belongs to the attacked weights, or train and reconstruct again"
        )


def _check_neighbour(path: Path, run: str) -> None:
    """Raise a `DataError` if the trained weights in the same folder are of another training run.

    That happens if `recollect train` is killed while it replaces the files of an earlier run.
    """
    try:
        beside = Architecture.from_metadata(read_metadata(path.with_name(TRAINED))).run
    except FileError:  # there are none, or they are damaged, which is not the matter here
        return
    if beside not in (None, run):
        raise DataError(
            f"expected {path} and {TRAINED} beside it of one training run, got those of two: "
            f"{run} and {beside}; train again"
        )


def _described(tensor: Tensor | None) -> str:
    return (
        "none"
        if tensor is None
        else f"{list(tensor.shape)[:9]} {tensor.dtype}".replace("torch.", "")
    )


def _pixel_space(facts: Any, d: int) -> PixelSpace | None:
    if facts is None:
        return None
    try:
        channels, height, width = (int(size) for size in facts["shape"])
        space = PixelSpace((channels, height, width), float(facts["mean"]), float(facts["std"]))
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
    fits = channels in (1, 3) and height > 0 and width > 0 and channels * height * width == d
    return space if fits and 0 < space.std < 1e6 and abs(space.mean) < 1e6 else None
