"""Reading θ0 and θf from files that may be hostile: `.safetensors`, and `.pt` without running what it asks for."""

from __future__ import annotations

import struct
import zipfile
import zlib
from pathlib import Path

import torch

from recollect.errors import CheckpointError, FileError
from recollect.files import read_tensors
from recollect.pickles import Asked, Forbidden
from recollect.shapes import Tensor
from recollect.victim.torch_file import TorchFile, open_torch_file

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.")
_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_LARGEST = 1e100
"""Weights beyond this are broken, and their squares would overflow."""

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
    try:
        with open_torch_file(path) as file:
            return _state_dict(file, path)
    except Forbidden as error:
        raise CheckpointError(
            f"expected plain tensors in {path}, got pickled code that loading would run ({error}); it was not run: "
            "save model.state_dict(), best as .safetensors"
        ) from None
    except (ValueError, OSError, EOFError, RuntimeError, struct.error, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(f"expected a whole .pt file at {path}, got: {error}; copy or save it again") from None


def _state_dict(file: TorchFile, path: Path) -> dict[str, Tensor]:
    content = file.content
    for _ in range(4):  # a hostile dictionary may hold itself
        inner = [content[key] for key in _WRAPPERS if isinstance(content, dict) and isinstance(content.get(key), dict)]
        content = inner[0] if inner else content
    if isinstance(content, dict) and content and all(map(file.is_tensor, content.values())):
        return {_strip(_text(name)): file.tensor(asked) for name, asked in content.items()}
    kind = "a call" if isinstance(content, Asked) else type(content).__name__
    found = ", ".join(_text(key)[:40] for key in list(content)[:4]) if isinstance(content, dict) else kind
    raise CheckpointError(
        f"expected a state dict of tensors in {path}, got {found or 'an empty one'}; save model.state_dict()"
    )


def _text(key: str | bytes | int) -> str:
    return key.decode("latin1") if isinstance(key, bytes) else str(key)


def _strip(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name
