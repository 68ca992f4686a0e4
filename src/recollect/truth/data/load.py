"""The data set that `--dataset` gives: a name, or the path of a folder or an `.npz` file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from recollect.errors import DataError, OptionError
from recollect.truth.data.builtin import digits, photos
from recollect.truth.data.cifar10 import default_folder, download_cifar10, is_cifar10, load_cifar10
from recollect.truth.data.dataset import Dataset, from_arrays, from_images
from recollect.truth.data.files import load_image_folder, load_npz
from recollect.truth.data.synthetic import synthetic


def load_dataset(
    dataset: str,
    n: int,
    *,
    dim: int = 60,
    rank: int = 30,
    noise: float = 0.5,
    seed: int = 0,
    keep_norms: bool = False,
) -> Dataset:
    """Load `synthetic`, `photos`, `digits`, `cifar10`, or a path. `dim`, `rank`, `noise` and `seed`
    are for `synthetic` only."""
    if dataset == "synthetic":
        return synthetic(n=n, dim=dim, rank=rank, noise=noise, seed=seed)
    if dataset in ("photos", "digits"):
        images, labels = photos() if dataset == "photos" else digits()
        return from_images(
            images, labels, n, classes=2 if dataset == "photos" else 10, keep_norms=keep_norms
        )
    if dataset == "cifar10":
        folder = default_folder()
        if not is_cifar10(folder):
            download_cifar10(folder)
        return from_images(*load_cifar10(folder), n, classes=10, keep_norms=keep_norms)
    path = Path(dataset)
    if path.suffix == ".npz":
        return _from_npz(path, n, keep_norms)
    if not path.is_dir():
        raise OptionError(
            "expected --dataset synthetic, photos, digits, cifar10, a folder or an .npz file, got "
            f"{dataset!r}; "
            "check the name"
        )
    if is_cifar10(path):
        return from_images(*load_cifar10(path), n, classes=10, keep_norms=keep_norms)
    images, labels, classes = load_image_folder(path, n)
    return from_images(images, labels, n, classes=classes, keep_norms=keep_norms)


def _from_npz(path: Path, n: int, keep_norms: bool) -> Dataset:
    arrays = load_npz(path)
    if {"images", "labels"} <= set(arrays):
        images, labels = arrays["images"], arrays["labels"]
        if (
            images.ndim == 0
            or labels.ndim != 1
            or len(labels) != len(images)
            or labels.dtype.kind not in "iu"
            or labels.min(initial=0) < 0
        ):
            raise DataError(
                f"expected one whole number a label in {path}, got {list(labels.shape)} "
                f"{labels.dtype}; save "
                "`labels` as N integers from 0"
            )
        if labels.max(initial=0) >= 10_000:
            raise DataError(
                f"expected fewer than 10000 classes in {path}, got label {labels.max()}; number "
                "the classes from 0"
            )
        return from_images(
            images, labels, n, classes=int(labels.max(initial=0)) + 1, keep_norms=keep_norms
        )
    if {"inputs", "targets"} <= set(arrays):
        inputs, targets = arrays["inputs"], arrays["targets"]
        targets = targets[:, None] if targets.ndim == 1 else targets
        numeric = inputs.dtype.kind in "iuf" and targets.dtype.kind in "iuf"
        if inputs.ndim != 2 or targets.ndim != 2 or len(inputs) != len(targets) or not numeric:
            raise DataError(
                f"expected inputs N×d and targets N×c in {path}, got {list(inputs.shape)} and "
                f"{list(targets.shape)}; reshape them"
            )
        if not 1 <= n <= len(inputs):
            raise OptionError(
                f"expected --n between 1 and the {len(inputs)} points in {path}, got {n}; ask for "
                "fewer"
            )
        as_tensor = [torch.from_numpy(array[:n].astype(np.float64)) for array in (inputs, targets)]
        return from_arrays(*as_tensor, keep_norms=keep_norms)
    raise DataError(
        f"expected `images` and `labels`, or `inputs` and `targets`, in {path}, got "
        f"{', '.join(list(arrays)[:6])}; "
        "rename the arrays"
    )
