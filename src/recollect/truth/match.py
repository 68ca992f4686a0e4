"""Which reconstruction belongs to which true point: the assignment of least total distance, which
is Π in the definition of ρ."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment

from recollect.shapes import Float, Int, Tensor


@dataclass(frozen=True)
class Matching:
    """Pairs (truth[k], found[k]), sorted by truth. If n̂ ≠ n, some points of the larger set have no
    match."""

    truth: Int[Tensor, " k"]
    found: Int[Tensor, " k"]
    distances: Float[Tensor, " k"]


def match(distances: Float[Tensor, "n m"]) -> Matching:
    rows, columns = linear_sum_assignment(distances.cpu().numpy())
    truth, found = torch.from_numpy(rows), torch.from_numpy(columns)
    return Matching(truth, found, distances[truth, found])


def signed_distances(X: Float[Tensor, "n d"], X_hat: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """‖x_i − x̂_j‖, computed from differences: the expanded square loses half of its digits for
    close points."""
    return torch.cdist(X, X_hat, compute_mode="donot_use_mm_for_euclid_dist")


def unsigned_distances(
    X: Float[Tensor, "n d"], X_hat: Float[Tensor, "m d"]
) -> Float[Tensor, "n m"]:
    """min(‖x_i − x̂_j‖, ‖x_i + x̂_j‖), because a two-layer ReLU network without biases hardly
    distinguishes x from −x."""
    return torch.minimum(signed_distances(X, X_hat), signed_distances(X, -X_hat))
