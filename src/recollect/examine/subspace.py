"""Û: the right singular vectors of ΔW_1 (Alg. 2, step 2), and the rank r from the gap in its
spectrum.

The rows of every update of W_1 lie in the span of the inputs, so ΔW_1 has the rank of the data, but
for rounding. Where the first layer has a bias, the same holds for [ΔW_1 | s·Δb_1] and the inputs
(x, s), and this *augmented* change takes the place of ΔW_1 (`geometry.Slice`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch

from recollect.errors import OptionError, VictimError
from recollect.shapes import Float, Tensor
from recollect.victim.victim import Victim

MINIMUM_GAP = 2.0
"""A smaller step in the spectrum is within what full-rank data show."""
ROUNDINGS = 1e3
"""As many times the error of storing the weights once is what training in their precision may
leave."""


@dataclass(frozen=True)
class Spectrum:
    """Singular values of ΔW_1, its right singular vectors, and the rank that the gap suggests.

    Parameters
    ----------
    singular_values
        In descending order.
    right
        The right singular vectors, one per column.
    rank
        r, from the gap; without a gap, the number of values above rounding.
    gap
        s_r/s_{r+1}, the values below rounding counted as rounding.
    found
        Whether there is a gap at all.
    """

    singular_values: Float[Tensor, " k"]
    right: Float[Tensor, "d k"]
    rank: int
    gap: float
    found: bool

    def basis(self, rank: int | None = None) -> Float[Tensor, "d r"]:
        """Û, d×r: the r leading right singular vectors."""
        r = self.rank if rank is None else rank
        if not 1 <= r <= self.right.shape[1]:
            raise OptionError(
                f"expected --rank between 1 and {self.right.shape[1]}, got {r}; ΔW1 has no more "
                "directions"
            )
        return self.right[:, :r].contiguous()


_KNOWN: WeakKeyDictionary[Victim, dict[bool, Spectrum]] = WeakKeyDictionary()
"""The spectrum with and without the bias. An audit needs it for every setting that it tries."""


def bias_scale(victim: Victim) -> float | None:
    """s = √d, where (x, s) are the augmented inputs; None where no trained bias meets the input.

    It puts the constant coordinate on the scale of the others.
    """
    first, trained = victim.network.first, victim.network.trained
    if first is None or first.bias is None or not {first.weight, first.bias} <= set(trained):
        return None
    return math.sqrt(victim.d)


def first_change(victim: Victim, *, augmented: bool) -> Float[Tensor, "p d"] | None:
    """ΔW_1, or [ΔW_1 | s·Δb_1]; None where the first layer is not a trained map of the input."""
    delta, s = victim.delta_W1(), bias_scale(victim)
    if delta is None or not augmented or s is None:
        return delta
    assert victim.network.first is not None
    assert victim.network.first.bias is not None
    bias = victim.delta([victim.network.first.bias])[victim.network.first.bias]
    return torch.cat([delta, s * bias[:, None]], dim=1)


def spectrum(victim: Victim, *, augmented: bool = True) -> Spectrum:
    """The SVD of ΔW_1 and the gap rule: the largest s_k/s_{k+1} that stands out from the rest.

    Parameters
    ----------
    victim
        The victim. Its spectrum is computed once and remembered.
    augmented
        Whether to take [ΔW_1 | s·Δb_1] where the first layer has a bias.

    Returns
    -------
    Spectrum
        Û is its `basis()`.
    """
    augmented = augmented and bias_scale(victim) is not None
    known = _KNOWN.setdefault(victim, {})
    if augmented not in known:
        known[augmented] = _decompose(victim, augmented=augmented)
    return known[augmented]


def _decompose(victim: Victim, *, augmented: bool) -> Spectrum:
    delta = first_change(victim, augmented=augmented)
    first = victim.network.first
    if delta is None or first is None:
        raise VictimError(
            "expected a trained linear first layer, got a frozen or convolutional one; "
            "there is no ΔW1 to find a subspace from: use --space full or --basis FILE"
        )
    if not delta.any():
        raise VictimError(
            "expected training to have moved the first layer, got ΔW1 = 0; use --space full or "
            "--basis FILE"
        )
    _, s, Vh = torch.linalg.svd(delta, full_matrices=False)
    floor = rounding(victim.theta_f[first.weight])
    rank, gap, found = gap_rule(s, delta.shape, floor)
    return Spectrum(s.cpu(), Vh.T.cpu(), rank, gap, found)


def gap_rule(
    s: Float[Tensor, " k"], shape: tuple[int, ...], floor: float
) -> tuple[int, float, bool]:
    """(rank, gap, whether there is one) from descending singular values of a matrix of `shape`.

    A step counts only if it stands out from what follows: let t be the largest value after it over
    the edge that the Marchenko–Pastur law gives for the root mean square of the rest. For pure
    noise t is about 1, for rounding noise, which is larger in rows with larger weights, about 2;
    the step must be larger than t³. The spectrum of real images has large steps near its top as
    well, but there the rest falls steeply, and t³ exceeds the step. Where the rest is as small as
    many roundings may leave it, t² will do: steps that are rounded alike, one after the other, add
    up in few directions.
    """
    s = s.double().cpu().clamp_min(max(floor, torch.finfo(torch.float64).tiny))
    gaps = s[:-1] / s[1:]
    rank, gap = 0, MINIMUM_GAP
    for k in range(1, len(s)):
        if gaps[k - 1] <= gap:
            continue
        rows, columns = shape[0] - k, shape[1] - k
        edge = (math.sqrt(rows) + math.sqrt(columns)) / math.sqrt(max(rows, columns))
        t = s[k] / (edge * s[k:].square().mean().sqrt())
        if gaps[k - 1] > t ** (2 if s[k] < ROUNDINGS * floor else 3):
            rank, gap = k, float(gaps[k - 1])
    if rank:
        return rank, gap, True
    above = max(1, int((s > floor).sum()))
    return above, float(s[above - 1] / max(floor, torch.finfo(torch.float64).tiny)), False


def rounding(W: Tensor) -> float:
    """The largest singular value of the error that storing W once makes: ε/2·rms(W)·(√p + √d)."""
    unit = torch.finfo(W.dtype).eps / 2
    rms = float(W.double().square().mean().sqrt())
    return unit * rms * (math.sqrt(W.shape[0]) + math.sqrt(W.shape[1]))


def check_basis(U: Tensor, d: int) -> Float[Tensor, "d r"]:
    """A basis the user hands over: d×r, orthonormalised if its columns are independent but not
    orthonormal."""
    if U.dim() != 2 or U.shape[0] != d or not 1 <= U.shape[1] <= d:
        raise OptionError(
            f"expected a basis U of shape [{d}, r] with r ≤ {d}, got {list(U.shape)}; save U as d×r"
        )
    U = U.double()
    if not torch.isfinite(U).all():
        raise OptionError("expected a finite basis U, got NaN or infinite values; save it again")
    if torch.allclose(U.T @ U, torch.eye(U.shape[1], dtype=U.dtype), atol=1e-6):
        return U
    Q, R = torch.linalg.qr(U)
    diagonal = R.diagonal().abs()
    if not diagonal.min() > 1e-10 * diagonal.max():
        raise OptionError(
            f"expected {U.shape[1]} independent columns in the basis U, got fewer; remove the "
            "dependent ones"
        )
    orthonormal: Tensor = Q
    return orthonormal
