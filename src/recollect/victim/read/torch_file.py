"""Reads files of `torch.save` without `torch.load`. Tensors are views of bytes that the file holds.

`torch.load` with `weights_only=True` runs no code of a file, but a file of some hundred bytes can
still ask for tensors of terabytes or crash the process.
"""

from __future__ import annotations

import io
import math
import mmap
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from recollect.shapes import Tensor
from recollect.system.files import read_member
from recollect.victim.read.pickles import Asked, Name, read_pickle

_MAGIC = 0x1950A86A20F9469CFC6C
"""The first value in a file from before torch 1.6, which is not a zip archive."""
_STORAGES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
    "torch.ComplexDoubleStorage": torch.complex128,
    "torch.ComplexFloatStorage": torch.complex64,
    "torch.QInt8Storage": torch.qint8,
    "torch.QUInt8Storage": torch.quint8,
    "torch.QInt32Storage": torch.qint32,
    "torch.storage.UntypedStorage": torch.uint8,
}
_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
_REBUILT = "torch._utils._rebuild_"
_PLAIN = {f"{_REBUILT}tensor", f"{_REBUILT}tensor_v2", f"{_REBUILT}tensor_v3"}
_AROUND = {
    f"{_REBUILT}parameter",
    f"{_REBUILT}parameter_with_state",
    "torch.nn.parameter.Parameter",
}
_QUANTISED = f"{_REBUILT}qtensor"
_OTHER = {_QUANTISED, f"{_REBUILT}sparse_tensor", f"{_REBUILT}meta_tensor_no_storage"}
_TYPED = "torch._tensor._rebuild_from_type_v2"
"""Rebuilds a tensor with attributes. Its arguments are a function, a class, and the function's
arguments."""
_TENSORS = _PLAIN | _AROUND | _OTHER | {_TYPED}
_BESIDE = {
    "argparse": ("Namespace",),
    "collections": ("OrderedDict", "Counter", "defaultdict"),
    "datetime": ("date", "datetime", "time", "timedelta", "timezone"),
    "numpy": ("dtype", "ndarray"),
    **dict.fromkeys(
        ("numpy.core.multiarray", "numpy._core.multiarray"), ("_reconstruct", "scalar")
    ),
    **dict.fromkeys(
        ("pathlib", "pathlib._local"),
        ("Path", "PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"),
    ),
    **dict.fromkeys(
        ("builtins", "__builtin__"),
        (
            *(
                "bool",
                "bytearray",
                "bytes",
                "complex",
                "dict",
                "float",
                "frozenset",
                "int",
                "list",
                "long",
                "range",
            ),
            *("set", "slice", "str", "tuple", "unicode", "xrange"),
        ),
    ),
}
"""By module, the types of settings, scores and dates that people save with their weights."""
_NAMES = {
    *_STORAGES,
    *_DTYPES,
    *_TENSORS,
    *("torch.Tensor", "torch.Size", "torch.device", "_codecs.encode"),
    *("torch.per_tensor_affine", "torch.per_channel_affine", "torch.serialization._get_layout"),
    *(f"{module}.{name}" for module, names in _BESIDE.items() for name in names),
}
"""The names that the pickle of an ordinary checkpoint uses. None is called, or even imported."""


@dataclass(frozen=True)
class _Storage:
    dtype: torch.dtype
    key: str
    count: int


