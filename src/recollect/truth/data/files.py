"""Data sets from files: `.npz` archives, and folders of images."""

from __future__ import annotations

import io
import math
import warnings
import zipfile
from pathlib import Path

import numpy as np

from recollect.errors import DataError
from recollect.system.files import not_a_file, read_member
from recollect.truth.data.dataset import check_size, equal_counts

_LIMIT = 8 * 2**30
_ALWAYS = 2**24
_RATIO = 100
"""An archive may unpack to `_ALWAYS` bytes, or to `_RATIO` times its own size if that is more, but
never to more than `_LIMIT` bytes. Zeros would be compressed to a thousandth of their size."""
_FILE = 2**26
"""Largest size of one image file in bytes. No image that may be unpacked needs nearly as many."""
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""The only formats that are read, whatever a file's name. The readers of other formats call
external programs or are poorly maintained."""
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file. Pickled objects are refused, and so is an archive that unpacks
    to too many bytes."""
    if (other := not_a_file(path)) is not None:
        raise DataError(f"expected an .npz file at {path}, got {other}; check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            size, most = (
                sum(entry.file_size for entry in entries),
                max(_ALWAYS, _RATIO * path.stat().st_size),
            )
            if size > min(_LIMIT, most):
                raise DataError(
                    f"expected at most {min(_LIMIT, most) >> 20} MiB in {path}, got a file that "
                    "unpacks to "
                    f"{size >> 20} MiB; make it smaller, or save it uncompressed"
                )
            if any(
                entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
                for entry in entries
            ):
                raise ValueError("an archive that numpy did not make")
            named = [entry for entry in entries if entry.filename.endswith(".npy")]
            return {
                entry.filename.removesuffix(".npy"): _array(read_member(archive, entry))
                for entry in named
            }
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise DataError(
            f"expected a whole .npz of plain arrays at {path}, got: "
            f"{' '.join(str(error).split())[:160]}; save it again"
        ) from None


def _array(content: bytearray) -> np.ndarray:
    """The array that `np.save` wrote. The size in the header is compared with the data that follow
    it before an array of that size is created."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"an array in version {version[0]}.{version[1]} of the format")
    read_header = (
        np.lib.format.read_array_header_1_0
        if version == (1, 0)
        else np.lib.format.read_array_header_2_0
    )
    shape, fortran, dtype = read_header(stream)
    count = math.prod(shape)
    if (
        dtype.hasobject
        or min(shape, default=0) < 0
        or count * dtype.itemsize > len(content) - stream.tell()
    ):
        raise ValueError(f"a {dtype} array of shape {list(shape)[:9]} in {len(content)} bytes")
    flat = np.frombuffer(content, dtype, count, stream.tell()) if count else np.empty(0, dtype)
    array = flat.reshape(shape, order="F" if fortran else "C")
    return array.astype(dtype.newbyteorder("="), copy=False)


def load_image_folder(folder: Path, n: int) -> tuple[np.ndarray, np.ndarray, int]:
    """The n images that are chosen, their labels, and the number of classes.

    Each subfolder is a class, in alphabetical order. Without subfolders, all images are one class.
    Only the chosen images are opened.
    """
    subfolders = sorted(
        path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    groups = [group for group in map(_images_in, subfolders) if group] or [_images_in(folder)]
    if not groups[0]:
        raise DataError(f"expected images (.png, .jpg, …) in {folder}, got none; check the folder")
    paths = [path for group in groups for path in group]
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    chosen = equal_counts(labels, n, len(groups))
    first = _image(paths[chosen[0]], None)
    size, packed = len(chosen) * first.size, sum(paths[k].stat().st_size for k in chosen)
    most = min(_LIMIT, max(_ALWAYS, _RATIO * packed))
    if size > most:
        raise DataError(
            f"expected at most {most >> 20} MiB of pixels in {folder}, got {size >> 20} MiB; make "
            "the images smaller, "
            "or ask for fewer"
        )
    return (
        np.stack([first, *(_image(paths[k], first) for k in chosen[1:])]),
        labels[chosen],
        len(groups),
    )


def _image(path: Path, like: np.ndarray | None) -> np.ndarray:
    """The pixels, h×w×3. An image that is too large, or not of the size of `like`, is refused
    before it is unpacked."""
    from PIL import Image

    try:
        if path.stat().st_size > _FILE:
            raise ValueError(f"a file of {path.stat().st_size >> 20} MiB")
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # The image is read from memory, where a request for more bytes than exist costs
            # nothing. A read from a file would first allocate that many bytes.
            with Image.open(io.BytesIO(path.read_bytes()), formats=_FORMATS) as picture:
                check_size(3 * math.prod(picture.size))
                if like is not None and picture.size != like.shape[1::-1]:
                    (w, h), (h0, w0) = picture.size, like.shape[:2]
                    raise DataError(
                        f"expected images of one size, got {w}×{h} in {path.name} after {w0}×{h0}; "
                        "resize them to one "
                        "size"
                    )
                return np.asarray(picture.convert("RGB"))
    except (
        OSError,
        ValueError,
        SyntaxError,
        Image.DecompressionBombError,
        Image.DecompressionBombWarning,
    ) as error:
        raise DataError(
            f"expected an image at {path}, got: {' '.join(str(error).split())[:160]}; remove or "
            "replace it"
        ) from None


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file()
    )
