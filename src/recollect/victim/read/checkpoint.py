"""Reads θ0 and θf from `.safetensors` and `.pt` files that may be hostile, without running any of
their code."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from recollect.errors import CheckpointError, FileError
from recollect.shapes import Tensor
from recollect.system.files import not_a_file, read_tensors
from recollect.victim.read.pickles import Asked, Forbidden, Name
from recollect.victim.read.torch_file import TorchFile, open_torch_file

_WRAPPERS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = re.compile(r"(?:module\.|_orig_mod\.)*")
"""Prefixes that `DataParallel` and `torch.compile` put before every name."""
_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
COUNTERS = ("epoch", "step", "global_step", "iteration")
"""Keys under which training checkpoints say how far training was."""
_COUNTS = (torch.int64, torch.bool)
"""Types of buffers that are not weights: counters, positions, masks. Smaller integers are quantised
weights."""
_LARGEST = 1e100
"""Weights beyond this are broken, and their squares would overflow."""


@dataclass(frozen=True)
class Checkpoint:
    """The weights of one file, or of one object in memory."""

    path: Path
    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    """The metadata of a `.safetensors` file; empty for other sources."""
    beside: frozenset[str] = frozenset()
    """The keys of everything else in the file: settings, scores, the state of an optimiser."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """The largest number under each key that counts training, such as `epoch` or `global_step`."""


Source = str | Path | Mapping[str, Any] | nn.Module
"""Where weights may come from: a file, a state dict of tensors or numpy arrays, or a module."""


def load_checkpoint(source: Source) -> Checkpoint:
    """Read a checkpoint and check that all its tensors can be used. No code in a file is run."""
    checkpoint = read_checkpoint(source)
    for name, tensor in checkpoint.tensors.items():
        check_tensor(checkpoint.path, name, tensor)
    return checkpoint


def read_checkpoint(source: Source) -> Checkpoint:
    """Read a checkpoint without a check of its tensors, which is left to `check_tensor`."""
    if not isinstance(source, str | Path):
        return _from_memory(source)
    path = Path(source)
    if (other := not_a_file(path)) is not None:
        raise CheckpointError(f"expected a checkpoint at {path}, got {other}; check the path")
    # The format is found from the content: the same file may be called .pt, .pth.tar, .ckpt, .pkl.
    with path.open("rb") as stream:
        start = stream.read(9)
    metadata: dict[str, str] = {}
    beside: frozenset[str] = frozenset()
    counts: dict[str, int] = {}
    torchs = start.startswith((b"PK\x03\x04", b"\x80"))  # zip, or pickle (before torch 1.6)
    # A safetensors file begins with the length of its header, whose first byte may be a pickle's.
    if start[8:] == b"{" and (
        not torchs or int.from_bytes(start[:8], "little") <= path.stat().st_size
    ):
        try:
            tensors, metadata = read_tensors(path)
        except FileError as error:
            raise CheckpointError(str(error)) from None
    elif torchs:
        tensors, beside, counts = _read_torch(path)
    else:
        raise CheckpointError(
            f"expected a .safetensors or .pt checkpoint, got {path.name}, which begins like "
            "neither; save it as one "
            "of those"
        )
    tensors = {name: tensor for name, tensor in tensors.items() if not is_extra(name)}
    if not tensors:
        raise CheckpointError(f"expected tensors in {path}, got none; save the model's state_dict")
    names = bare_names(tensors)
    return Checkpoint(
        path, {names[name]: tensor for name, tensor in tensors.items()}, metadata, beside, counts
    )


def _from_memory(source: Mapping[str, Any] | nn.Module) -> Checkpoint:
    given = source.state_dict() if isinstance(source, nn.Module) else source
    where = Path("the module" if isinstance(source, nn.Module) else "the state dict")
    tensors: dict[str, Tensor] = {}
    for name, value in given.items():
        if is_extra(str(name)):
            continue
        try:
            tensors[str(name)] = (
                value.detach().cpu() if isinstance(value, Tensor) else torch.as_tensor(value)
            )
        except (TypeError, ValueError, RuntimeError):
            raise CheckpointError(
                f"expected tensors or numpy arrays in {where}, got {name} of type "
                f"{type(value).__name__}; give the "
                "model's state_dict()"
            ) from None
    if not tensors:
        raise CheckpointError(
            f"expected tensors in {where}, got none; give the model's state_dict()"
        )
    names = bare_names(tensors)
    return Checkpoint(where, {names[name]: tensor for name, tensor in tensors.items()}, {})


def check_tensor(path: Path, name: str, tensor: Tensor) -> None:
    if len(name) > 200 or not name.isprintable():
        raise CheckpointError(
            f"expected readable tensor names in {path}, got {name[:40]!a}; save the model again"
        )
    kind = f"{tensor.layout} {tensor.dtype}".replace("torch.", "").removeprefix("strided ")
    plain = not (tensor.is_nested or tensor.is_meta) and tensor.layout is torch.strided
    if not plain or tensor.dtype not in (*_FLOATS, *_COUNTS):
        raise CheckpointError(
            f"expected plain floating-point weights in {path}, got {name} as {kind}; dequantise "
            "the model first"
        )
    if tensor.dim() > 8:
        raise CheckpointError(
            f"expected weights in {path}, got {name} of shape {list(tensor.shape)[:9]}; check the "
            "model"
        )
    if tensor.dtype in _COUNTS or tensor.numel() == 0:
        return
    largest = float(tensor.abs().max())
    if not largest < _LARGEST:
        bad = int((~torch.isfinite(tensor)).sum())
        what = f"{bad} NaN or infinite in {name}" if bad else f"{largest:.3g} in {name}"
        raise CheckpointError(
            f"expected finite weights in {path}, got {what}; use a checkpoint from before it broke"
        )


def bare_names(names: Iterable[str]) -> dict[str, str]:
    """Each name without the wrappers' prefix that all names share."""
    names = list(names)
    prefix = _PREFIXES.match(_common_start(names))
    return {name: name[prefix.end() :] if prefix else name for name in names}


