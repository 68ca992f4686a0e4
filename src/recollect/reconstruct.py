"""Algorithm 1 (full space), Algorithm 2 (Û from ΔW_1) and their true-subspace variant: Δθ in, inputs out.

    min_X ‖P⊥_G Δθ‖²   over x_i on the sphere            (eq:proj_full_space)
    min_Z ‖P⊥_G Δθ‖²   over x_i = Ûz_i on the sphere     (eq:proj_subspace; the paper prints Ûᵀz, only Ûz has the shape)

Nothing here, or in anything it imports, can read the training data: see `.importlinter`.
"""

from __future__ import annotations

import hashlib
import math
import os
import warnings
from dataclasses import dataclass, replace

import torch

from recollect.errors import OptionError, VictimError
from recollect.geometry import FreeRadius, Geometry, Sphere, random_start
from recollect.options import Basis, FullSpace, Projection, Subspace
from recollect.progress import Progress, quiet
from recollect.result import Checkpoint, Reconstruction, Saved, Stage
from recollect.seeds import stream
from recollect.shapes import Tensor
from recollect.solve import GradientDescent, Outcome, Run, Status, minimise, paper_step, start
from recollect.span import DenseSpan, ImplicitSpan, LastLayerSpan, Span, dense_bytes
from recollect.subspace import Spectrum, check_basis, spectrum
from recollect.victim import Victim


class RecollectWarning(UserWarning):
    """Something the user should know before trusting a result."""


@dataclass(frozen=True)
class _Problem:
    """Everything the search needs, made ready: Algorithm 2 is Algorithm 1 on the restricted victim."""

    victim: Victim
    restricted: Victim
    U: Tensor | None
    spectrum: Spectrum | None
    span: Span
    geometry: Geometry
    solver: GradientDescent
    unknowns: int
    doubts: tuple[str, ...]


def reconstruct(
    victim: Victim,
    n: int,
    attack: Projection | None = None,
    *,
    seed: int = 0,
    device: torch.device | str = "auto",
    progress: Progress = quiet,
    checkpoint: Checkpoint | None = None,
) -> Reconstruction:
    """Find n inputs whose gradients span Δθ.

    The same victim, options, seed and machine give the same bits. A problem with fewer equations than unknowns warns:
    it has solutions that are not the data.
    """
    attack = attack or Projection()
    device = choose_device(device)
    problem = _prepare(victim, n, attack, device)
    fingerprint = _fingerprint(problem, n, attack, seed, device) if checkpoint else ""
    fresh = _start(problem, n, attack, 0, seed, device)
    saved = checkpoint.load(fingerprint) if checkpoint else None
    if saved is not None and not _fits(saved, fresh, attack.restarts):
        saved = None
    resumed_at = 0 if saved is None else int(saved.run.iteration)
    first, stages, best = (0, (), None) if saved is None else (saved.restart, saved.stages, saved.best)
    for restart in range(first, attack.restarts):
        if saved is not None:
            run, seconds, saved = _to(saved.run, device), saved.seconds, None
        else:
            run, seconds = _start(problem, n, attack, restart, seed, device), 0.0

        def save(run: Run, seconds: float, so_far: Saved = Saved(restart, run, 0.0, stages, best)) -> None:
            if checkpoint:
                checkpoint.save(fingerprint, replace(so_far, run=run, seconds=seconds))

        of_how_many = "" if attack.restarts == 1 else f", start {restart + 1} of {attack.restarts}"
        with progress(f"reconstructing{of_how_many}", problem.solver.iterations) as report:
            outcome = minimise(
                problem.solver,
                problem.span,
                problem.geometry,
                run,
                tolerance=attack.tolerance,
                report=report,
                save=save,
                seconds=seconds,
            )
        name = f"gradient descent, start {restart + 1}"
        stages = (*stages, Stage(name, outcome.loss, outcome.iterations, outcome.seconds, outcome.status.value))
        best = outcome if best is None or outcome.loss < best.loss else best
        if outcome.status is Status.INTERRUPTED:
            best = replace(best, status=Status.INTERRUPTED)
            break
    assert best is not None  # there is at least one start
    return _result(problem, replace(best, Z=best.Z.to(device)), stages, resumed_at)


def _start(problem: _Problem, n: int, attack: Projection, restart: int, seed: int, device: torch.device) -> Run:
    Z = random_start(problem.geometry, n, problem.restricted.d, stream(f"start {restart}", seed))
    return start(problem.solver, Z.to(device, attack.dtype))


def _fits(saved: Saved, fresh: Run, restarts: int) -> bool:
    """Whether a saved run has the form of a fresh one and has not gone further than is asked for now."""
    tensors, expected = saved.run.tensors(), fresh.tensors()
    alike = set(tensors) == set(expected) and all(
        tensors[name].dtype == expected[name].dtype and (name == "trace" or tensors[name].shape == expected[name].shape)
        for name in expected
    )
    if not alike or tensors["trace"].dim() != 1 or not 0 <= saved.restart < restarts:
        return False
    iteration, kept = int(saved.run.iteration), saved.best
    return (
        0 <= iteration <= min(len(saved.run.trace), len(fresh.trace))
        and int(saved.run.rung) >= 0
        and (kept is None or (kept.Z.shape, kept.Z.dtype) == (fresh.best_Z.shape, fresh.best_Z.dtype))
    )


