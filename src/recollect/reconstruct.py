"""Algorithm 1 (full space), Algorithm 2 (Û from ΔW_1) and their true-subspace variant: Δθ in, inputs out.

    min_X ‖P⊥_G Δθ‖²   over x_i on the sphere            (eq:proj_full_space)
    min_Z ‖P⊥_G Δθ‖²   over x_i = Ûz_i on the sphere     (eq:proj_subspace; the paper prints Ûᵀz, only Ûz has the shape)

Nothing here, or in anything it imports, can read the training data: see `.importlinter`.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from recollect.errors import OptionError
from recollect.geometry import FreeRadius, random_start
from recollect.memory import total_memory
from recollect.options import Auto, Projection
from recollect.problem import Problem, uses_gradient_descent
from recollect.progress import Progress, quiet
from recollect.result import Checkpoint, Reconstruction, Stage
from recollect.search import Search
from recollect.seeds import stream
from recollect.shapes import Tensor
from recollect.solve import GradientDescent, LevenbergMarquardt, Outcome, Status, paper_step
from recollect.solve.confidence import confidence
from recollect.span import Endpoints, ExactSpan, LastLayerSpan, LayerwiseSpan, Span
from recollect.stages import AllLayerStages, LastLayerStages
from recollect.victim import MLP, Victim


def reconstruct(
    victim: Victim,
    n: int | None,
    attack: Projection | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "auto",
    progress: Progress = quiet,
    checkpoint: Checkpoint | None = None,
) -> Reconstruction:
    """Find n inputs whose gradients span Δθ; n None: as many as the residual asks for (`Auto` alone can tell).

    The same victim, options, seed and machine give the same bits. A problem with fewer equations than unknowns warns:
    it has solutions that are not the data.
    """
    attack = attack or Projection()
    problem = Problem.of(victim, attack, choose_device(device))
    solver = attack.solver
    if isinstance(solver, Auto) and uses_gradient_descent(attack, victim):
        solver = GradientDescent()
    if n is None and not (isinstance(solver, Auto) and attack.parameters == "last"):
        raise OptionError(
            "expected a number of points for gradient descent, lm, or parameters beyond the last layer's, got auto; "
            "give --n"
        )
    doubts = () if n is None else problem.check(n)
    if isinstance(solver, GradientDescent):
        solver = with_step(solver, victim)
    span: Span
    judge: Span  # what is reported of all layers is of the network as it is, whatever led to the points
    total, at_once = None, 1
    if not isinstance(solver, Auto):
        assert n is not None
        span = judge = problem.span(n, attack.endpoints or Endpoints.FINAL)
        at_once = min(attack.restarts, starts_at_once(problem, solver, span, n))
        total = math.ceil(attack.restarts / at_once) * solver.iterations
    fingerprint = problem.fingerprint(n, seed, at_once) if checkpoint else ""
    with Search(problem.device, progress, checkpoint, fingerprint, total) as search:
        if isinstance(solver, Auto):
            stages_of = LastLayerStages if attack.parameters == "last" else AllLayerStages
            found = stages_of(problem, search, solver, seed).run(n)
            problem, span, best, stages = found.problem, found.span, found.outcome, found.stages
            problem = replace(problem, attack=attack)
            doubts += found.notes
            judge = span if attack.parameters == "last" else problem.layerwise(found.span.endpoints)
        else:
            assert n is not None
            best, stages = _restarts(problem, solver, span, n, at_once, search, seed)
    step = solver.step_size if isinstance(solver, GradientDescent) else None
    exact = not isinstance(solver, GradientDescent)
    return as_result(problem, span, judge, best, stages, doubts, step, search.resumed_at, exact)


def with_step(solver: GradientDescent, victim: Victim) -> GradientDescent:
    return solver if solver.step_size is not None else replace(solver, step_size=paper_step(victim.d))


def _restarts(
    problem: Problem,
    solver: GradientDescent | LevenbergMarquardt,
    span: Span,
    n: int,
    at_once: int,
    search: Search,
    seed: int,
) -> tuple[Outcome, tuple[Stage, ...]]:
    """One solver from several random starts, as many at once as memory allows; the best of all is kept."""
    best: Outcome | None = None
    stages: tuple[Stage, ...] = ()
    starts = range(problem.attack.restarts)
    for some in (starts[k : k + at_once] for k in starts[::at_once]):
        Z = torch.stack(
            [random_start(problem.geometry, n, problem.r, stream(f"start {restart}", seed)) for restart in some]
        ).to(problem.device, problem.dtype)
        which = f"start {some[0] + 1}" if len(some) == 1 else f"starts {some[0] + 1} to {some[-1] + 1}"
        outcome = search.minimise(
            which,
            solver,
            span,
            problem.geometry,
            Z[0] if len(some) == 1 else Z,
            tolerance=problem.attack.tolerance,
        )
        name = "gradient descent" if isinstance(solver, GradientDescent) else "Levenberg–Marquardt"
        name += f", {which}"
        stages += (Stage(name, outcome.loss, outcome.iterations, outcome.seconds, outcome.status.value),)
        best = outcome if best is None or outcome.loss < best.loss else best
        if outcome.status is Status.INTERRUPTED:
            best = replace(best, status=Status.INTERRUPTED)
            break
    assert best is not None  # there is at least one start
    return best, stages


def starts_at_once(problem: Problem, solver: GradientDescent | LevenbergMarquardt, span: Span, n: int) -> int:
    """How many starts can share their matrix products, for all that memory holds."""
    if not (isinstance(solver, GradientDescent) and isinstance(span, (LastLayerSpan, LayerwiseSpan))):
        return 1
    if not isinstance(problem.restricted.network, MLP):  # what a module holds on the way is its own business
        return 1
    return max(1, total_memory(problem.device) // 4 // span.fit_bytes(n))


def as_result(
    problem: Problem,
    span: Span,
    judge: Span,
    best: Outcome,
    stages: tuple[Stage, ...],
    doubts: tuple[str, ...],
    step_size: float | None,
    resumed_at: int,
    exact: bool,
) -> Reconstruction:
    """What was found, in the victim's own coordinates, with what a reader should know of it."""
    victim, restricted, found = problem.victim, problem.restricted, problem.spectrum
    jitter = torch.tensor(best.jitter, dtype=torch.float64, device=best.Z.device)
    fit = judge.fit(best.Z, gradient=False, jitter=jitter)  # said of the points themselves, not of a file
    Z = best.Z.cpu().double()
    theta_f = {name: _double(tensor.cpu()) for name, tensor in restricted.theta_f.items()}
    notes = [*doubts, *span.notes]
    if step_size is not None and len(best.trace) and best.trace[-1] > 2 * best.loss:
        notes.append("the loss was well above its best at the end: the step may be too large, try a smaller --step")
    if best.jitter:
        notes.append(f"the Gram matrix was singular at times: its diagonal was raised by a relative {best.jitter:g}")
    if victim.network.homogeneous:
        notes.append(
            "the network is positively homogeneous: only the direction of each point can be found, its norm means "
            "nothing"
        )
    if found is not None and not found.found:
        notes.append(
            f"the spectrum of ΔW1 shows no gap; all {found.rank} directions above rounding were used unless --rank "
            "was given"
        )
    sure = None
    if exact and isinstance(span, ExactSpan):
        sure = confidence(span, problem.geometry, best.Z, jitter).cpu().double()
    return Reconstruction(
        inputs=problem.lift(Z),
        coefficients=fit.alpha.cpu().double(),
        predictions=restricted.network(theta_f, Z),
        loss=float(fit.loss),
        status=best.status,
        trace=best.trace,
        stages=stages,
        notes=tuple(notes),
        rank=restricted.d,
        norms_identifiable=isinstance(problem.geometry, FreeRadius) and not victim.network.homogeneous,
        equations=judge.equations,
        unknowns=problem.unknowns(len(Z), judge),
        step_size=step_size,
        span=judge.name,
        resumed_at=resumed_at,
        singular_values=None if found is None else found.singular_values,
        confidence=sure,
    )


def _double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def choose_device(device: torch.device | str) -> torch.device:
    if isinstance(device, torch.device):
        return device
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise OptionError(f"expected --device auto, cpu or cuda, got {device!r}; choose one of those")
    if device == "cuda" and not torch.cuda.is_available():
        raise OptionError("expected a CUDA device, got none on this machine; use --device cpu")
    return torch.device(device)
