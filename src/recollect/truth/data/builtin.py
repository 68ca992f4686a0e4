"""Two real image sets that need no download: crops of scikit-learn's two photographs, and its
handwritten digits."""

from __future__ import annotations

import numpy as np

_SIDE = 32
_STRIDE = 16
_MINIMUM_CONTRAST = 16.0
"""Standard deviation in grey levels. A crop below it shows only sky or background."""
_MAXIMUM_COSINE = 0.9
"""Two crops whose cosine after standardisation is above this are near-duplicates."""


def photos() -> tuple[np.ndarray, np.ndarray]:
    """32×32 colour crops at half resolution, the most different ones first, and their labels: 0
    (temple) and 1 (flower).

    Crops are chosen greedily: each is the one least similar to all chosen before, until the next
    would be a near-duplicate. The first n crops are therefore well spread. Similarity is the cosine
    after subtracting one scalar mean, because the network will see the crops in this form.
    """
    from sklearn.datasets import load_sample_image

    crops = [_crops(_halve(load_sample_image(name))) for name in ("china.jpg", "flower.jpg")]
    images = np.concatenate(crops)
    labels = np.repeat([0, 1], [len(part) for part in crops])
    flat = images.reshape(len(images), -1).astype(np.float64)
    flat -= flat.mean()
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    order = _spread(np.abs(flat @ flat.T), labels)
    return images[order], labels[order]


def digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 handwritten digits, 8×8 grey levels, in file order."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.round(bunch.images * (255 / 16)).astype(np.uint8), bunch.target.astype(np.int64)


def _halve(photo: np.ndarray) -> np.ndarray:
    height, width = photo.shape[0] // 2, photo.shape[1] // 2
    blocks = photo[: 2 * height, : 2 * width].reshape(height, 2, width, 2, 3)
    half: np.ndarray = np.round(blocks.mean(axis=(1, 3))).astype(np.uint8)
    return half


def _crops(photo: np.ndarray) -> np.ndarray:
    rows = range(0, photo.shape[0] - _SIDE + 1, _STRIDE)
    columns = range(0, photo.shape[1] - _SIDE + 1, _STRIDE)
    crops = np.stack([photo[i : i + _SIDE, j : j + _SIDE] for i in rows for j in columns])
    chosen: np.ndarray = crops[crops.std(axis=(1, 2, 3)) >= _MINIMUM_CONTRAST]
    return chosen


def _spread(likeness: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Indices in greedy order. The two labels alternate, and each pick is the one least similar to
    all earlier picks."""
    worst = likeness.mean(axis=1)  # the first pick is the crop least similar to the rest
    order: list[int] = []
    live = True
    while live:
        live = False
        for label in (0, 1):
            candidates = np.where(labels == label, worst, np.inf)
            pick = int(np.argmin(candidates))
            if candidates[pick] > _MAXIMUM_COSINE:
                continue
            worst = likeness[pick].copy() if not order else np.maximum(worst, likeness[pick])
            worst[[*order, pick]] = np.inf
            order.append(pick)
            live = True
    return np.array(order)
