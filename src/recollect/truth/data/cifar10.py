"""CIFAR-10 from the standard batches in a folder, binary or Python, without running any code found
in them.

The Python batches are pickles. `recollect.victim.read.pickles` records the calls in a pickle
without making them. An array is built only if these calls describe a plain array of bytes.
"""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from recollect.errors import DataError
from recollect.system.files import write_files
from recollect.victim.read.pickles import Forbidden, as_bytes, read_pickle

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
            f"expected data_batch_1 … data_batch_5 (with or without .bin) in {folder}, got none; "
            "give the unpacked "
            "CIFAR-10 folder"
        )
    parts = [_read_binary(path) if path.suffix == ".bin" else _read_python(path) for path in found]
    return np.concatenate([images for images, _ in parts]), np.concatenate(
        [labels for _, labels in parts]
    )


def download_cifar10(folder: Path) -> None:
    """Fetch the binary archive, check its SHA-256, and keep its training batches."""
    try:
        with urllib.request.urlopen(URL, timeout=60) as response:
            archive = response.read(SIZE + 1)
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"expected CIFAR-10 in {folder} or a network to fetch it, got neither ({reason}); "
            "unpack "
            f"{URL.rpartition('/')[2]} there, or use --dataset photos"
        ) from None
    if hashlib.sha256(archive).hexdigest() != SHA256:
        raise DataError(
            f"expected the CIFAR-10 archive with SHA-256 {SHA256[:12]}…, got another file; fetch "
            "it again"
        )
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        batches: dict[Path, bytes] = {}
        for number in _BATCHES:
            member = tar.extractfile(f"cifar-10-batches-bin/data_batch_{number}.bin")
            if member is None:
                raise DataError(
                    f"expected data_batch_{number}.bin in the archive, got none; fetch it again"
                )
            batches[folder / f"data_batch_{number}.bin"] = member.read(10_000 * _RECORD + 1)
    write_files(batches)  # all at once: a folder with only some would later pass as complete


def _find(folder: Path) -> list[Path] | None:
    for inner in (folder, folder / "cifar-10-batches-bin", folder / "cifar-10-batches-py"):
        for suffix in (".bin", ""):
            found = [
                path
                for number in _BATCHES
                if (path := inner / f"data_batch_{number}{suffix}").is_file()
            ]
            if found:
                return found
    return None


def _read_binary(path: Path) -> tuple[np.ndarray, np.ndarray]:
    content = np.fromfile(path, dtype=np.uint8)
    if len(content) == 0 or len(content) % _RECORD:
        raise DataError(
            f"expected records of {_RECORD} bytes in {path}, got {len(content)} bytes; copy the "
            "file again"
        )
    records = content.reshape(-1, _RECORD)
    if records[:, 0].max() > 9:
        raise DataError(
            f"expected labels 0 to 9 in {path}, got {records[:, 0].max()}; this is not CIFAR-10"
        )
    return _images(records[:, 1:]), records[:, 0].astype(np.int64)


def _read_python(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if path.stat().st_size > 2**28:
        raise DataError(
            f"expected a batch of about 31 MB at {path}, got {path.stat().st_size >> 20} MB; check "
            "its origin"
        )
    try:
        content = read_pickle(io.BytesIO(path.read_bytes()), _NAMES)
    except Forbidden as error:
        raise DataError(
            f"expected plain arrays in {path}, got a pickle that asks for {error}; it was not run: "
            "check the file's "
            "origin"
        ) from None
    except ValueError as error:
        raise DataError(
            f"expected a CIFAR-10 batch at {path}, got a damaged pickle: {error}; copy the file "
            "again"
        ) from None
    if not isinstance(content, dict):
        raise DataError(
            f"expected a dictionary in {path}, got {type(content).__name__}; copy the file again"
        )
    content = {
        key.decode("latin1") if isinstance(key, bytes) else key: value
        for key, value in content.items()
    }
    labels = content.get("labels")
    if (
        "data" not in content
        or not isinstance(labels, list)
        or not all(type(label) is int for label in labels)
    ):
        raise DataError(
            f"expected `data` and `labels` in {path}, got "
            f"{', '.join(map(str, list(content)[:5]))}; copy the file again"
        )
    pixels = _array(content["data"], path)
    if pixels.shape != (len(labels), _RECORD - 1):
        raise DataError(
            f"expected {len(labels)}×{_RECORD - 1} bytes in {path}, got {list(pixels.shape)}; copy "
            "the file again"
        )
    if not all(0 <= label <= 9 for label in labels):
        raise DataError(f"expected labels 0 to 9 in {path}, got others; this is not CIFAR-10")
    return _images(pixels), np.array(labels, dtype=np.int64)


def _images(rows: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(rows.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


_NAMES = (
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray._reconstruct",
    "numpy.ndarray",
    "numpy.dtype",
    "_codecs.encode",
)


def _array(asked: Any, path: Path) -> np.ndarray:
    """The array that a pickle describes, if it is a plain array of bytes."""
    try:
        _version, (rows, columns), dtype, fortran, raw = asked.state
        raw = as_bytes(raw)
        if dtype.name != "numpy.dtype" or dtype.args[0] not in ("u1", b"u1"):
            raise ValueError
        sizes = all(type(size) is int and 0 <= size <= len(raw) for size in (rows, columns))
        if not sizes or rows * columns != len(raw):
            raise ValueError
    except (AttributeError, TypeError, ValueError, IndexError):
        raise DataError(
            f"expected a plain array of bytes in {path}, got something else; copy the file again"
        ) from None
    return np.frombuffer(raw, dtype=np.uint8).reshape(rows, columns, order="F" if fortran else "C")
