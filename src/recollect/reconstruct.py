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
from dataclasses import replace

import torch

from recollect.errors import OptionError, VictimError
from recollect.geometry import FreeRadius, Geometry, Sphere, random_start
from recollect.options import Basis, FullSpace, Projection, Subspace
from recollect.progress import Progress, quiet
from recollect.result import Checkpoint, Reconstruction, Saved, Stage
from recollect.shapes import Tensor
from recollect.solve import GradientDescent, Outcome, Run, Status, minimise, paper_step, start
from recollect.span import DenseSpan, ImplicitSpan, LastLayerSpan, Span, dense_bytes
from recollect.subspace import Spectrum, check_basis, spectrum
from recollect.victim import Victim


class RecollectWarning(UserWarning):
    """Something the user should know before trusting a result."""


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
    if n < 1:
        raise OptionError(f"expected --n of at least 1, got {n}; ask for one point or more")
    names = victim.select(attack.parameters)
    U, spectrum_ = _basis(victim, attack.space)
    restricted = victim if U is None else victim.restrict(U)
    geometry = _geometry(victim, attack.norm)
    span = _span(restricted, names, n, attack, device)
    solver = attack.solver
    if solver.step_size is None:
        solver = replace(solver, step_size=paper_step(victim.d))
    unknowns = n * (geometry.free_dimensions(restricted.d) + victim.c)
    _check_counts(n, victim.c, span.equations, unknowns, attack.parameters)

    fingerprint = _fingerprint(victim, n, attack, U, seed, device)
    saved = checkpoint.load(fingerprint) if checkpoint else None
    if saved is not None and int(saved.run.iteration) > solver.iterations:
        saved = None  # it went further than is asked for now
    stages, best = (saved.stages, saved.best) if saved else ((), None)
    for restart in range(saved.restart if saved else 0, attack.restarts):
        if saved is not None:
            run, seconds = _to(saved.run, device), saved.seconds
        else:
            generator = torch.Generator().manual_seed(_start_seed(seed, restart))
            run, seconds = (
                start(solver, random_start(geometry, n, restricted.d, generator).to(device, attack.dtype)),
                0.0,
            )
        saved = None

        def save(
            run: Run,
            seconds: float,
            restart: int = restart,
            stages: tuple[Stage, ...] = stages,
            best: Outcome | None = best,
        ) -> None:
            if checkpoint:
                checkpoint.save(fingerprint, Saved(restart, run, seconds, stages, best))

        label = (
            "reconstructing" if attack.restarts == 1 else f"reconstructing, start {restart + 1} of {attack.restarts}"
        )
        with progress(label, solver.iterations) as report:
            outcome = minimise(
                solver, span, geometry, run, tolerance=attack.tolerance, report=report, save=save, seconds=seconds
            )
        stages = (
            *stages,
            Stage(
                f"gradient descent, start {restart + 1}",
                outcome.loss,
                outcome.iterations,
                outcome.seconds,
                outcome.status.value,
            ),
        )
        # A start that met nothing finite does not replace one that did.
        best = outcome if best is None or not outcome.loss >= best.loss else best
        if outcome.status is Status.INTERRUPTED:
            best = replace(best, status=Status.INTERRUPTED)
            break
    if best is None:
        raise RuntimeError("no start was run")
    return _result(victim, restricted, U, spectrum_, span, geometry, solver, best, stages, unknowns)


def _result(
    victim: Victim,
    restricted: Victim,
    U: Tensor | None,
    found: Spectrum | None,
    span: Span,
    geometry: Geometry,
    solver: GradientDescent,
    best: Outcome,
    stages: tuple[Stage, ...],
    unknowns: int,
) -> Reconstruction:
    jitter = torch.tensor(best.jitter, dtype=torch.float64, device=best.Z.device)
    alpha = span.fit(best.Z, gradient=False, jitter=jitter).alpha.cpu().double()
    Z = best.Z.cpu().double()
    theta_f = {name: tensor.cpu().double() for name, tensor in restricted.theta_f.items()}
    notes = list(span.notes)
    if best.jitter:
        notes.append(f"the Gram matrix was singular at times: its diagonal was raised by a relative {best.jitter:g}")
    if victim.network.homogeneous:
        notes.append(
            "the network is positively homogeneous: only the direction of each point can be found, its norm is set "
            "to the given radius"
        )
    if found is not None and not found.found:
        notes.append(
            f"the spectrum of ΔW1 shows no gap; all {found.rank} directions above rounding were used: give --rank "
            "if you know it"
        )
    return Reconstruction(
        inputs=Z if U is None else Z @ U.T,
        coefficients=alpha,
        predictions=restricted.network(theta_f, Z),
        loss=best.loss,
        status=best.status,
        trace=best.trace,
        stages=stages,
        notes=tuple(notes),
        rank=restricted.d,
        norms_identifiable=isinstance(geometry, FreeRadius),
        equations=span.equations,
        unknowns=unknowns,
        step_size=solver.step_size or math.nan,
        singular_values=None if found is None else found.singular_values,
    )


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


def _check_counts(n: int, c: int, equations: int, unknowns: int, parameters: str) -> None:
    if n * c > equations:
        raise VictimError(
            f"expected at most {equations} coefficients for the {equations} equations of --parameters {parameters}, "
            f"got {n} points × {c} outputs = {n * c}; any such points explain the change: ask for fewer, or use "
            "--parameters all"
        )
    if unknowns > equations:
        warnings.warn(
            f"{equations} equations for {unknowns} unknowns: exact recovery is impossible by counting; "
            "use more --parameters or a lower --rank, and do not trust a small loss",
            RecollectWarning,
            stacklevel=3,
        )


def _start_seed(seed: int, restart: int) -> int:
    digest = hashlib.sha256(f"start {seed} {restart}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _fingerprint(victim: Victim, n: int, attack: Projection, U: Tensor | None, seed: int, device: torch.device) -> str:
    """A name for this very computation. A single start may be resumed with more iterations; several may not."""
    solver = attack.solver if attack.restarts > 1 else replace(attack.solver, iterations=1)
    options = replace(attack, space=FullSpace(), solver=solver)
    content = hashlib.sha256(f"{options} {n} {seed} {device.type} {torch.__version__}".encode())
    tensors = [*(victim.theta_0 or {}).items(), *victim.theta_f.items(), *([("U", U)] if U is not None else [])]
    for name, tensor in tensors:
        content.update(name.encode())
        content.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return content.hexdigest()


def _to(run: Run, device: torch.device) -> Run:
    return Run.of({name: tensor.to(device) for name, tensor in run.tensors().items()})
