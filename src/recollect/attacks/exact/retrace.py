"""e(X̂) = P⊥_G(X̂)(θ̂ − θ0): what the gradients cannot explain even at the data, computed by training
on the points that were found.

Along the path θ(t) of training, Δθ = Σ_i ∫ δ_i(t) ∇f(x_i; θ(t)) dt exactly. The objectives replace
the path by two or three nodes θ_e, so that they leave a residual at the data themselves, and their
minimum is not quite the data. With points X̂ near the data the path itself can be had: train from θ0
on X̂ and the outputs f(X̂; θf) (`simulate/retraining.py`). It ends at some θ̂. The residual e(X̂) of
that run at its own data is known, and nearly the residual of Δθ at the true data. So Δθ − e(X̂) is
explained instead, which moves the points, and so on: a defect correction (Stetter 1978). Where the
run imitates the real training, the data are a fixed point, however coarse the nodes and however
soft the gates are.

    m(X̂) = ‖θ̂ − θf‖/‖θf − θ0‖

says how well training on X̂ leads to the weights that are known. It needs no truth, and points that
are false altogether do not make it small; but a small m does not show that each single point is
true. The points with the smallest m are kept, if it fell clearly and less is left unexplained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch

from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.problem import Problem
from recollect.geometry import Slice
from recollect.objective.base import SplitObjective
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.shapes import Float, Tensor, Theta, cast
from recollect.simulate.retraining import Loss, Path, retrain
from recollect.victim.victim import Victim


@dataclass(frozen=True)
class Retraced:
    """A training run on points that were found, beside the real one."""

    Z: Float[Tensor, "n r"]
    path: Path
    mismatch: float
    """m."""


def improve(
    problem: Problem,
    Z: Float[Tensor, "n r"],
    tuning: Tuning,
    descend: Callable[[Problem, Float[Tensor, "n r"], float], Float[Tensor, "n r"] | None],
    objective: Callable[[Problem, float], SplitObjective],
    working: Callable[[str], None],
) -> Iterator[Retraced]:
    """Rounds of training on the points and moving them, until m no longer falls.

    The first runs are on the points as given: a rough one for each loss, then a finer one by the
    loss that fits. Nothing is yielded where none comes to its end. Where m is large from the start,
    the points are far from the data or training was unlike the runs made here: then they are not
    moved.

    Parameters
    ----------
    problem
        The problem as the search solved it.
    Z
        The points it found.
    tuning
        Thresholds.
    descend
        Moves points to the minimum of a corrected problem, with gates of a width τ.
    objective
        What it minimises.
    working
        Called with a message while a training run lasts; it may raise.
    """
    found = _likest(problem, Z, tuple(Loss), tuning.straight_most, tuning, working)
    if found is None:
        return
    loss, latest = found
    if latest.mismatch > tuning.unlike:
        yield latest
        return
    # A run need not be much more accurate than the points are.
    found = _likest(problem, Z, (loss,), tuning.straightness(latest.mismatch), tuning, working)
    latest = latest if found is None else found[1]
    least, failures = latest.mismatch, 0
    yield latest
    for round in range(tuning.retracings):
        if failures >= tuning.patience_retracing or least <= tuning.alike:
            return
        tau = tuning.rungs_retracing[min(round, len(tuning.rungs_retracing) - 1)]
        moved = descend(corrected(problem, latest, tau, objective), latest.Z, tau)
        if moved is None:
            return
        straight = tuning.straightness(latest.mismatch)
        found = _likest(problem, moved, (loss,), straight, tuning, working)
        if found is None:
            return
        latest, failures = found[1], failures + 1
        if latest.mismatch < tuning.better * least:
            least, failures = latest.mismatch, 0
        yield latest


def _likest(
    problem: Problem,
    Z: Float[Tensor, "n r"],
    losses: tuple[Loss, ...],
    straight: float,
    tuning: Tuning,
    working: Callable[[str], None],
) -> tuple[Loss, Retraced] | None:
    """The run on these points, by the loss that imitates the real training best."""
    runs = []
    for loss in losses:
        message = f"training on the points found, {loss.value}"
        done = retrace(
            problem,
            Z,
            loss,
            straight=straight,
            most_flops=tuning.retracing_flops,
            working=partial(working, message),
        )
        if done is not None and math.isfinite(done.mismatch):
            runs.append((loss, done))
    return min(runs, key=lambda run: run[1].mismatch, default=None)


def retrace(
    problem: Problem,
    Z: Float[Tensor, "n r"],
    loss: Loss,
    *,
    straight: float,
    most_flops: float,
    working: Callable[[], None],
) -> Retraced | None:
    """Train from θ0 on the points; None where that does not come to an end."""
    victim, device = problem.victim, problem.device
    after, before = _ends(victim, device)
    X = problem.inputs(Z).to(device, torch.float64)
    with torch.no_grad():
        Y = victim.network(after, X)
    distance = _distance(after, before, victim)
    path = retrain(
        victim.network,
        before,
        X,
        Y,
        loss=loss,
        distance=distance,
        straight=straight,
        most_flops=most_flops,
        working=working,
    )
    if path is None:
        return None
    return Retraced(Z, path, _distance(path.end, after, victim) / distance)


def corrected(
    problem: Problem,
    retraced: Retraced,
    tau: float,
    objective: Callable[[Problem, float], SplitObjective],
) -> Problem:
    """The problem whose evidence is Δθ − e. The middle of the simulated path is its third node."""
    after, before = _ends(problem.victim, problem.device)
    path = retraced.path
    real = {name: after[name] - before[name] for name in problem.victim.network.trained}
    run = {name: path.end[name] - before[name] for name in real}
    simulated = replace(_restricted(problem, run, path.middle), outside=0.0)
    e = objective(replace(problem, evidence=simulated), tau).remainder(retraced.Z)
    evidence = _restricted(problem, real, path.middle)
    target = {
        name: value - e[name].to(value) if name in e else value
        for name, value in evidence.target.items()
    }
    return replace(problem, evidence=replace(evidence, target=target))


def imitable(problem: Problem) -> bool:
    """Whether the evidence is the change of trained features, so that training can be retraced."""
    evidence, ends = problem.evidence, problem.search.endpoints
    whole = problem.victim.theta_0 is not None and len(evidence.nodes) > 1
    return whole and evidence.moving and (ends is None or ends.several)


def _restricted(problem: Problem, target: Theta, middle: Theta) -> Evidence:
    """Evidence in the coordinates that are searched."""
    victim = problem.victim
    after, before = _ends(victim, problem.device)
    known = Evidence("θf − θ0", victim.network, target, (after, before, middle), Endpoints.PATH)
    if isinstance(problem.everywhere, Slice):
        known = known.augmented(problem.everywhere.s)
    return known if problem.U is None else known.restrict(problem.U.to(problem.device))


def _ends(victim: Victim, device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    assert victim.theta_0 is not None
    return cast(victim.theta_f, device, torch.float64), cast(victim.theta_0, device, torch.float64)


def _distance(one: Theta, other: Theta, victim: Victim) -> float:
    names = victim.network.trained
    return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in names))
