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
"""Training in the precision of the weights may accumulate this many times the rounding error of
storing them once."""


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
    whole
        Whether all singular values are there, or only the leading ones.
    """

    singular_values: Float[Tensor, " k"]
    right: Float[Tensor, "d k"]
    rank: int
    gap: float
    found: bool
    whole: bool = True

    def holds(self, leading: int | None) -> bool:
        """Whether it holds so many directions with full accuracy; None: all."""
        return self.whole or (
            leading is not None and leading + _OVERSAMPLING <= len(self.singular_values)
        )

    def basis(self, rank: int | None = None) -> Float[Tensor, "d r"]:
        """Û, d×r: the r leading right singular vectors."""
        r = self.rank if rank is None else rank
        if not 1 <= r <= self.right.shape[1]:
            raise OptionError(
                f"expected --rank between 1 and {self.right.shape[1]}, got {r}; ΔW1 has no more "
                "directions"
            )
        return self.right[:, :r].contiguous()


_KNOWN: WeakKeyDictionary[Victim, dict[tuple[bool, bool], Spectrum]] = WeakKeyDictionary()
"""Spectra that were computed, with and without the bias, whole or leading part. An audit needs them
for every setting that it tries."""
_FIRST_SKETCH = 64
_POWER_ITERATIONS = 2
_OVERSAMPLING = 10
_SKETCH_GAP = 10.0
"""Smallest gap for which a sketch is accurate: with two power iterations Û is off by about the
inverse of its fifth power."""
_SKETCH_FROM = 512
"""Smaller matrices are decomposed whole."""


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


def spectrum(victim: Victim, *, augmented: bool = True, leading: int | None = None) -> Spectrum:
    """The SVD of ΔW_1 and the gap rule: the largest s_k/s_{k+1} that stands out from the rest.

    Parameters
    ----------
    victim
        The victim. Its spectrum is computed once and remembered.
    augmented
        Whether to take [ΔW_1 | s·Δb_1] where the first layer has a bias.
    leading
        Number of directions that are needed at least; 0: as many as the rank. None: all of them.
        A part of the spectrum is much cheaper than all of it.

    Returns
    -------
    Spectrum
        Û is its `basis()`.
    """
    augmented = augmented and bias_scale(victim) is not None
    known = _KNOWN.setdefault(victim, {})
    for whole in (True, False) if leading is not None else (True,):
        if (augmented, whole) in known and known[augmented, whole].holds(leading):
            return known[augmented, whole]
    if leading is not None and (augmented, False) not in known:
        known[augmented, False] = _decompose(victim, augmented=augmented, whole=False)
        return spectrum(victim, augmented=augmented, leading=leading)
    known[augmented, True] = _decompose(victim, augmented=augmented, whole=True)
    return known[augmented, True]


def _change(victim: Victim, augmented: bool) -> Float[Tensor, "p d"]:
    delta = first_change(victim, augmented=augmented)
    if delta is None:
        raise VictimError(
            "expected a trained linear first layer, got a frozen or convolutional one; "
            "there is no ΔW1 to find a subspace from: use --space full or --basis FILE"
        )
    if not delta.any():
        raise VictimError(
            "expected training to have moved the first layer, got ΔW1 = 0; use --space full or "
            "--basis FILE"
        )
    return delta


def _decompose(victim: Victim, *, augmented: bool, whole: bool) -> Spectrum:
    delta, first = _change(victim, augmented), victim.network.first
    assert first is not None
    floor = rounding(victim.theta_f[first.weight])
    if not whole and (found := sketched(delta, floor)) is not None:
        return found
    _, s, Vh = torch.linalg.svd(delta, full_matrices=False)
    rank, gap, found_gap = gap_rule(s, delta.shape, floor)
    return Spectrum(s.cpu(), Vh.T.cpu(), rank, gap, found_gap)


def feature_rank(victim: Victim) -> int | None:
    """The number of directions that entered the first trained matrix behind layers that did not
    move.

    Its inputs a_i are then the same throughout training, so ΔW = Σ_i b_i a_iᵀ has at most as many
    directions as there are points. None where there is no such matrix, or no gap in its spectrum.
    """
    names = [name for name in victim.network.trained if victim.theta_f[name].dim() == 2]
    if not names or names[0] == victim.network.last.weight:
        return None
    delta = victim.delta(names[:1])[names[0]]
    rank, _, found = gap_rule(
        torch.linalg.svdvals(delta), delta.shape, rounding(victim.theta_f[names[0]])
    )
    return rank if found else None


def sketched(delta: Float[Tensor, "p d"], floor: float) -> Spectrum | None:
    """The leading part of the spectrum by random projections; None where that shows no clear gap.

    ΔᵀΔ is applied to a random matrix of k columns whose range then holds the k leading right
    singular vectors (Halko, Martinsson & Tropp 2011). What lies outside that range is measured, so
    the gap rule sees the same numbers as with a whole decomposition. The gap is certified: a later
    one could not be larger, since all later singular values lie between s_k and the rounding.
    """
    generator = torch.Generator().manual_seed(0)
    k, most = _FIRST_SKETCH, min(delta.shape)
    while most >= _SKETCH_FROM and 4 * k <= most:
        draw = torch.randn(delta.shape[1], k, generator=generator, dtype=torch.float64)
        Q = draw.to(delta)
        for _ in range(1 + _POWER_ITERATIONS):
            Q = torch.linalg.qr(delta.T @ (delta @ Q)).Q
        B = delta @ Q
        _, s, Wh = torch.linalg.svd(B, full_matrices=False)
        rest = float(torch.addmm(delta, B, Q.T, alpha=-1).norm())
        rank, gap, found = gap_rule(s, delta.shape, floor, rest)
        later = float(s[-1]) / max(floor, torch.finfo(torch.float64).tiny)
        if found and gap > max(_SKETCH_GAP, later) and rank <= k - _OVERSAMPLING:
            return Spectrum(s.cpu(), (Q @ Wh.T).cpu(), rank, gap, True, whole=False)
        k *= 2
    return None


def gap_rule(
    s: Float[Tensor, " k"], shape: tuple[int, ...], floor: float, rest: float = 0.0
) -> tuple[int, float, bool]:
    """(rank, gap, whether there is one) from descending singular values of a matrix of `shape`.

    `s` may hold only the leading ones; `rest` is then the root of the sum of squares of the others.

    A step s_k/s_{k+1} counts only if it stands out from what follows. Let t = s_{k+1}/e, where e is
    the largest singular value of white noise (by the Marchenko–Pastur law) with the same root mean
    square as s_{k+1}, s_{k+2}, …. For pure
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
        mean = (s[k:].square().sum() + rest**2) / (min(shape) - k)
        t = s[k] / (edge * mean.sqrt().clamp_min(floor))
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