def _prepare(victim: Victim, n: int, attack: Projection, device: torch.device) -> _Problem:
    if not 1 <= n <= 10**8:
        raise OptionError(f"expected --n between 1 and 10⁸, got {n:.6g}; ask for another number of points")
    names = victim.select(attack.parameters)
    U, found = _basis(victim, attack.space)
    restricted = victim if U is None else victim.restrict(U)
    geometry = _geometry(victim, attack.norm)
    span = _span(restricted, names, n, attack, device)
    solver = attack.solver
    if solver.step_size is None:
        solver = replace(solver, step_size=paper_step(victim.d))
    unknowns = n * (geometry.free_dimensions(restricted.d) + victim.c)
    doubts = _check_counts(n, victim.c, span.equations, unknowns, attack.parameters)
    return _Problem(victim, restricted, U, found, span, geometry, solver, unknowns, doubts)


def _result(problem: _Problem, best: Outcome, stages: tuple[Stage, ...], resumed_at: int) -> Reconstruction:
    victim, restricted, U, found = problem.victim, problem.restricted, problem.U, problem.spectrum
    jitter = torch.tensor(best.jitter, dtype=torch.float64, device=best.Z.device)
    fit = problem.span.fit(best.Z, gradient=False, jitter=jitter)  # said of the points themselves, not of a file
    Z = best.Z.cpu().double()
    theta_f = {name: _double(tensor.cpu()) for name, tensor in restricted.theta_f.items()}
    notes = [*problem.doubts, *problem.span.notes]
    if len(best.trace) and best.trace[-1] > 2 * best.loss:
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
    return Reconstruction(
        inputs=Z if U is None else Z @ U.T,
        coefficients=fit.alpha.cpu().double(),
        predictions=restricted.network(theta_f, Z),
        loss=float(fit.loss),
        status=best.status,
        trace=best.trace,
        stages=stages,
        notes=tuple(notes),
        rank=restricted.d,
        norms_identifiable=isinstance(problem.geometry, FreeRadius) and not victim.network.homogeneous,
        equations=problem.span.equations,
        unknowns=problem.unknowns,
        step_size=problem.solver.step_size or math.nan,
        span=problem.span.name,
        resumed_at=resumed_at,
        singular_values=None if found is None else found.singular_values,
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


def _basis(victim: Victim, space: FullSpace | Subspace | Basis) -> tuple[Tensor | None, Spectrum | None]:
    if isinstance(space, Basis):
        return check_basis(space.U, victim.d), None
    if isinstance(space, FullSpace):
        return None, None
    found = spectrum(victim)
    return found.basis(space.rank), found


def _geometry(victim: Victim, norm: float | str | None) -> Geometry:
    radius = math.sqrt(victim.d)
    if norm is None:
        return Sphere(radius) if victim.network.homogeneous else FreeRadius(radius)
    if isinstance(norm, str):
        if norm != "free":
            raise OptionError(f"expected --norm sqrt-d, free or a number, got {norm!r}; choose one of those")
        return FreeRadius(radius)
    return Sphere(float(norm))


def _span(victim: Victim, names: tuple[str, ...], n: int, attack: Projection, device: torch.device) -> Span:
    if attack.parameters == "last":
        return LastLayerSpan(victim, device=device, dtype=attack.dtype)
    gram = attack.gram
    if gram == "auto":  # of all the memory there is, not of what is free now: the same machine must choose the same way
        gram = "dense" if dense_bytes(victim, names, n, attack.dtype) <= _memory(device) // 4 else "cg"
    if gram == "dense":
        return DenseSpan(victim, names, device=device, dtype=attack.dtype)
    return ImplicitSpan(victim, names, device=device, dtype=attack.dtype)


def _memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_counts(n: int, c: int, equations: int, unknowns: int, parameters: str) -> tuple[str, ...]:
    if n * c > equations:
        raise VictimError(
            f"expected at most {equations} coefficients for the {equations} equations of --parameters {parameters}, "
            f"got {n} points × {c} outputs = {n * c}; any such points explain the change: ask for fewer, "
            "or use --parameters all"
        )
    if unknowns <= equations:
        return ()
    doubt = (
        f"{equations} equations for {unknowns} unknowns: exact recovery is impossible by counting; "
        "use more --parameters or a lower --rank, and do not trust a small loss"
    )
    warnings.warn(doubt, RecollectWarning, stacklevel=4)
    return (doubt,)


def _fingerprint(problem: _Problem, n: int, attack: Projection, seed: int, device: torch.device) -> str:
    """A name for this very computation. A single start may be resumed with more iterations; several may not."""
    victim, U = problem.victim, problem.U
    solver = attack.solver if attack.restarts > 1 else replace(attack.solver, iterations=1)
    options = replace(attack, space=FullSpace(), solver=solver)
    facts = f"{victim.network.identity} {options} {n} {seed} {device.type} {torch.__version__}"
    content = hashlib.sha256(facts.encode())
    tensors = [*(victim.theta_0 or {}).items(), *victim.theta_f.items(), *([("U", U)] if U is not None else [])]
    for name, tensor in tensors:
        content.update(name.encode())
        content.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _to(run: Run, device: torch.device) -> Run:
    return Run.of({name: tensor.to(device) for name, tensor in run.tensors().items()})
