"""What the two checkpoints tell before anything is spent: what moved, the rank of ΔW_1, equations
against unknowns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from recollect.errors import OptionError, VictimError
from recollect.examine.counting import effective_equations, largest, output_rank
from recollect.examine.history import History, history, undecayed
from recollect.examine.subspace import Spectrum, bias_scale, spectrum
from recollect.shapes import Theta
from recollect.victim.parity import Parity, parity
from recollect.victim.read.checkpoint import Source
from recollect.victim.victim import Victim, attackable, load


@dataclass(frozen=True)
class Counting:
    """Equations that some parameters give, and the most points they could determine.

    Parameters
    ----------
    parameters
        `last` or `all`.
    equations
        Entries of the change that are to be explained.
    n
        The number of points that the next two fields are about: the rank, if nobody said.
    equations_effective
        Equations that remain for the coordinates of n points, gradients taken at θf
        (`examine/counting.py`).
    coordinates
        The free coordinates of n points.
    most_points
        The largest number of points with as many effective equations as coordinates.
    by_n
        n, its effective equations and its coordinates, for n = 1, 2, 5, 10, … up to the most.
    """

    parameters: str
    equations: int
    n: int
    equations_effective: int
    coordinates: int
    most_points: int
    by_n: tuple[tuple[int, int, int], ...]


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
        Equations and unknowns, for the last layer and for all layers, as far as they were trained.
    norms_identifiable
        Whether the norm of a point shows.
    signs
        What tells a point from its negative.
    expectations
        What to expect from an attack, in sentences.
    directions
        The largest rank that ΔW_1 can have: the smaller number of its rows and columns that moved.
    past
        The history of the change (`examine/history.py`). Its weight decay is undone in all of the
        above, except in `moved`.
    """

    description: str
    moved: dict[str, float]
    spectrum: Spectrum | None
    rank: int
    counting: tuple[Counting, ...]
    norms_identifiable: bool
    signs: Parity
    expectations: tuple[str, ...]
    directions: int
    past: History


def inspect(
    victim: Victim | Source,
    trained: Source | None = None,
    *,
    n: int | None = None,
    activation: str | None = None,
    model: nn.Module | None = None,
    input_shape: tuple[int, ...] | None = None,
    optimizer: str | None = None,
    past: History | None = None,
) -> Inspection:
    """Look at a victim before any attack.

    Parameters
    ----------
    victim
        A victim; or the weights before training, as `load` takes them.
    trained
        The weights after training, where `victim` is not a victim.
    n
        The number of points to count equations for. None: the rank of ΔW_1.
    activation, model, input_shape
        As for `load`.
    optimizer
        The optimiser of the training, as for `audit`.
    past
        The history of the change, where it is known and its weight decay is undone in `victim`
        already. None: it is inferred, and weight decay is undone.

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
    moved = _moved(victim)
    if past is None:
        past = history(victim, optimizer=optimizer)
        victim = undecayed(victim, past.decay) if past.decay else victim
    try:
        found: Spectrum | None = spectrum(victim)
        missing = None
    except VictimError as error:
        found, missing = None, str(error)
    rank = victim.d if found is None else found.rank
    free, signs = not victim.network.homogeneous, parity(victim.network, victim.theta_f)
    counting = [
        _count(victim, found, parameters, rank if n is None else n)
        for parameters in attackable(victim.network)
    ]
    return Inspection(
        description=victim.describe(),
        moved=moved,
        spectrum=found,
        rank=rank,
        counting=tuple(counting),
        norms_identifiable=free,
        signs=signs,
        expectations=tuple(_expectations(victim, found, missing, signs, past)),
        past=past,
        directions=_directions(victim),
    )


def _directions(victim: Victim) -> int:
    delta = victim.delta_W1()
    return victim.d if delta is None else min(int(delta.any(0).sum()), int(delta.any(1).sum()))


def _count(victim: Victim, found: Spectrum | None, parameters: str, n: int) -> Counting:
    network, names = victim.network, victim.select(parameters)
    theta: Theta = victim.theta_f
    rank = output_rank(network, victim.delta(network.trained), theta)
    sliced = found is not None and bias_scale(victim) is not None
    # Outside the span of ΔW_1 there is nothing to explain: those entries are no equations.
    if found is not None:
        if sliced:
            network, theta = network.augmented(), network.augment_theta(theta, 1.0)
            joined = victim.network.first if network.first != victim.network.first else None
            names = tuple(name for name in names if joined is None or name != joined.bias)
        theta = network.restrict_theta(theta, found.basis())
    fixed = sliced or victim.network.homogeneous
    free = (victim.d if found is None else found.rank) - (1 if fixed else 0)

    def effective(n: int) -> int:
        return effective_equations(network, theta, names, n, rank=rank, families=1)

    equations = sum(theta[name].numel() for name in names)
    most = largest(lambda n: effective(n) >= n * free, equations)
    series = (step * 10**k for k in range(len(str(most))) for step in (1, 2, 5))
    numbers = sorted({number for number in series if number < most} | {max(1, most)})
    by_n = tuple((number, effective(number), number * free) for number in numbers)
    return Counting(parameters, equations, n, effective(n), n * free, most, by_n)


def _moved(victim: Victim) -> dict[str, float]:
    moved = {}
    for name, change in victim.delta(victim.network.trained).items():
        before = float(victim.theta_0[name].double().norm()) if victim.theta_0 else 0.0
        moved[name] = float(change.norm()) / before if before else math.inf
    return moved


def _expectations(
    victim: Victim, found: Spectrum | None, missing: str | None, signs: Parity, past: History
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
        means = (
            f"the data span {found.rank} directions"
            if past.fits
            else f"its rank is {found.rank}, which may say nothing of the data"
        )
        said.append(f"the spectrum of ΔW1 has a clear gap ({gap}×): {means}")
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
