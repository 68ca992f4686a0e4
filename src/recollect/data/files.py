"""Data sets from files: `.npz` archives, and folders of images."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path

import numpy as np

from recollect.errors import DataError

_LIMIT = 8 * 2**30
_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def load_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an `.npz`; pickled objects are refused, and so is an archive that would unpack to over 8 GiB."""
    if not path.is_file():
        raise DataError(f"expected an .npz file at {path}, got nothing there; check the path")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > _LIMIT:
            raise DataError(
                f"expected at most {_LIMIT >> 30} GiB in {path}, got a file that unpacks to {size >> 30} GiB; make "
                "it smaller"
            )
        with np.load(path, allow_pickle=False) as content:
            arrays = {name: content[name] for name in content.files}
        return {name: array.astype(array.dtype.newbyteorder("="), copy=False) for name, array in arrays.items()}
    except DataError:
        raise
    except Exception as error:  # numpy and zipfile raise many kinds on damaged files
        raise DataError(
            f"expected a whole .npz of plain arrays at {path}, got: {' '.join(str(error).split())[:160]}; save it again"
        ) from None


def load_image_folder(folder: Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Images, labels, number of classes. Each subfolder is a class, in alphabetical order; without any, all are one."""
    from PIL import Image

    subfolders = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    groups = [group for group in map(_images_in, subfolders) if group] or [_images_in(folder)]
    if not groups[0]:
        raise DataError(f"expected images (.png, .jpg, …) in {folder}, got none; check the folder")
    images: list[np.ndarray] = []
    for path in (path for group in groups for path in group):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(path) as picture:
                    images.append(np.asarray(picture.convert("RGB")))
        except (
            OSError,
            ValueError,
            SyntaxError,
            Image.DecompressionBombError,
            Image.DecompressionBombWarning,
        ) as error:
            raise DataError(
                f"expected an image at {path}, got: {' '.join(str(error).split())[:160]}; remove or replace it"
            ) from None
        if images[-1].shape != images[0].shape:
            (h, w), (h0, w0) = images[-1].shape[:2], images[0].shape[:2]
            raise DataError(
                f"expected images of one size, got {w}×{h} in {path.name} after {w0}×{h0}; resize them to one size"
            )
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    return np.stack(images), labels, len(groups)


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and path.is_file())
