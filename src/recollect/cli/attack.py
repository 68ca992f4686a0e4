"""`recollect inspect` and `recollect reconstruct`: the two checkpoints, and nothing else."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import torch

from recollect.audit import outlook
from recollect.audit.verdict import up_to_sign
from recollect.cli.common import (
    Count,
    CountOrAuto,
    Device,
    Json,
    Seed,
    announce_svd,
    app,
    check_count,
    check_seed,
    load_victim,
)
from recollect.console import Terminal
from recollect.errors import OptionError, RunError
from recollect.files import check_writable, read_tensors
from recollect.inspection import inspect as inspect_victim
from recollect.machine import Machine
from recollect.memory import spoken
from recollect.options import Auto, Basis, FullSpace, Projection, Subspace
from recollect.recipe import DTYPES
from recollect.reconstruct import choose_device
from recollect.reconstruct import reconstruct as run_attack
from recollect.records import CHECKPOINT, FACTS, TENSORS, FileCheckpoint, finite, write_reconstruction
from recollect.solve import GradientDescent, LevenbergMarquardt, Status
from recollect.span import Endpoints


@app.command
def inspect(
    *paths: Path,
    n: CountOrAuto = "auto",
    activation: str | None = None,
    model: str | None = None,
    input_shape: str | None = None,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Look at two checkpoints before spending anything: what moved, the rank of ΔW1, equations, time and memory.

    Example: recollect inspect run     or: recollect inspect init.safetensors trained.safetensors

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    n
        The number of points to estimate time and memory for; auto: the rank of ΔW1.
    activation
        The network's activation; by default what the checkpoint says, else relu.
    model
        package.module:factory, a function that makes the torch module. By default a plain MLP is read off the shapes.
    input_shape
        Of one input to --model, for instance 3,32,32.
    """
    terminal, where = Terminal(json=json), choose_device(device)
    check_count(n)
    victim = load_victim(paths, activation, model, input_shape)
    announce_svd(terminal, victim)
    looked = inspect_victim(victim)
    settings = outlook(victim, looked, looked.rank if n == "auto" else n, Machine.measured(where))
    values = None if looked.spectrum is None else looked.spectrum.singular_values.tolist()
    rows: dict[str, object] = {
        "victim": looked.description,
        "rank": looked.rank if values else f"{looked.rank} (all of d: no subspace)",
    }
    rows |= {
        f"moved: {name}": f"{share:.2%} of its norm" if math.isfinite(share) else "from zero"
        for name, share in looked.moved.items()
    }
    for counting in looked.counting:
        rows[f"--parameters {counting.parameters}"] = (
            f"{counting.equations} equations, {counting.unknowns_each} unknowns a point: at most "
            f"{counting.most_points} points by counting (necessary, not sufficient)"
        )
        rows[f"  n: equations an unknown ({counting.parameters})"] = ", ".join(
            f"{number}: {counting.equations / unknowns:.3g}" for number, unknowns in counting.by_n()
        )
    for one in settings:
        rows[f"expected for n = {one.n}, {one.parameters}"] = (
            f"about {_duration(one.seconds)} and {spoken(one.bytes)} on this machine"
            + (f"; not worth trying: {one.against}" if one.against else "")
        )
    terminal.table(rows)
    for sentence in looked.expectations:
        terminal.say(f"· {sentence}")
    terminal.answer(
        {
            "victim": looked.description,
            "rank": looked.rank,
            "gap": None if looked.spectrum is None else finite(looked.spectrum.gap),
            "gap_found": None if looked.spectrum is None else looked.spectrum.found,
            "singular_values": values,
            "moved": {name: finite(share) for name, share in looked.moved.items()},
            "counting": [{**asdict(counting), "by_n": counting.by_n()} for counting in looked.counting],
            "settings": [{**asdict(one), "worth_trying": not one.against} for one in settings],
            "norms_identifiable": looked.norms_identifiable,
            "signs": looked.signs.value,
            "expectations": list(looked.expectations),
        }
    )
    return 0


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"


