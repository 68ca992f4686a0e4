"""Algorithm 1 (full space), Algorithm 2 (Û from ΔW_1) and their variant with the true subspace.

    min_X ‖P⊥_G Δθ‖²   over x_i on the sphere            (eq:proj_full_space)
    min_Z ‖P⊥_G Δθ‖²   over x_i = Ûz_i on the sphere
            (eq:proj_subspace; the paper prints Ûᵀz, but only Ûz has the right shape)

All of them are solved by the same code. Neither this module nor anything it imports can read the
training data: see `.importlinter`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.attacks.base import Context
from recollect.attacks.exact.confidence import confidence
from recollect.attacks.options import Projection
from recollect.attacks.problem import Problem
from recollect.attacks.result import Reconstruction, Stage, Withheld
from recollect.attacks.runs import Runs
from recollect.geometry import Sphere, random_start
from recollect.objective.base import ExactObjective, GramObjective, Objective
from recollect.objective.endpoints import Endpoints
from recollect.shapes import Tensor
from recollect.solve.gradient_descent import GradientDescent, paper_step
from recollect.solve.levenberg_marquardt import LevenbergMarquardt
from recollect.solve.loop import JITTERS, Outcome, Status
from recollect.system.device import total_memory
from recollect.system.seeds import stream
from recollect.victim.mlp import MLP
from recollect.victim.parity import Parity
from recollect.victim.victim import Victim

UNFINISHED = (Status.TIME, Status.INTERRUPTED)


def run(attack: Projection, victim: Victim, n: int | None, context: Context) -> Reconstruction:
    """Run the solver from each random start and keep the best result."""
    assert n is not None  # `reconstruct` has checked it
    problem = Problem.of(victim, attack, context.device)
    return run_problem(problem, attack.solver, n, context)


def run_problem(
    problem: Problem, solver: GradientDescent | LevenbergMarquardt, n: int, context: Context
) -> Reconstruction:
    """Run the solver on a prepared problem from each random start and keep the best result."""
    if isinstance(solver, GradientDescent) and solver.step_size is None:
        solver = replace(solver, step_size=paper_step(problem.victim.d))
    doubts = problem.check(n)
    objective = problem.objective(n, problem.search.endpoints or Endpoints.FINAL)
    at_once = min(problem.search.restarts, starts_at_once(problem, solver, objective, n))
    total = math.ceil(problem.search.restarts / at_once) * solver.iterations
    fingerprint = problem.fingerprint(n, context.seed, at_once) if context.resume else ""
    with Runs(context, fingerprint, total) as runs:
        best, stages = _restarts(problem, solver, objective, n, at_once, runs, context.seed)
    descent = isinstance(solver, GradientDescent)
    if descent and len(best.trace) and best.trace[-1] > 2 * best.loss:
        doubts += (
            "the loss was well above its best at the end: the step may be too large, try a smaller "
            "--step",
        )
    # Errors can be estimated only at a minimum, which gradient descent rarely reaches.
    found = describe(
        problem, objective, objective, best, stages, doubts, runs.resumed_at, confident=not descent
    )
    return replace(
        found,
        step_size=solver.step_size if isinstance(solver, GradientDescent) else None,
        signs_settled=problem.parity not in (Parity.EVEN, Parity.ODD),
    )


def _restarts(
    problem: Problem,
    solver: GradientDescent | LevenbergMarquardt,
    objective: Objective,
    n: int,
    at_once: int,
    runs: Runs,
    seed: int,
) -> tuple[Outcome, tuple[Stage, ...]]:
    """Run one solver from several random starts, as many at once as memory allows, and keep the
    best."""
    best: Outcome | None = None
    stages: tuple[Stage, ...] = ()
    starts = range(problem.search.restarts)
    for some in (starts[k : k + at_once] for k in starts[::at_once]):
        Z = torch.stack(
            [
                random_start(problem.geometry, n, problem.r, stream(f"start {restart}", seed))
                for restart in some
            ]
        ).to(problem.device, problem.dtype)
        which = (
            f"start {some[0] + 1}" if len(some) == 1 else f"starts {some[0] + 1} to {some[-1] + 1}"
        )
        try:
            outcome = runs.descend(
                which,
                solver,
                objective,
                problem.geometry,
                Z[0] if len(some) == 1 else Z,
                tolerance=problem.search.tolerance,
            )
        except KeyboardInterrupt:
            if best is None:
                raise
            best = replace(best, status=Status.INTERRUPTED)
            break
        name = f"{solver.name}, {which}"
        stages += (
            Stage(name, outcome.loss, outcome.iterations, outcome.seconds, outcome.status.value),
        )
        best = outcome if best is None or outcome.loss < best.loss else best
        if outcome.status in UNFINISHED:
            best = replace(best, status=outcome.status)
            break
    assert best is not None  # there is at least one start
    return best, stages


def starts_at_once(
    problem: Problem, solver: GradientDescent | LevenbergMarquardt, objective: Objective, n: int
) -> int:
    """The number of starts whose matrix products can be batched in the available memory."""
    if not (isinstance(solver, GradientDescent) and isinstance(objective, GramObjective)):
        return 1
    if not isinstance(problem.evidence.network, MLP):  # the memory a module needs is not known
        return 1
    return max(1, total_memory(problem.device) // 4 // objective.sizes.fit_bytes(n))


def describe(
    problem: Problem,
    objective: Objective,
    judge: Objective,
    best: Outcome,
    stages: tuple[Stage, ...],
    doubts: tuple[str, ...],
    resumed_at: int,
    *,
    confident: bool,
    least: float = 0.0,
) -> Reconstruction:
    """The result in the victim's own coordinates, with notes for the reader.

    `judge` is the objective whose loss is reported: that of the original network, however the
    points were found. `confident` says whether the points lie at a minimum, so that confidence can
    be estimated; `least` is the loss that this estimate starts from at least.
    """
    victim, found = problem.victim, problem.spectrum
    # The loss is computed from the points themselves, not read from a file. The Gram matrix of
    # `judge` may be singular where that of the search was not; then its diagonal is raised further.
    for rung in (rung for rung in JITTERS if rung >= best.jitter):
        jitter = torch.tensor(rung, dtype=torch.float64, device=best.Z.device)
        fit = judge.fit(best.Z, gradient=False, jitter=jitter)
        if bool(torch.isfinite(fit.loss)):
            break
    Z = best.Z.cpu().double()
    theta_f = {name: _double(tensor.cpu()) for name, tensor in problem.evidence.nodes[0].items()}
    notes = [*doubts, *objective.notes]
    if float(jitter):
        notes.append(
            "the Gram matrix was singular at times: its diagonal was raised by a relative "
            f"{best.jitter:g}"
        )
    if victim.network.homogeneous:
        notes.append(
            "the network is positively homogeneous: only the direction of each point can be found, "
            "its norm means "
            "nothing"
        )
    if found is not None and not found.found:
        notes.append(
            f"the spectrum of ΔW1 shows no gap; all {found.rank} directions above rounding were "
            "used unless --rank "
            "was given"
        )
    sure = None
    if confident and isinstance(objective, ExactObjective):
        own = torch.tensor(best.jitter, dtype=torch.float64, device=best.Z.device)
        sure = confidence(objective, problem.geometry, best.Z, own, least=least).cpu().double()
    withheld: tuple[Withheld, ...] = ()
    if best.status in UNFINISHED:
        # A run that was cut off may be stuck where respawning points would have helped, and its
        # points may still have high confidence.
        withheld = (Withheld(tuple(range(len(Z))), "the search was cut off before its end"),)
    return Reconstruction(
        inputs=problem.inputs(Z),
        loss=float(fit.loss),
        status=best.status,
        confidence=sure,
        withheld=withheld,
        norms_identifiable=not isinstance(problem.geometry, Sphere)
        and not victim.network.homogeneous,
        predictions=problem.evidence.network(theta_f, Z),
        coefficients=fit.alpha.cpu().double(),
        trace=best.trace,
        stages=stages,
        notes=tuple(notes),
        rank=problem.r if problem.U is not None else victim.d,
        equations=judge.equations,
        unknowns=problem.unknowns(len(Z), judge),
        equations_effective=problem.effective_equations(len(Z), judge),
        coordinates=problem.coordinates(len(Z)),
        objective=judge.name,
        resumed_at=resumed_at,
        singular_values=None if found is None else found.singular_values,
    )


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
