"""Reading θ0 and θf from files that may be hostile: `.safetensors`, and `.pt` with `weights_only=True` only."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from recollect.errors import CheckpointError, FileError
from recollect.files import read_tensors
from recollect.shapes import Tensor

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LARGEST = 1e100
"""Weights beyond this are broken, and their squares would overflow."""
_LIMIT = 64 * 2**30
"""A `.pt` archive that claims to unpack to more than this is refused before anything is allocated."""


_COUNTERS = "num_batches_tracked"
"""The one tensor of whole numbers that ordinary models save: how often a BatchNorm layer was called."""


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors by name and the file's metadata (empty for `.pt`). Nothing in the file is executed."""
    state, metadata = read_checkpoint(path)
    for name, tensor in state.items():
        check_tensor(path, name, tensor)
    return state, metadata


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The same, whatever the tensors are: `check_tensor` says of each whether it can be used."""
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(
            f"expected a checkpoint at {path}, got {'a folder' if path.is_dir() else 'nothing there'}; check the path"
        )
    if path.suffix == ".safetensors":
        try:
            state, metadata = read_tensors(path)
        except FileError as error:
            raise CheckpointError(str(error)) from None
    elif path.suffix in (".pt", ".pth", ".bin"):
        state, metadata = _read_torch(path), {}
    else:
        raise CheckpointError(f"expected a .safetensors or .pt checkpoint, got {path.name}; save it as one of those")
    if not state:
        raise CheckpointError(f"expected tensors in {path}, got none; save the model's state_dict")
    return state, metadata


def check_tensor(path: Path, name: str, tensor: Tensor) -> None:
    if len(name) > 200 or not name.isprintable():
        raise CheckpointError(f"expected readable tensor names in {path}, got {name[:40]!a}; save the model again")
    if name.rpartition(".")[2] == _COUNTERS and tensor.dtype is torch.int64 and tensor.numel() == 1:
        return
    kind = f"{tensor.layout} {tensor.dtype}".replace("torch.", "").removeprefix("strided ")
    if tensor.is_nested or tensor.is_meta or tensor.layout is not torch.strided or tensor.dtype not in _DTYPES:
        raise CheckpointError(
            f"expected plain floating-point weights in {path}, got {name} as {kind}; dequantise the model first"
        )
    if not 1 <= tensor.dim() <= 8 or tensor.numel() == 0:
        raise CheckpointError(
            f"expected weights in {path}, got {name} of shape {list(tensor.shape)[:9]}; check the model"
        )
    largest = float(tensor.abs().max())
    if not largest < _LARGEST:
        bad = int((~torch.isfinite(tensor)).sum())
        what = f"{bad} NaN or infinite in {name}" if bad else f"{largest:.3g} in {name}"
        raise CheckpointError(f"expected finite weights in {path}, got {what}; use a checkpoint from before it broke")


def _read_torch(path: Path) -> dict[str, Tensor]:
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(entry.file_size for entry in archive.infolist())
        except (zipfile.BadZipFile, OSError) as error:
            raise CheckpointError(f"expected a whole .pt file at {path}, got: {error}; copy or save it again") from None
        if size > _LIMIT:
            raise CheckpointError(
                f"expected at most {_LIMIT >> 30} GiB in {path}, got a file that unpacks to {size >> 30} GiB; check "
                "its origin"
            )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on old formats; the errors below say all there is to say
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "weights_only" in str(error) or "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise CheckpointError(
                f"expected plain tensors in {path}, got pickled code that loading would run; it was not run: "
                "save model.state_dict(), best as .safetensors"
            ) from None
        raise CheckpointError(
            f"expected a whole .pt file at {path}, got one that ends early or is damaged; copy or save it again"
        ) from None
    except Exception as error:  # torch.load raises many kinds on damaged files; none of them is this program's fault
        raise CheckpointError(
            f"expected a whole .pt file at {path}, got: {type(error).__name__}; copy or save it again"
        ) from None
    return _state_dict(content, path)


def _state_dict(content: Any, path: Path, depth: int = 0) -> dict[str, Tensor]:
    if isinstance(content, Mapping):
        for key in _WRAPPERS:
            if isinstance(content.get(key), Mapping) and depth < 4:  # a hostile dictionary may hold itself
                return _state_dict(content[key], path, depth + 1)
        tensors = {str(name): value.detach() for name, value in content.items() if isinstance(value, Tensor)}
        if tensors and len(tensors) == len(content):
            return {_strip(name): value for name, value in tensors.items()}
    found = (
        ", ".join(f"{str(key)[:40]!a}" for key in list(content)[:4])
        if isinstance(content, Mapping)
        else type(content).__name__
    )
    raise CheckpointError(f"expected a state dict of tensors in {path}, got {found}; save model.state_dict()")


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
