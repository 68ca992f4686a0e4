"""Infers from Δθ how the weights were trained: weight decay, noise, rounding, other optimisers,
merged adapters, entries that were left out, or a θ0 of another run.

Gradient descent without any of these leaves ΔW_1 = Σ_t Σ_i b_it x_iᵀ, which has the rank of the
data up to rounding. Any part of ΔW_1 outside the span of the data has another cause. Weight decay
at a rate λ shrinks the earlier weights,

    θf = (1 − c)θ0 + (what gradients added),   1 − c = Π_t (1 − η_t λ),

so outside the span of the data ΔW_1 is −c W_1⁰. There c is measured, and Δθ + cθ0 is a combination
of gradients alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from recollect.errors import VictimError
from recollect.examine.adapters import merged_adapters
from recollect.examine.balance import unbalanced
from recollect.examine.findings import Finding, Severity
from recollect.examine.optimiser import rescaled, told
from recollect.examine.sparse import unchanged_entries
from recollect.examine.subspace import ROUNDINGS, Spectrum, gap_rule, rounding, spectrum
from recollect.shapes import Float, Tensor
from recollect.victim.victim import Victim

_DECAY_COSINE = 0.5
"""Smallest cosine between −ΔW_1 and W_1⁰ outside the data that is taken for weight decay. It was
0.97 and more with decay, and below 0.05 in all other cases that were tried."""
_MOSTLY_GONE = 0.5
"""Decay c above which points are taken to be biased. At c = 0.22 points are recovered as well as
without decay; at 0.92 they have a bias that the confidence does not show."""
_ALL_GONE = 0.95
"""A larger c is not taken for decay: if θ0 comes from another run, all of it seems to have
decayed."""
_RELATED = 0.5
_FAR = 0.5
_FLAT = 0.3
"""The rest is taken for noise if its smallest singular value is above this share of σ(√p − √d), its
size for white noise. For data it is many orders of magnitude below the largest."""
_NOISE_EDGE = 1.1
"""A spectrum is taken for white noise if its largest value is below this multiple of what the
Marchenko–Pastur law says."""
_LEVELS = 256
_DECAYED = "weight decay left so little of the start that points are biased"
SPARSE = "the change leaves out entries that training would have changed"
"""Why no point of a sparse change counts: points that are nowhere near the data explain it."""


@dataclass(frozen=True)
class History:
    decay: float
    """c, or 0 if no decay was detected."""
    findings: tuple[Finding, ...]
    sparse: bool = False
    """Whether the change leaves out entries that training would have changed."""

    @property
    def fits(self) -> bool:
        """Whether Δθ can be a combination of gradients at θ0 and θf. If not, a failed attack proves
        nothing."""
        return not any(finding.misfit for finding in self.findings)

    @property
    def biased(self) -> bool:
        """Whether the points found have errors that their confidence does not show."""
        return bool(self.withhold)

    @property
    def withhold(self) -> tuple[str, ...]:
        """Reasons why no point may be called recovered, however high its confidence is."""
        reasons = (
            (_DECAYED, self.decay > _MOSTLY_GONE),
            (SPARSE, self.sparse),
        )
        return tuple(why for why, holds in reasons if holds)


def history(victim: Victim, *, optimizer: str | None = None) -> History:
    """Infer the history from the two checkpoints. What is not detected may still have happened.

    `optimizer` is the one that the user names; None: it is not known, and its traces are looked
    for.
    """
    if victim.theta_0 is None:
        return History(0.0, ())
    decay = weight_decay(victim)
    decay = 0.0 if decay > _ALL_GONE else decay
    findings, related = _relation(victim)
    named = [] if optimizer is None else told(optimizer)
    findings += named
    if not (decay or related):
        return History(0.0, tuple(findings))
    # Decay moves every entry, so nothing that decayed is sparse or of low rank.
    sparse = [] if decay else unchanged_entries(victim)
    findings += [] if decay or sparse else merged_adapters(victim)
    if decay:
        findings = findings if related else named
        findings.append(
            Finding(
                Severity.LIMITS,
                f"outside the span of the data the first layer shrank by {decay:.2g} of itself: "
                "weight decay",
                "it was undone, as if every tensor had shrunk alike; where one had not, part of "
                "its change is not made "
                "of gradients"
                + (
                    ", and so little is left of the start that points come out with errors of 0.1 "
                    "to 0.3: none is "
                    "called recovered, however firm it is"
                    if decay > _MOSTLY_GONE
                    else ""
                ),
                "nothing to do",
                code="weight-decay",
            )
        )
        victim = undecayed(victim, decay)
    grid = _grid(victim)
    if grid:
        findings.append(
            Finding(
                Severity.LIMITS,
                f"the trained weights lie on a grid: {grid}",
                "their change is known no better than that",
                "if the weights before rounding exist, audit those too: they tell more",
                code="rounded",
            )
        )
    if not sparse:
        findings += _outside(victim, named=bool(grid), optimizer=optimizer)
        if not any(finding.misfit for finding in findings):
            findings += unbalanced(victim)
    return History(decay, (*findings, *sparse), sparse=bool(sparse))


def undecayed(victim: Victim, decay: float) -> Victim:
    """The victim with (1 − c)θ0 instead of θ0, so that Δθ is only what gradients added."""
    assert victim.theta_0 is not None
    theta_0 = {
        name: (1 - decay) * value.double() if name in victim.network.trained else value
        for name, value in victim.theta_0.items()
    }
    return Victim(victim.network, theta_0, victim.theta_f, input_shape=victim.input_shape)


def weight_decay(victim: Victim) -> float:
    """c, measured where ΔW_1 holds nothing of the data; 0 if ΔW_1 does not resemble W_1⁰ there."""
    delta, first = victim.delta_W1(), victim.network.first
    if (
        delta is None
        or first is None
        or victim.theta_0 is None
        or min(delta.shape) < 4
        or not bool(delta.any())
    ):
        return 0.0
    W0, floor = victim.theta_0[first.weight].double(), rounding(victim.theta_f[first.weight])
    decay, cosine = 0.0, 0.0
    for _ in range(20):
        # These are the directions in which ΔW_1 is smallest once decay is undone. The better c is
        # known, the less of the data they contain.
        _, s, Vh = torch.linalg.svd(delta + decay * W0, full_matrices=False)
        rank, _, found = gap_rule(s, delta.shape, floor)
        right = Vh[rank if found else len(s) // 2 :].T
        left, before = delta @ right, W0 @ right
        if not bool(before.any()):  # There were no weights that could decay.
            return 0.0
        product = float((left * before).sum())
        last, decay = decay, -product / max(float(before.square().sum()), 1e-300)
        cosine = -product / max(float(left.norm() * before.norm()), 1e-300)
        if cosine < _DECAY_COSINE:
            return 0.0
        if abs(decay - last) <= 1e-9 * abs(decay):
            break
    return decay


def _relation(victim: Victim) -> tuple[list[Finding], bool]:
    """Findings on how far training moved the weights, and whether it started from this θ0."""
    assert victim.theta_0 is not None
    names = [name for name in victim.network.trained if victim.theta_f[name].dim() >= 2]
    if not names:  # biases alone
        return [], True
    before = torch.cat([victim.theta_0[name].double().flatten() for name in names])
    after = torch.cat([victim.theta_f[name].double().flatten() for name in names])
    moved = float((after - before).norm() / before.norm().clamp_min(1e-300))
    cosine = float(before @ after) / max(float(before.norm() * after.norm()), 1e-300)
    if bool(before.any()) and cosine < _RELATED:
        unrelated = [
            Finding(
                Severity.LIMITS,
                f"the two checkpoints have little in common (cosine {cosine:.2f})",
                "the one is not where the training of the other started, or training (or weight "
                "decay) went far beyond "
                "what its gradients at either end explain",
                "give the checkpoint from before the first step",
                misfit=True,
                code="unrelated-start",
            )
        ]
        return unrelated, False
    if bool(before.any()) and moved > _FAR:
        far = [
            Finding(
                Severity.LIMITS,
                f"training moved the weights by {moved:.0%} of their norm",
                "gradients at the two ends explain such a change poorly",
                "read what is not found with that in mind",
                code="moved-far",
            )
        ]
        return far, True
    return [], True


def _grid(victim: Victim) -> str:
    """The grid on which all trained matrices lie: float16, bfloat16 or few values; "" if there is
    none."""
    tensors = [
        victim.theta_f[name] for name in victim.network.trained if victim.theta_f[name].dim() >= 2
    ]
    for dtype, name in ((torch.float16, "float16"), (torch.bfloat16, "bfloat16")):
        if tensors and all(
            tensor.dtype != dtype and torch.equal(tensor.to(dtype).to(tensor), tensor)
            for tensor in tensors
        ):
            return name
    large = [tensor for tensor in tensors if tensor.numel() > 4 * _LEVELS]
    counts = [_values(tensor) for tensor in large]
    if counts and max(counts) <= _LEVELS:
        return f"{max(counts)} values and no others"
    rows = [
        _values(row)
        for tensor in large
        for row in tensor.flatten(1)[:8]
        if row.numel() > 4 * _LEVELS
    ]
    return f"{max(rows)} values a row and no others" if rows and max(rows) <= _LEVELS else ""


def _values(tensor: Tensor) -> int:
    ordered = tensor.flatten().sort().values
    return 1 + int((ordered[1:] != ordered[:-1]).sum())


def _outside(victim: Victim, *, named: bool, optimizer: str | None) -> list[Finding]:
    """Findings on the part of ΔW_1 outside the span of the data."""
    try:
        found = spectrum(victim, augmented=False)
    except VictimError:
        return []
    delta = victim.delta_W1()
    assert delta is not None
    assert victim.network.first is not None
    floor = rounding(victim.theta_f[victim.network.first.weight])
    tail = found.singular_values[found.rank :]
    clean = found.found and (not len(tail) or float(tail[0]) < ROUNDINGS * floor)
    if clean and found.rank < min(delta.shape) // 2:
        return []  # of low rank up to rounding: nothing but gradients
    suspected = rescaled(victim) if optimizer is None else []
    rest = tail if found.found else found.singular_values
    if suspected and (clean or not _white(rest, delta.shape)):
        return suspected  # what such an optimiser leaves outside the data looks like noise
    sigma = _noise(delta, found)
    if (
        sigma
        and sigma * (math.sqrt(delta.shape[0]) + math.sqrt(delta.shape[1])) > ROUNDINGS * floor
    ):
        if named:
            return []
        return [
            Finding(
                Severity.LIMITS,
                f"the first layer's change holds noise of {sigma:.1e} in every entry",
                "it was added in training or to the weights, or left by coarse arithmetic; points "
                "are found no better "
                "than it allows",
                "nothing to do: noise is a defence, and this audit says how far it goes",
                code="noise",
            )
        ]
    return []


def _noise(delta: Float[Tensor, "p d"], found: Spectrum) -> float:
    """σ of the entries of ΔW_1 outside the data, if that part looks like white noise; otherwise
    0."""
    if not found.found and not _white(found.singular_values, delta.shape):
        return 0.0  # data that fill all directions also leave a spectrum without a gap
    rank = found.rank if found.found else min(delta.shape) // 2
    tail = found.singular_values[rank:].double()
    rows, columns = delta.shape[0] - rank, delta.shape[1] - rank
    if len(tail) < 4:
        return 0.0
    sigma = float(tail.square().sum() / (rows * columns)) ** 0.5
    smallest = sigma * abs(math.sqrt(rows) - math.sqrt(columns))
    spread = (
        float(tail[-1]) > _FLAT * smallest
        if smallest > 0.1 * sigma * math.sqrt(max(rows, columns))
        else True
    )
    return sigma if spread else 0.0


def _white(s: Float[Tensor, " k"], shape: tuple[int, ...]) -> bool:
    """Whether the last singular values of a matrix of this shape are those of white noise."""
    before = min(shape) - len(s)
    rows, columns = shape[0] - before, shape[1] - before
    if not len(s):
        return False
    sigma = math.sqrt(float(s.double().square().sum()) / (rows * columns))
    edge = sigma * (math.sqrt(rows) + math.sqrt(columns))
    return float(s[0]) < _NOISE_EDGE * edge