class TorchFile:
    """The content of a file, as `read_pickle` returns it, and the tensors that it refers to."""

    def __init__(self, content: Any, storage: Callable[[str], bytearray], size: int) -> None:
        self.content = content
        self._storage = lru_cache(maxsize=None)(lambda key: _bytes(storage(key)))
        self._left = (
            4 * size + 2**26
        )  # Limit in bytes. Shared and expanded tensors count each time, but there are few.

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, Asked) and value.name in _TENSORS

    def is_quantised(self, value: Any) -> bool:
        return isinstance(value, Asked) and value.name == _QUANTISED

    def tensor(self, asked: Asked) -> Tensor:
        """The tensor that a call describes; it is on the device `meta` if it is not a plain tensor.

        Raises ValueError if the description is not valid.
        """
        for _ in range(4):  # a parameter may be wrapped around a parameter
            if asked.name in _AROUND:
                asked = _one(Asked, asked.args[:1])
            elif asked.name == _TYPED:
                asked = Asked(_one(Name, asked.args[:1]).name, _one(tuple, asked.args[2:3]))
        if asked.name in _PLAIN and len(asked.args) >= 4:
            storage, offset, size, stride = asked.args[:4]
            more = asked.args[6:]
            dtype = _dtype(more[0]) if asked.name.endswith("v3") and more else None
            if (more[1:] if dtype else more) not in ((), (None,)):
                raise ValueError("a tensor that is to be conjugated or negated")
            return self._plain(
                _one(_Storage, (storage,)), dtype, offset, _shape(size), _sizes(stride)
            )
        if asked.name == _QUANTISED and len(asked.args) >= 3:
            return torch.empty(
                _shape(asked.args[2]), dtype=_one(_Storage, asked.args[:1]).dtype, device="meta"
            )
        if asked.name == f"{_REBUILT}sparse_tensor":
            return torch.empty((1, 1), layout=torch.sparse_coo, device="meta")
        if asked.name == f"{_REBUILT}meta_tensor_no_storage" and len(asked.args) >= 2:
            return torch.empty(_shape(asked.args[1]), dtype=_dtype(asked.args[0]), device="meta")
        raise ValueError(f"{asked.name} of nothing")

    def _plain(
        self,
        storage: _Storage,
        dtype: torch.dtype | None,
        offset: Any,
        size: tuple[int, ...],
        stride: tuple[int, ...],
    ) -> Tensor:
        dtype = dtype or storage.dtype
        (offset,) = _sizes((offset,))
        self._left -= math.prod(size) * dtype.itemsize
        if self._left < 0:
            raise ValueError(f"a tensor of shape {list(size)[:9]}, more than the file can hold")
        held = self._storage(storage.key)
        flat = held[: len(held) // dtype.itemsize * dtype.itemsize].view(dtype)
        if len(size) != len(stride):
            raise ValueError("a shape of other length than its strides")
        end = offset + 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
        if math.prod(size) and end > min(
            len(flat), storage.count * storage.dtype.itemsize // dtype.itemsize
        ):
            raise ValueError(f"a tensor of shape {list(size)[:9]}, beyond the end of its data")
        return flat.as_strided(size, stride, offset) if math.prod(size) else flat.new_empty(size)


@contextmanager
def open_torch_file(path: Path) -> Iterator[TorchFile]:
    """Open a file of `torch.save`.

    Raises ValueError (or an error of `zipfile`) if the file is damaged, and `Forbidden` if it asks
    for code.
    """
    with path.open("rb") as stream:
        if stream.read(4) == b"PK\x03\x04":
            with zipfile.ZipFile(stream) as archive:
                members = _Members(archive, path.stat().st_size)
                yield TorchFile(members.content(), members.storage, path.stat().st_size)
        else:
            with mmap.mmap(
                stream.fileno(), 0, access=mmap.ACCESS_READ
            ) as whole:  # Its `read` does not allocate memory in advance.
                old = _Old(whole)
                yield TorchFile(old.content, old.storage, len(whole))


class _Members:
    """A zip archive. The pickle is `NAME/data.pkl`, and each storage is `NAME/data/KEY`."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._entries = {entry.filename: entry for entry in archive.infolist()}
        unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > size:
            raise ValueError(f"an archive of {size} bytes that unpacks to {unpacked}")
        # Torch does not compress, and the libraries that unpack raise many kinds of errors.
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("a compressed archive, which torch.save does not write")
        found = [
            name for name in self._entries if name.endswith("/data.pkl") and name.count("/") == 1
        ]
        if len(found) != 1 or len(self._entries) != len(archive.infolist()):
            raise ValueError("an archive without one data.pkl")
        self._folder = found[0].removesuffix("data.pkl")
        order = self._entries.get(f"{self._folder}byteorder")
        if order is not None and bytes(read_member(archive, order)) != b"little":
            raise ValueError("weights of a big-endian machine")

    def content(self) -> Any:
        code = read_member(self._archive, self._entries[f"{self._folder}data.pkl"])
        return read_pickle(io.BytesIO(code), _NAMES, _storage)

    def storage(self, key: str) -> bytearray:
        name = f"{self._folder}data/{key}"
        if name not in self._entries:
            raise ValueError(f"no data {key[:40]} in the archive")
        return read_member(self._archive, self._entries[name])


class _Old:
    """A file from before torch 1.6: several pickles, and then each storage, preceded by its
    length."""

    def __init__(self, whole: mmap.mmap) -> None:
        self._whole = whole
        whole.seek(0)
        dtypes: dict[str, torch.dtype] = {}

        def outside(said: Any) -> _Storage:
            storage = _storage(said)
            return _Storage(
                dtypes.setdefault(storage.key, storage.dtype), storage.key, storage.count
            )

        if read_pickle(whole, ()) != _MAGIC:
            raise ValueError("neither an archive nor a file of an old torch")
        _protocol, facts = read_pickle(whole, ()), read_pickle(whole, ())
        if not isinstance(facts, dict) or facts.get("little_endian", True) is not True:
            raise ValueError("weights of a big-endian machine")
        self.content = read_pickle(whole, _NAMES, outside)
        self._spans: dict[str, slice] = {}
        for key in _one(list, (read_pickle(whole, ()),)):
            if not isinstance(key, str) or key not in dtypes:
                raise ValueError("data that no tensor has")
            (count,) = struct.unpack("<q", whole.read(8).ljust(8, b"\xff"))
            start = whole.tell()
            if not 0 <= count <= (len(whole) - start) // dtypes[key].itemsize:
                raise ValueError("data that end early")
            self._spans[key] = slice(start, start + count * dtypes[key].itemsize)
            whole.seek(self._spans[key].stop)

    def storage(self, key: str) -> bytearray:
        if key not in self._spans:
            raise ValueError(f"no data {key[:40]} in the file")
        return bytearray(self._whole[self._spans[key]])


def _bytes(content: bytearray) -> Tensor:
    return (
        torch.frombuffer(content, dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )


def _storage(said: Any) -> _Storage:
    """A storage from ('storage', kind, key, device, count). Old files add None at the end."""
    fits = isinstance(said, tuple) and len(said) in (5, 6) and said[0] == "storage"
    if (
        not fits
        or not isinstance(said[1], Name)
        or said[1].name not in _STORAGES
        or said[5:] not in ((), (None,))
    ):
        raise ValueError("a reference to something that is no storage")
    (count,) = _sizes((said[4],))
    key = _one(str, (said[2],))
    if len(key) > 100:  # Thousands of tensors may repeat it.
        raise ValueError("a storage of too long a name")
    return _Storage(_STORAGES[said[1].name], key, count)


def _dtype(value: Any) -> torch.dtype:
    name = value.name if isinstance(value, Name) else None
    if name not in _DTYPES:
        raise ValueError("a tensor of no known type")
    return _DTYPES[name]


def _sizes(value: Any) -> tuple[int, ...]:
    """Check that a shape, strides or an offset consist of a few integers of ordinary size."""
    if isinstance(value, Asked) and value.name == "torch.Size" and len(value.args) == 1:
        value = value.args[0]
    if not isinstance(value, (tuple, list)) or len(value) > 64:
        raise ValueError("a shape that is none")
    if not all(type(size) is int and 0 <= size < 2**48 for size in value):
        raise ValueError("a shape of other than whole numbers")
    return tuple(value)


def _shape(value: Any) -> tuple[int, ...]:
    sizes = _sizes(value)
    if math.prod(max(size, 1) for size in sizes) > 2**48:
        raise ValueError(f"a tensor of shape {list(sizes)[:9]}, more than any file can hold")
    return sizes


def _one(kind: type, values: tuple[Any, ...]) -> Any:
    if len(values) != 1 or not isinstance(values[0], kind):
        raise ValueError(f"no {kind.__name__.lower().strip('_')} where there should be one")
    return values[0]
