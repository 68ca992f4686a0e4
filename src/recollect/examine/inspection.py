"""What the two checkpoints tell before anything is spent: what moved, the rank of ΔW_1, equations
against unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from recollect.errors import OptionError, VictimError
from recollect.examine.subspace import Spectrum, spectrum
from recollect.victim.parity import Parity, parity
from recollect.victim.read.checkpoint import Source
from recollect.victim.victim import Victim, load


@dataclass(frozen=True)
class Counting:
    """Equations that some parameters give, and the most points they could determine."""

    parameters: str
    equations: int
    most_points: int
    """The largest n with n(r − 1 + c) ≤ equations (n(r + c) where norms are unknown too)."""
    unknowns_each: int
    """Of a point: its coordinates and its coefficients."""

    def by_n(self) -> list[tuple[int, int]]:
        """n and its unknowns, for n = 1, 2, 5, 10, … up to the most, and that."""
        series = (step * 10**k for k in range(len(str(self.most_points))) for step in (1, 2, 5))
        numbers = sorted({n for n in series if n < self.most_points} | {max(1, self.most_points)})
        return [(n, n * self.unknowns_each) for n in numbers]


@dataclass(frozen=True)
class Inspection:
    """What two checkpoints tell before any attack.

    Parameters
    ----------
    description
        The network in words.
    moved
        ‖Δθ‖/‖θ0‖ by tensor; infinite where it started at zero.
    spectrum
        Of ΔW_1; None where the first layer is not a trained linear map.
    rank
        Coordinates of a point: the rank of ΔW_1, or d where there is no ΔW_1.
    counting
        Equations and unknowns, for the last layer and for all.
    norms_identifiable
        Whether the norm of a point shows.
    signs
        What tells a point from its negative.
    expectations
        What to expect from an attack, in sentences.
    """

    description: str
    moved: dict[str, float]
    spectrum: Spectrum | None
    rank: int
    counting: tuple[Counting, ...]
    norms_identifiable: bool
    signs: Parity
    expectations: tuple[str, ...]


def inspect(
    victim: Victim | Source,
    trained: Source | None = None,
    *,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
) -> Inspection:
    """Look at a victim before any attack.

    Parameters
    ----------
    victim
        A victim; or the weights before training, as `load` takes them.
    trained
        The weights after training, where `victim` is not a victim.
    activation, model, input_shape
        As for `load`.

    Returns
    -------
    Inspection
        What moved, the rank of ΔW_1, equations against unknowns, and what to expect.
    """
    if not isinstance(victim, Victim):
        if trained is None:
            raise OptionError(
                "expected a victim, or weights before and after training, got one; give both"
            )
        victim = load(victim, trained, activation=activation, model=model, input_shape=input_shape)
    try:
        found: Spectrum | None = spectrum(victim)
        missing = None
    except VictimError as error:
        found, missing = None, str(error)
    rank = victim.d if found is None else found.rank
    free = not victim.network.homogeneous
    unknowns, signs = rank - (0 if free else 1) + victim.c, parity(victim.network, victim.theta_f)
    counting = []
    # Outside the span of ΔW_1 there is nothing to explain: those entries are no equations.
    theta = victim.theta_f
    if found is not None:
        theta = victim.network.restrict_theta(theta, found.basis())
    for parameters in ("last", "all"):
        equations = sum(theta[name].numel() for name in victim.select(parameters))
        counting.append(Counting(parameters, equations, equations // unknowns, unknowns))
    return Inspection(
        description=victim.describe(),
        moved=_moved(victim),
        spectrum=found,
        rank=rank,
        counting=tuple(counting),
        norms_identifiable=free,
        signs=signs,
        expectations=tuple(_expectations(victim, found, missing, signs)),
    )


def _moved(victim: Victim) -> dict[str, float]:
    moved = {}
    for name, change in victim.delta(victim.network.trained).items():
        before = float(victim.theta_0[name].double().norm()) if victim.theta_0 else 0.0
        moved[name] = float(change.norm()) / before if before else math.inf
    return moved


def _expectations(
    victim: Victim, found: Spectrum | None, missing: str | None, signs: Parity
) -> list[str]:
    said = []
    if found is None:
        said.append(missing or "")
    elif not found.found:
        said.append(
            f"the spectrum of ΔW1 shows no gap: the data fill all {found.rank} directions, or "
            "rounding hides the "
            "gap; give --rank if you know it"
        )
    elif found.gap < 10:
        said.append(
            f"the gap in the spectrum of ΔW1 is small ({found.gap:.1f}×): rank {found.rank} is "
            "likely, and rounding "
            "in training blurs the subspace"
        )
    else:
        gap = f"{found.gap:,.0f}" if 100 <= found.gap < 1e6 else f"{found.gap:.2g}"
        said.append(
            f"the spectrum of ΔW1 has a clear gap ({gap}×): the data span {found.rank} directions"
        )
    if victim.network.homogeneous:
        said.append("the network is positively homogeneous: directions can be found, norms cannot")
    else:
        said.append("the network is not positively homogeneous: each point's norm is identifiable")
    said.append(_SIGNS[signs])
    return said


_SIGNS = {
    Parity.NONE: "the network tells a point from its negative",
    Parity.LINEAR: (
        "two layers of ReLU without bias barely tell x from −x: signs come back only with points "
        "that are exact"
    ),
    Parity.EVEN: "the network answers x and −x alike: the sign of a point cannot be found",
    Parity.ODD: (
        "the network answers −x with the negative of its answer to x: the sign of a point cannot "
        "be found"
    ),
}
