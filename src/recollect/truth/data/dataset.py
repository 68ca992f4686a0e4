"""A data set as the victim sees it: inputs on the sphere, their span, and targets."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from recollect.errors import DataError, OptionError
from recollect.shapes import Float, Tensor
from recollect.truth.images import PixelSpace

_LARGEST = 2**22


@dataclass(frozen=True)
class Dataset:
    """Everything about the training data, in float64. Only training and scoring may see it."""

    inputs: Float[Tensor, "n d"]
    targets: Float[Tensor, "n c"]
    basis: Float[Tensor, "d r"]
    norms: Float[Tensor, " n"]
    """‖u_i‖ before scaling to √d."""
    pixel_space: PixelSpace | None = None

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        return None if self.pixel_space is None else self.pixel_space.shape


def from_images(
    images: np.ndarray, labels: np.ndarray, n: int, *, classes: int, keep_norms: bool = False
) -> Dataset:
    """A data set of n of the images (N×H×W or N×H×W×3 bytes), with equal counts of each class in
    file order and one-hot targets."""
    if images.ndim == 3:
        images = images[..., None]
    if (
        images.ndim != 4
        or images.dtype != np.uint8
        or images.shape[3] not in (1, 3)
        or images.size == 0
    ):
        raise DataError(
            f"expected images N×H×W or N×H×W×3 as bytes, got {list(images.shape)} {images.dtype}; "
            "convert them"
        )
    check_size(images[0].size)
    chosen = equal_counts(labels, n, classes)
    pixels = (
        torch.from_numpy(np.ascontiguousarray(images[chosen])).permute(0, 3, 1, 2).double() / 255
    )
    space = PixelSpace(
        (pixels.shape[1], pixels.shape[2], pixels.shape[3]),
        float(pixels.mean()),
        float(pixels.std(correction=0)),
    )
    if space.std == 0:
        raise DataError(
            "expected images that differ from one another, got a single colour throughout; choose "
            "other images"
        )
    targets = torch.nn.functional.one_hot(torch.from_numpy(labels[chosen]).long(), classes).double()
    return from_arrays(
        space.standardise(pixels.flatten(1)), targets, keep_norms=keep_norms, pixel_space=space
    )


def from_arrays(
    inputs: Float[Tensor, "n d"],
    targets: Float[Tensor, "n c"],
    *,
    keep_norms: bool = False,
    pixel_space: PixelSpace | None = None,
) -> Dataset:
    """A data set with these rows, scaled to norm √d (as:data_on_sphere) unless `keep_norms` is set.
    Its basis is an orthonormal basis of the span of the rows."""
    check_size(inputs.shape[1])
    inputs, targets = inputs.double(), targets.double()
    if not inputs.numel() or not targets.numel():
        raise DataError(
            f"expected inputs and targets, got {list(inputs.shape)} and {list(targets.shape)}; "
            "check the data"
        )
    if not all(float(part.abs().max()) < 1e100 for part in (inputs, targets)):
        raise DataError(
            "expected finite inputs and targets, got NaN, infinite or enormous values; clean the "
            "data"
        )
    norms = torch.linalg.vector_norm(inputs, dim=1)
    if not (norms > 0).all():
        raise DataError(
            f"expected inputs other than zero, got {int((norms == 0).sum())} zero rows; remove them"
        )
    if not keep_norms:
        inputs = math.sqrt(inputs.shape[1]) * inputs / norms[:, None]
    return Dataset(inputs, targets, span_of(inputs), norms, pixel_space)


def check_size(d: int) -> None:
    """Refuse points that are too large. A kilobyte of compressed zeros can be an image of any size,
    and no network takes that many inputs."""
    if d > _LARGEST:
        raise DataError(
            f"expected at most {_LARGEST} numbers a point, got {d}; make the images smaller"
        )


def span_of(X: Float[Tensor, "n d"]) -> Float[Tensor, "d r"]:
    """Orthonormal columns that span the rows of X."""
    _, s, Vh = torch.linalg.svd(X, full_matrices=False)
    rank = int((s > s[0] * max(X.shape) * torch.finfo(X.dtype).eps).sum())
    basis: Tensor = Vh[:rank].T.contiguous()
    return basis


def equal_counts(labels: np.ndarray, n: int, classes: int) -> np.ndarray:
    """Indices of n points, spread over the classes as evenly as n allows. They are sorted by class,
    and are in file order within each class."""
    if not 1 <= n <= 10**8:
        raise OptionError(
            f"expected --n between 1 and 10⁸, got {n:.6g}; ask for another number of points"
        )
    share, extra = divmod(n, classes)
    chosen = []
    for label in range(classes):
        wanted = share + (label < extra)
        if not wanted:  # nor from any later class; a file may declare thousands of classes
            break
        found = np.flatnonzero(labels == label)[:wanted]
        if len(found) < wanted:
            raise OptionError(
                f"expected at least {wanted} points of class {label} for --n {n}, got "
                f"{len(found)}; ask for fewer"
            )
        chosen.append(found)
    return np.concatenate(chosen)