def _common_start(names: list[str]) -> str:
    """The longest prefix that all names share."""
    least, most = min(names, default=""), max(names, default="")
    return next((least[:k] for k, char in enumerate(least) if most[k] != char), least)


def is_extra(name: str) -> bool:
    """Whether an entry is the extra state of a module (`get_extra_state`), which is no weight."""
    return name.rpartition(".")[2] == "_extra_state"


def _read_torch(path: Path) -> tuple[dict[str, Tensor], frozenset[str], dict[str, int]]:
    try:
        with open_torch_file(path) as file:
            state = _state_dict(file, path)
            weights = {
                name: asked
                for name, value in state.items()
                if (asked := _weight(file, value)) is not None
            }
            tensors = {str(name): file.tensor(asked) for name, asked in weights.items()}
            if len(tensors) != len(weights):
                twice = next(
                    name for name in weights if not isinstance(name, str) and str(name) in weights
                )
                raise CheckpointError(
                    f"expected a name for each tensor in {path}, got {twice!r} and '{twice}'; name "
                    "them apart"
                )
            return tensors, *_beside(file.content, without=state)
    except Forbidden as error:
        raise CheckpointError(
            f"expected plain tensors in {path}, got pickled code that loading would run ({error}); "
            "it was not run: "
            "save model.state_dict(), best as .safetensors"
        ) from None
    except (
        ValueError,
        OSError,
        EOFError,
        RuntimeError,
        struct.error,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise CheckpointError(
            f"expected a whole .pt file at {path}, got: {error}; copy or save it again"
        ) from None


def _state_dict(file: TorchFile, path: Path) -> dict[Any, Any]:
    """The state dict of a file: its content, an entry with a usual name, or the only entry that
    fits."""
    content = file.content
    for _ in range(4):  # A hostile dictionary may contain itself.
        if not isinstance(content, dict) or _is_state_dict(file, content):
            break
        inner = [content[key] for key in _WRAPPERS if isinstance(content.get(key), dict)]
        if not inner:  # Each is tested once: many keys may share one large dictionary.
            each = {id(value): value for value in content.values() if isinstance(value, dict)}
            inner = [value for value in each.values() if _is_state_dict(file, value)]
            if len(inner) > 1:
                several = [
                    str(key)[:40]
                    for key, value in content.items()
                    if any(value is one for one in inner[:4])
                ]
                raise CheckpointError(
                    f"expected one state dict in {path}, got {', '.join(several[:4])}; save the "
                    "one to look at alone"
                )
        if not inner:
            break
        content = inner[0]
    if isinstance(content, dict) and _is_state_dict(file, content):
        return content
    kind = "a call" if isinstance(content, Asked) else type(content).__name__
    found = (
        ", ".join(str(key)[:40] for key in list(content)[:4]) if isinstance(content, dict) else kind
    )
    raise CheckpointError(
        f"expected a state dict of tensors in {path}, got {found or 'an empty one'}; save "
        "model.state_dict()"
    )


def _is_state_dict(file: TorchFile, content: Mapping[Any, Any]) -> bool:
    tensors = 0
    for name, value in content.items():
        if _weight(file, value) is not None and isinstance(name, (str, int)):
            tensors += 1
        elif value is not None and not isinstance(value, Name) and not is_extra(str(name)):
            return False
    return tensors > 0


def _weight(file: TorchFile, value: Any) -> Asked | None:
    """The tensor in a value of a state dict, or None. For the weight and bias of a quantised layer
    it is the weight."""
    if isinstance(value, tuple) and value and file.is_quantised(value[0]):
        value = value[0]
    return value if isinstance(value, Asked) and file.is_tensor(value) else None


def _beside(content: Any, without: object) -> tuple[frozenset[str], dict[str, int]]:
    """All keys in the content except those of one dictionary, and the numbers that count training.

    Each object is visited once, however often it is referenced.
    """
    keys: set[str] = set()
    counts: dict[str, int] = {}
    seen, left = {id(without)}, [content]
    while left:
        one = left.pop()
        if id(one) in seen or not isinstance(one, (dict, list, tuple, Asked)):
            continue
        seen.add(id(one))
        if isinstance(one, dict):
            for key, value in one.items():
                if isinstance(key, str):
                    keys.add(key)
                if key in COUNTERS and type(value) is int:
                    counts[key] = max(value, counts.get(key, value))
            left += one.values()
        else:
            left += (one.args, one.state) if isinstance(one, Asked) else one
    return frozenset(keys), counts
