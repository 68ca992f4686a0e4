"""The quality of a reconstruction, measured by

    ρ(X, X̂) = min_Π 1/(n√d) Σ_i ‖x_i − x̂_Π(i)‖     (the paper's ρ, with the truth rescaled to √d)

and also by ρ up to sign, ρ to the closest point and the error of each point. The score of random
guesses is given for comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from scipy.ndimage import gaussian_filter

from recollect.errors import DataError
from recollect.records import finite
from recollect.shapes import Float, Tensor
from recollect.system.seeds import stream
from recollect.truth.files import as_inputs
from recollect.truth.match import Matching, match, signed_distances, unsigned_distances

RECOVERED = 0.1
"""A point counts as recovered if its error is below this: a tenth of its norm."""
NEAR = 0.25
"""A point counts as recognisable if its error is below this: a quarter of its norm."""


@dataclass(frozen=True)
class Score:
    """How close a reconstruction is to the truth, and what guesses would have scored.

    Parameters
    ----------
    rho
        Mean error of the matched points, including their signs: the paper's ρ.
    rho_up_to_sign
        The same if a point and its negative count as equal.
    rho_closest
        Mean distance of the reconstructions to their closest true points, as the paper words it.
        Repeated points are not penalised.
    errors, errors_up_to_sign
        For each true point, the error of its match; infinite if it has none.
    closest, closest_up_to_sign
        For each reconstruction, its distance to the closest true point divided by that point's
        norm.
    matching
        Which reconstruction belongs to which true point.
    recovered
        Share of the true points with an error below 0.1.
    missed
        True points without a match (n̂ < n).
    spurious
        Reconstructions without a match (n̂ > n).
    chance
        The ρ that guesses would have: see `chance_levels`.
    """

    rho: float
    rho_up_to_sign: float
    rho_closest: float
    errors: Float[Tensor, " n"]
    errors_up_to_sign: Float[Tensor, " n"]
    closest: Float[Tensor, " m"]
    closest_up_to_sign: Float[Tensor, " m"]
    matching: Matching
    recovered: float
    missed: int
    spurious: int
    chance: dict[str, float]

    @property
    def median(self) -> float:
        """Median error of the matched points, including their signs. Unlike ρ, their mean, it does
        not depend on how far off a single lost point is."""
        return float(self.matching.distances.median())

    def facts(self) -> dict[str, Any]:
        """The score as JSON."""
        return {
            "rho": self.rho,
            "median": self.median,
            "rho_up_to_sign": self.rho_up_to_sign,
            "rho_closest": self.rho_closest,
            "recovered": self.recovered,
            "missed": self.missed,
            "spurious": self.spurious,
            "chance": self.chance,
            "errors": [finite(error) for error in self.errors.tolist()],
            "errors_up_to_sign": [finite(error) for error in self.errors_up_to_sign.tolist()],
        }


@runtime_checkable
class Scorable(Protocol):
    """Something that can be scored: a reconstruction, new or read from a folder."""

    @property
    def inputs(self) -> Tensor: ...

    @property
    def norms_identifiable(self) -> bool: ...


def evaluate(found: Scorable, truth: Tensor | np.ndarray | str | Path, *, seed: int = 0) -> Score:
    """Score reconstructed inputs against the true ones.

    Parameters
    ----------
    found
        A reconstruction, new or read from a folder.
    truth
        The true inputs, n×d: a tensor, an array, or a file that holds them.
    seed
        Seed of the guesses that give the chance levels.

    Returns
    -------
    Score
        ρ, the error of each point, and what guesses would have scored. If the norms of the inputs
        cannot be identified from the network, both sides are first rescaled to norm √d. The error
        of a point is its distance to its match divided by its own norm.
    """
    X_true = as_inputs(truth)
    X, X_hat = X_true, found.inputs.double()
    if X.dim() != 2 or X_hat.dim() != 2 or X.shape[1] != X_hat.shape[1]:
        raise DataError(
            f"expected truth and reconstruction of one dimension, got {list(X.shape)} and "
            f"{list(X_hat.shape)}; give "
            "the truth of this very run"
        )
    if not torch.isfinite(X).all() or not len(X):
        raise DataError(
            "expected finite true inputs, got NaN, infinite values or none at all; check the truth "
            "file"
        )
    if not found.norms_identifiable:
        X, X_hat = _to_sphere(X), _to_sphere(X_hat)
    units = _norms(X)
    signed = signed_distances(X, X_hat) / units
    matching = match(signed)
    either = unsigned_distances(X, X_hat) / units
    unsigned = match(either)
    errors = torch.full((len(X),), torch.inf, dtype=torch.float64)
    errors_up_to_sign = errors.clone()
    errors[matching.truth] = matching.distances
    errors_up_to_sign[unsigned.truth] = unsigned.distances
    return Score(
        rho=float(matching.distances.mean()),
        rho_up_to_sign=float(unsigned.distances.mean()),
        rho_closest=float(signed.min(dim=0).values.mean()),
        closest=signed.min(dim=0).values,
        closest_up_to_sign=either.min(dim=0).values,
        errors=errors,
        errors_up_to_sign=errors_up_to_sign,
        matching=matching,
        recovered=float((errors < RECOVERED).double().mean()),
        missed=max(0, len(X) - len(X_hat)),
        spurious=max(0, len(X_hat) - len(X)),
        chance=chance_levels(X, len(X_hat), seed=seed),
    )


def chance_levels(
    X: Float[Tensor, "n d"], found: int, *, seed: int = 0, draws: int = 5
) -> dict[str, float]:
    """ρ of three kinds of guesses, matched to the truth in the same way as a reconstruction.

    `sphere`: points drawn uniformly from the sphere. `span`: the same within the span of the true
    data, which Û reveals. Both are means over a few seeded draws. `other_points`: each true point
    is guessed as another true point, as by someone who knows such data well. A name with
    `_recovered` is the share of points that would count as recovered.
    """
    n, d = X.shape
    generator = stream("chance", seed)
    _, s, Vh = torch.linalg.svd(X, full_matrices=False)
    V = Vh[s > 1e-9 * s[0]]
    units = _norms(X)
    levels: dict[str, float] = {}
    for name, basis in (("sphere", None), ("span", V)):
        for suffix, distances in (("", signed_distances), ("_up_to_sign", unsigned_distances)):
            total = recovered = 0.0
            for _ in range(draws):
                guess = torch.randn(
                    found,
                    d if basis is None else len(basis),
                    generator=generator,
                    dtype=torch.float64,
                )
                guess = guess if basis is None else guess @ basis
                guess = units.mean() * guess / torch.linalg.vector_norm(guess, dim=1, keepdim=True)
                errors = match(distances(X, guess) / units).distances
                total += float(errors.mean())
                recovered += float((errors < RECOVERED).sum()) / n
            levels[name + suffix] = total / draws
            levels[f"{name}{suffix}_recovered"] = recovered / draws
    if n > 1:
        others = signed_distances(X, X) / units + torch.diag(X.new_full((n,), 1e12))
        levels["other_points"] = float(match(others).distances.mean())
    return levels


def psnr(a: np.ndarray, b: np.ndarray) -> float:
    """10·log₁₀(255²/mean squared error) of two images of bytes; infinite for equal ones."""
    error = float(np.mean((a.astype(np.float64) - b.astype(np.float64)) ** 2))
    return math.inf if error == 0 else 10 * math.log10(255**2 / error)


def ssim(a: np.ndarray, b: np.ndarray) -> float:
    """Structural similarity (Wang et al. 2004): Gaussian window of σ = 1.5, mean over channels and
    pixels.

    A border as wide as half the window is left out of the mean, as the authors do.
    """
    x, y = a.astype(np.float64), b.astype(np.float64)
    radius = min(5, (min(x.shape[:2]) - 1) // 2)
    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

    def blur(image: np.ndarray) -> np.ndarray:
        smooth: np.ndarray = gaussian_filter(image, sigma=(1.5, 1.5, 0), radius=(radius, radius, 0))
        return smooth

    mx, my = blur(x), blur(y)
    vx, vy, vxy = blur(x * x) - mx * mx, blur(y * y) - my * my, blur(x * y) - mx * my
    index = ((2 * mx * my + c1) * (2 * vxy + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    inner = index[radius : index.shape[0] - radius, radius : index.shape[1] - radius]
    return float(inner.mean())


def _to_sphere(X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    return math.sqrt(X.shape[1]) * X / _norms(X)


def _norms(X: Float[Tensor, "n d"]) -> Float[Tensor, "n 1"]:
    norms: Tensor = torch.linalg.vector_norm(X, dim=1, keepdim=True)
    if not (norms > 0).all():
        raise DataError("expected points other than zero, got a zero row; remove it")
    return norms