@app.command
def reconstruct(
    *paths: Path,
    n: CountOrAuto,
    out: Path,
    solver: Literal["auto", "lm", "gd"] = "auto",
    space: Literal["subspace", "full"] = "subspace",
    basis: Path | None = None,
    rank: CountOrAuto = "auto",
    parameters: str = "last",
    endpoints: Literal["final", "initial", "both", "path"] | None = None,
    gram: Literal["auto", "layerwise", "dense", "cg"] = "auto",
    norm: float | Literal["sqrt-d", "free"] | None = None,
    step: float | None = None,
    momentum: float | None = None,
    iterations: Count | None = None,
    restarts: Count = 1,
    dtype: Literal["float32", "float64"] | None = None,
    activation: str | None = None,
    model: str | None = None,
    input_shape: str | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    resume: bool = True,
    json: Json = False,
) -> int:
    """Find the inputs whose gradients span the change of the weights. Opens the two checkpoints and nothing else.

    Example: recollect reconstruct run --n 20 --out run/found
    or: recollect reconstruct INIT TRAINED --n 20 --out found

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    n
        How many points to look for; auto takes it from the residual (with --solver auto).
    out
        Folder for reconstruction.safetensors, reconstruct.json and a checkpoint to resume from.
    solver
        auto: Levenberg–Marquardt in stages. lm: Levenberg–Marquardt alone. gd: projected gradient descent, the paper's.
    space
        subspace: Algorithm 2, within the span of ΔW1. full: Algorithm 1.
    basis
        A .safetensors file with U (d×r): search within its span instead.
    rank
        Dimension of the subspace; auto takes it from the gap in the spectrum.
    parameters
        last, all, or names of tensors or layers joined by commas.
    endpoints
        Gradients after training (final), before it (initial), both, or both and halfway between (path). Default: both
        for auto (path for all layers), final for the others.
    gram
        How gd solves for the coefficients: layerwise, dense, cg, or auto (layerwise where every layer has a rule).
    norm
        Norm of the points: sqrt-d, a number, or free. Default: sqrt-d if the network hides norms, else free.
    step
        Step size of gd; default 20 for inputs of up to 256 dimensions, else 2000.
    momentum
        Momentum of gd; default 0.9.
    iterations
        Iterations of each run at most; default 10000 for gd, 200 for the others.
    restarts
        Random starts; the one with the smallest loss is kept.
    dtype
        Precision of the search; default float32 for gd, float64 for the others, which need it.
    activation
        The network's activation; by default what the checkpoint says, else relu.
    model
        package.module:factory, a function that makes the torch module. By default a plain MLP is read off the shapes.
    input_shape
        Of one input to --model, for instance 3,32,32.
    resume
        Go on from the checkpoint in --out if it is of the same run.
    """
    terminal = Terminal(json=json)
    check_seed(seed)
    if basis is not None and (space == "full" or rank != "auto"):
        raise OptionError(
            "expected --basis alone, got --basis with --space full or --rank; the basis decides both: leave them out"
        )
    if space == "full" and rank != "auto":
        raise OptionError("expected --rank with --space subspace, got it with --space full; leave one of them out")
    where = choose_device(device)
    check_writable(out)
    victim = load_victim(paths, activation, model, input_shape)
    _protect(paths, out)
    chosen: FullSpace | Subspace | Basis
    if basis is not None:
        chosen = Basis(U=_read_basis(basis))
    else:
        if space == "subspace":
            announce_svd(terminal, victim)
        chosen = FullSpace() if space == "full" else Subspace(rank=None if rank == "auto" else rank)
    attack = Projection(
        space=chosen,
        parameters=parameters,
        norm=math.sqrt(victim.d) if norm == "sqrt-d" else norm,
        solver=_solver(solver, step, momentum, iterations),
        endpoints=None if endpoints is None else Endpoints(endpoints),
        restarts=restarts,
        gram=gram,
        dtype=None if dtype is None else DTYPES[dtype],
    )
    checkpoint = FileCheckpoint(out, resume=resume)
    found = run_attack(
        victim,
        None if n == "auto" else n,
        attack,
        seed=seed,
        device=where,
        progress=terminal.progress,
        checkpoint=checkpoint,
    )
    options = {
        "checkpoints": [str(path) for path in paths],
        "n": n,
        "solver": solver,
        "space": f"basis {basis}" if basis else space,
        "rank": rank,
        "parameters": parameters,
        "model": model,
        "endpoints": endpoints,
        "gram": gram,
        "norm": norm,
        "step": step,
        "momentum": momentum,
        "iterations": iterations,
        "restarts": restarts,
        "dtype": dtype,
        "activation": activation,
        "seed": seed,
        "device": where.type,
    }
    facts = write_reconstruction(out, found, victim, options)
    if found.resumed_at:
        terminal.note(f"went on from iteration {found.resumed_at} of an earlier run")
    seconds = sum(stage.seconds for stage in found.stages)
    terminal.say(
        f"{len(found.inputs)} points in {found.rank} coordinates: {found.loss:.3e} of the change left unexplained, "
        f"{sum(stage.iterations for stage in found.stages)} iterations, {seconds:.1f} s."
    )
    terminal.say(f"{found.status.value}.")
    if found.confidence is not None:
        terminal.say(_tell_confidence(found.confidence, up_to_sign=up_to_sign(found)))
    for sentence in found.notes:
        terminal.say(f"· {sentence}")
    terminal.say(f"Written to {out}. See: recollect report {out}")
    terminal.answer({**facts, "out": str(out)})
    if found.status in (Status.SINGULAR, Status.DIVERGED):
        raise RunError(f"{found.status.value} (the best so far is in {out})")
    return 130 if found.status is Status.INTERRUPTED else 0


def _solver(
    name: str, step: float | None, momentum: float | None, iterations: int | None
) -> Auto | LevenbergMarquardt | GradientDescent:
    given = {"step_size": step, "momentum": momentum, "iterations": iterations}
    options: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if name == "gd":
        return GradientDescent(**options)
    if step is not None or momentum is not None:
        raise OptionError(f"expected --step and --momentum with --solver gd, got --solver {name}; leave them out")
    return LevenbergMarquardt(**options) if name == "lm" else Auto(**options)


def _tell_confidence(confidence: torch.Tensor, *, up_to_sign: bool) -> str:
    doubtful = int((confidence < 0.5).sum())
    if not doubtful:
        but = ", up to its sign" if up_to_sign else ""
        return f"The weights hold every point{but}; the least confidence is {float(confidence.min()):.2g}."
    return f"{doubtful} of {len(confidence)} points are doubtful (confidence below 0.5): do not trust those."


def _protect(paths: tuple[Path, ...], out: Path) -> None:
    """No input is ever overwritten, whatever it is called and wherever --out points."""
    ours = {(out / name).resolve() for name in (TENSORS, FACTS, CHECKPOINT)}
    for path in paths:
        if path.resolve() in ours:
            raise OptionError(
                f"expected --out elsewhere than beside {path}, got a folder where it would be overwritten"
            )


def _read_basis(path: Path) -> torch.Tensor:
    tensors, _ = read_tensors(path)
    if "U" not in tensors:
        raise OptionError(
            f"expected U (d×r) in {path}, got {', '.join(list(tensors)[:4]) or 'nothing'}; save the basis under "
            "that name"
        )
    return tensors["U"]
