"""Which attempt explains most: the one with the largest B = E log(1/L) − q log E.

L is the share of the change that an attempt leaves unexplained, E the effective number of
equations and q the number of free coordinates (`examine/counting.py`). For attempts with the same
evidence and the same number of points the order is that of L. For different numbers of points B is
the Bayesian information criterion with the sign turned: with more points more is always explained,
and B asks whether it is more than so many further coordinates explain by chance.

The last layer and all layers are different evidence, and their losses cannot be compared: of few
equations a wrong set of points explains a larger share than the right one explains of many. So
where both were attacked, the best attempt of each is asked how much of the change of *all* layers
its points explain.

How many points are called is not asked: a set of points that leaves more unexplained than another
one is the worse explanation however sure it seems.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from recollect.attacks.options import Exact, FullSpace
from recollect.attacks.problem import Problem, has_rules
from recollect.attacks.result import Reconstruction
from recollect.auditing.attempt import Attempt
from recollect.geometry import Slice
from recollect.objective.endpoints import Endpoints
from recollect.objective.layerwise import layerwise_sizes
from recollect.shapes import Float, Tensor
from recollect.solve.loop import JITTERS
from recollect.system.device import total_memory
from recollect.victim.victim import Victim

_EXPLAINED = 1e-12
"""A smaller loss is rounding: everything is explained."""


def most_explaining(attempts: Sequence[Attempt], device: torch.device) -> Attempt | None:
    """The attempt that explains most, of those that ran to their end; of the others if none did."""
    tried = [one for one in attempts if one.found is not None and one.found.confidence is not None]
    candidates = [one for one in tried if one.whole] or tried
    groups: dict[str, list[Attempt]] = {}
    for one in candidates:
        groups.setdefault(one.setting.attack.parameters, []).append(one)
    leaders = [max(group, key=own_information) for group in groups.values()]
    if not leaders:
        return next((one for one in attempts if one.found is not None), None)
    gains = [_of_all_layers(one, device) for one in leaders] if len(leaders) > 1 else [None]
    known = [gain for gain in gains if gain is not None]
    if len(known) < len(leaders):  # what is common to them cannot be computed
        known = [own_information(one) for one in leaders]
    return leaders[max(range(len(leaders)), key=known.__getitem__)]


def information(loss: float, equations: int, coordinates: int) -> float:
    """B = E log(1/L) − q log E."""
    if not math.isfinite(loss):
        return -math.inf
    return -equations * math.log(max(loss, _EXPLAINED)) - coordinates * math.log(max(equations, 1))


def own_information(attempt: Attempt) -> float:
    """B of an attempt within its own evidence."""
    found = attempt.found
    if found is None:
        return -math.inf
    return information(found.loss, found.equations_effective or 1, found.coordinates or 0)


def adjusted_loss(found: Reconstruction) -> float:
    """L/(1 − q/E), the share left unexplained as if there were no coordinates to fit; 1 where there
    are as many as equations."""
    equations, coordinates = found.equations_effective or 1, found.coordinates or 0
    return found.loss / (1 - coordinates / equations) if coordinates < equations else 1.0


def _of_all_layers(attempt: Attempt, device: torch.device) -> float | None:
    """B of the points for the change of all layers; None where it cannot be computed."""
    victim, found = attempt.setting.victim, attempt.found
    assert found is not None
    attack = replace(attempt.setting.attack, parameters="all", space=FullSpace())
    return explained_of_all_layers(victim, attack, found.inputs, device)


def explained_of_all_layers(
    victim: Victim, attack: Exact, X: Float[Tensor, "n d"], device: torch.device
) -> float | None:
    """B of the points X for the change of all layers, in full space; None without a rule for each
    layer or without the memory for it."""
    if not has_rules(victim, "all"):
        return None
    problem = Problem.of(victim, attack, device)
    ends = Endpoints.BOTH if problem.evidence.moving else Endpoints.FINAL
    needed = layerwise_sizes(problem.evidence.at(ends), problem.names, problem.dtype)
    if needed.fit_bytes(len(X)) > total_memory(device) // 4:
        return None
    Z = X.to(device, problem.dtype)
    if isinstance(problem.geometry, Slice):
        Z = torch.cat([Z, Z.new_full((len(Z), 1), problem.geometry.s)], dim=1)
    objective = problem.layerwise(ends)
    for rung in JITTERS:
        jitter = torch.tensor(rung, dtype=torch.float64, device=device)
        loss = float(objective.fit(Z, gradient=False, jitter=jitter).loss)
        if math.isfinite(loss):
            break
    n = len(X)
    equations = problem.effective_equations(n, objective)
    return information(loss, equations, problem.coordinates(n))
