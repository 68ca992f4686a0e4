"""The exact attack: Levenberg–Marquardt in stages, one sequence for the last layer and one for more
parameters."""

from __future__ import annotations

from dataclasses import replace

import torch

from recollect.attacks.base import Context
from recollect.attacks.exact.all_layers import AllLayerStages
from recollect.attacks.exact.base import Stages
from recollect.attacks.exact.confidence import from_errors
from recollect.attacks.exact.last_layer import LastLayerStages
from recollect.attacks.exact.number import NumberStages
from recollect.attacks.options import Exact
from recollect.attacks.problem import Problem, has_rules
from recollect.attacks.projection import describe, run_problem
from recollect.attacks.result import Reconstruction, Withheld
from recollect.attacks.runs import Runs
from recollect.objective.base import Objective, SplitObjective
from recollect.solve.gradient_descent import GradientDescent
from recollect.victim.victim import Victim

STUCK = (
    "more is left unexplained than training data leave where the weights moved so little: the "
    "search is stuck, and points that seem certain may be wrong"
)


def run(attack: Exact, victim: Victim, n: int | None, context: Context) -> Reconstruction:
    """All stages. Where a layer has no rule, the paper's gradient descent instead."""
    problem = Problem.of(victim, attack, context.device)
    if not has_rules(victim, attack.parameters):
        assert n is not None  # beyond the last layer `needs` asks for it
        return run_problem(problem, GradientDescent(), n, context)
    doubts = () if n is None else problem.check(n)
    fingerprint = problem.fingerprint(n, context.seed) if context.resume else ""
    with Runs(context, fingerprint) as runs:
        stages: Stages[SplitObjective] | LastLayerStages
        one_layer = LastLayerStages if n is not None else NumberStages
        stages_of = one_layer if attack.parameters == "last" else AllLayerStages
        stages = stages_of(problem, runs, attack, context.seed)
        found = stages.run(n)
    state = found.state
    problem = replace(state.problem, search=attack)
    # What is reported of all layers is the loss of the network as it is, whatever objective led to
    # the points.
    ends = state.objective.endpoints
    if attack.parameters == "last":
        judge: Objective = problem.last_layer(ends, lifted=state.objective.lifted)
    else:
        judge = problem.layerwise(ends)
    result = describe(
        problem,
        state.objective,
        judge,
        state.outcome,
        found.stages,
        (*doubts, *found.notes),
        runs.resumed_at,
        confident=True,
        # A corrected objective shows only the part of the mismatch that gradients cannot explain.
        least=(found.mismatch or 0.0) ** 2 if found.corrected else 0.0,
    )
    withheld, sure, details = result.withheld, result.confidence, dict(result.details)
    if found.errors is not None and sure is not None:
        # The zeros of ΔW_1 tell how far off these points are, not what the gradients leave.
        errors = found.errors.to(sure)
        other = torch.zeros_like(sure) if attack.unmix == "only" else sure
        sure = torch.where(errors.isfinite(), from_errors(errors), other)
        details["read_off"] = int(errors.isfinite().sum())
    if found.stuck:
        withheld = (*withheld, Withheld(tuple(range(len(result.inputs))), STUCK))
    return replace(
        result,
        confidence=sure,
        details=details,
        withheld=withheld,
        signs_settled=state.signs_settled,
        n_source="given" if n is not None else "residual",
        n_clear=found.n_clear,
        n_tried=found.n_tried,
        mismatch=found.mismatch,
    )
