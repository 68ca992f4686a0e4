"""CIFAR-10 from the standard batches in a folder, binary or python, without running any code found in them.

The python batches are pickles. They are read with an unpickler that knows three names, all of them inert records of
our own: what a pickle asks for is written down, and only if that is a plain array of bytes is one built.
"""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recollect.errors import DataError
from recollect.files import write_files

URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
SHA256 = "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"
SIZE = 170_052_171
_RECORD = 1 + 3 * 32 * 32
_BATCHES = range(1, 6)


def default_folder() -> Path:
    """$RECOLLECT_DATA/cifar10, or the user's cache."""
    root = os.environ.get("RECOLLECT_DATA")
    return Path(root) / "cifar10" if root else Path.home() / ".cache" / "recollect" / "cifar10"


def is_cifar10(folder: Path) -> bool:
    return _find(folder) is not None


def load_cifar10(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training images N×32×32×3 and labels, in the order of the batches that are there."""
    found = _find(folder)
    if found is None:
        raise DataError(
            f"expected data_batch_1 … data_batch_5 (with or without .bin) in {folder}, got none; give the unpacked "
            "CIFAR-10 folder"
        )
    parts = [_read_binary(path) if path.suffix == ".bin" else _read_python(path) for path in found]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def download_cifar10(folder: Path) -> None:
    """Fetch the binary archive, check its SHA-256, and keep its training batches."""
    try:
        with urllib.request.urlopen(URL, timeout=60) as response:
            archive = response.read(SIZE + 1)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"expected CIFAR-10 in {folder} or a network to fetch it, got neither ({reason}); unpack "
            f"{URL.rpartition('/')[2]} there, or use --dataset photos"
        ) from None
    if hashlib.sha256(archive).hexdigest() != SHA256:
        raise DataError(f"expected the CIFAR-10 archive with SHA-256 {SHA256[:12]}…, got another file; fetch it again")
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        batches: dict[Path, bytes] = {}
        for number in _BATCHES:
            member = tar.extractfile(f"cifar-10-batches-bin/data_batch_{number}.bin")
            if member is None:
                raise DataError(f"expected data_batch_{number}.bin in the archive, got none; fetch it again")
            batches[folder / f"data_batch_{number}.bin"] = member.read(10_000 * _RECORD + 1)
    write_files(batches)  # all five or none: a folder with some would later pass for the whole


def _find(folder: Path) -> list[Path] | None:
    for inner in (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"):
        for suffix in (".bin", ""):
            found = [path for number in _BATCHES if (path := inner / f"data_batch_{number}{suffix}").is_file()]
            if found:
                return found
    return None


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % _RECORD:
        raise DataError(f"expected records of {_RECORD} bytes in {path}, got {len(content)} bytes; copy the file again")
    records = content.reshape(-1, _RECORD)
    return _images(records[:, 1:]), _labels(records[:, 0], path)


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.stat().st_size > 2**28:
        raise DataError(
            f"expected a batch of about 31 MB at {path}, got {path.stat().st_size >> 20} MB; check its origin"
        )
    try:
        content = _Inert(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except DataError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise DataError(
            f"expected a CIFAR-10 batch at {path}, got a damaged pickle ({type(error).__name__}); copy the file again"
        ) from None
    if not isinstance(content, dict):
        raise DataError(f"expected a dictionary in {path}, got {type(content).__name__}; copy the file again")
    content = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    data, labels = content.get("data"), content.get("labels")
    if (
        not isinstance(data, _Array)
        or not isinstance(labels, list)
        or not all(isinstance(label, int) for label in labels)
    ):
        raise DataError(
            f"expected `data` and `labels` in {path}, got {', '.join(map(str, list(content)[:5]))}; copy the file again"
        )
    pixels = data.build(path)
    if pixels.shape != (len(labels), _RECORD - 1):
        raise DataError(
            f"expected {len(labels)}×{_RECORD - 1} bytes in {path}, got {list(pixels.shape)}; copy the file again"
        )
    return _images(pixels), _labels(np.array(labels), path)


def _images(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _labels(labels: np.ndarray, path: Path) -> np.ndarray:
    if labels.min(initial=0) < 0 or labels.max(initial=0) > 9:
        raise DataError(f"expected labels 0 to 9 in {path}, got {labels.max()}; this is not CIFAR-10")
    return labels.astype(np.int64)


class _Array:
    """What a pickled numpy array says of itself; nothing is built until it has been looked at."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def build(self, path: Path) -> np.ndarray:
        try:
            _version, shape, dtype, fortran, raw = self.state
            plain = isinstance(dtype, _Dtype) and dtype.code in ("u1", b"u1") and isinstance(raw, bytes)
            rows, columns = (int(size) for size in shape)
            if not plain or rows * columns != len(raw):
                raise ValueError
        except (TypeError, ValueError):
            raise DataError(
                f"expected a plain array of bytes in {path}, got something else; copy the file again"
            ) from None
        return np.frombuffer(raw, dtype=np.uint8).reshape(rows, columns, order="F" if fortran else "C")


class _Dtype:
    def __init__(self, code: Any = None, *_: Any) -> None:
        self.code = code

    def __setstate__(self, state: Any) -> None:
        """Byte order and the like: of no meaning for bytes."""


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Stands in for `_codecs.encode`, by which python 3 pickles bytes in protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise DataError("expected text in latin1 in a CIFAR-10 batch, got something else; copy the file again")
    return text.encode("latin1")


class _Inert(pickle.Unpickler):
    """An unpickler from which no code can be reached."""

    _NAMES: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): _Array,
        ("numpy._core.multiarray", "_reconstruct"): _Array,
        ("numpy", "ndarray"): _Array,
        ("numpy", "dtype"): _Dtype,
        ("_codecs", "encode"): _encode,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._NAMES:
            raise DataError(
                f"expected plain arrays in a CIFAR-10 batch, got a pickle that asks for {module}.{name}; it was not "
                "run: check the file's origin"
            )
        return self._NAMES[module, name]

    def persistent_load(self, pid: Any) -> Any:
        raise DataError(
            "expected plain arrays in a CIFAR-10 batch, got a persistent reference; check the file's origin"
        )
