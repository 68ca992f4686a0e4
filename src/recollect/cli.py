"""`recollect`: parse, call, print. Exit codes: 0 done, 1 the run failed, 2 bad usage or bad input, 130 interrupted."""

from __future__ import annotations

import math
import os
import signal
import sys
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import cyclopts
import torch
from cyclopts import App, Parameter

from recollect import __version__
from recollect.console import Terminal
from recollect.data import load_dataset
from recollect.errors import InputError, OptionError, RecollectError
from recollect.files import read_tensors, write_bytes
from recollect.inspection import inspect as inspect_victim
from recollect.metrics import Score, evaluate as score_of
from recollect.reconstruct import Basis, FullSpace, Projection, RecollectWarning, Subspace, choose_device, reconstruct as run_attack
from recollect.records import FileCheckpoint, finite, read_reconstruction, versions, write_reconstruction
from recollect.solve import GradientDescent, Status
from recollect.training import FullBatchDescent, SquaredError, minimum_norm, train as run_training
from recollect.truth import read_truth, write_training
from recollect.victim import Victim, initial_theta, mlp, random_features
from recollect.victim.activations import activation as check_activation

app = App(
    name="recollect",
    version=__version__,
    help="Read training data back out of a network's weights, to audit your own models. Start with: recollect demo",
)
Flag = Parameter(negative="")
Json = Annotated[bool, Parameter(negative="", help="Print one JSON object on stdout and nothing else there.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute.")]
Seed = Annotated[int, Parameter(help="Same seed, same machine, same bits.")]
_DTYPES = {"float32": torch.float32, "float64": torch.float64}


@app.command
def demo(*, out: Path = Path("recollect-demo"), seed: Seed = 0, json: Json = False) -> int:
    """Train on 20 built-in photographs, read them back from the weights, and write a report. About half a minute.

    Example: recollect demo --out demo

    Parameters
    ----------
    out
        Folder for the checkpoints, the reconstruction and the report.
    """
    from recollect.demo import tell

    terminal = Terminal(json=json)
    _check_seed(seed)
    score = tell(out, seed=seed, say=terminal.say, progress=terminal.progress)
    terminal.answer({**_score_json(score), "median_error": float(score.errors.median()), "report": str(out / "report.html")})
    return 0


@app.command
def train(
    *,
    dataset: str,
    n: int,
    out: Path,
    dim: int = 60,
    rank: int = 30,
    noise: float = 0.5,
    keep_norms: Annotated[bool, Flag] = False,
    victim: Literal["mlp", "rf"] = "mlp",
    width: int,
    depth: int = 2,
    bias: Annotated[bool, Flag] = False,
    activation: str = "relu",
    init: Literal["fan-in", "torch"] = "fan-in",
    loss: Literal["mse-mean", "mse-sum"] = "mse-mean",
    learning_rate: float | Literal["auto"] = "auto",
    tolerance: float = 1e-7,
    max_steps: int = 200_000,
    dtype: Literal["float32", "float64"] = "float32",
    seed: Seed = 0,
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Make a victim: train a network until it interpolates its data, and keep θ0, θf and the truth.

    Example: recollect train --dataset photos --n 20 --width 2000 --out run

    Parameters
    ----------
    dataset
        synthetic, photos, digits, cifar10, a folder of images or CIFAR-10 batches, or an .npz file.
    n
        Points to train on; for images, equal counts of each class in file order.
    out
        Folder for init, trained, truth and basis (.safetensors) and train.json.
    dim
        Input dimension d (synthetic).
    rank
        Dimension r of the subspace the data lie in (synthetic).
    noise
        Standard deviation σ of the label noise (synthetic).
    keep_norms
        Leave each input's norm alone instead of scaling it to √d.
    victim
        mlp: a trained network. rf: random features with the closed-form minimum-norm last layer.
    width
        Hidden width p.
    depth
        Number of weight matrices, the paper's L (mlp).
    bias
        Give every layer a bias.
    activation
        relu, leaky-relu, tanh, sigmoid, gelu, softplus, sine or erf.
    init
        fan-in: N(0, 1/fan_in); torch: as torch.nn.Linear starts (mlp).
    loss
        Mean of squares, or half their sum.
    learning_rate
        auto is one tenth of the stability limit 2/λmax.
    tolerance
        Stop at this mean squared error.
    max_steps
        Give up after so many steps.
    dtype
        Precision of the training.
    """
    terminal = Terminal(json=json)
    _check_seed(seed)
    check_activation(activation)
    loss_, optimiser = SquaredError(reduction=loss.removeprefix("mse-")), FullBatchDescent(learning_rate=None if learning_rate == "auto" else learning_rate, max_steps=max_steps)
    where = choose_device(device)
    data = load_dataset(dataset, n, dim=dim, rank=rank, noise=noise, seed=seed, keep_norms=keep_norms)
    d, c = data.inputs.shape[1], data.targets.shape[1]
    make = random_features(d, width, c, bias=bias, activation=activation) if victim == "rf" else mlp(d, width, c, depth=depth, bias=bias, activation=activation)
    # The data take the seed itself; the weights take another stream.
    generator = torch.Generator().manual_seed(seed + 2**32)
    theta_0 = {name: tensor.to(where) for name, tensor in initial_theta(make, init=init, generator=generator, dtype=_DTYPES[dtype]).items()}
    X, Y = data.inputs.to(where), data.targets.to(where)
    if victim == "rf":
        done = minimum_norm(make, theta_0, X, Y)
    else:
        done = run_training(make, theta_0, X, Y, loss=loss_, optimiser=optimiser, tolerance=tolerance, progress=terminal.progress)
    facts: dict[str, Any] = {
        "options": {
            "dataset": dataset, "n": n, "dim": d, "rank": data.basis.shape[1], "noise": noise if dataset == "synthetic" else None, "keep_norms": keep_norms,
            "victim": victim, "width": width, "depth": depth if victim == "mlp" else 2, "bias": bias, "activation": activation, "init": init, "loss": loss,
            "learning_rate": learning_rate, "tolerance": tolerance, "dtype": dtype, "seed": seed, "device": where.type,
        },
        "network": done.victim.describe(), "mse": done.mse, "steps": done.steps, "learning_rate": done.learning_rate, "lambda_max": done.lambda_max,
        "seconds": done.seconds, "versions": versions(),
    }  # fmt: skip
    write_training(out, data, done, facts)
    how = "in closed form" if victim == "rf" else f"after {done.steps} steps of {done.learning_rate:.3g}"
    terminal.say(f"{done.victim.describe()}: mean squared error {done.mse:.1e} {how}, {done.seconds:.1f} s. Written to {out}.")
    terminal.answer({**facts, "out": str(out)})
    return 0


@app.command
def inspect(*paths: Path, activation: str | None = None, json: Json = False) -> int:
    """Look at two checkpoints: what moved, the spectrum of ΔW1 and its rank, equations against unknowns.

    Example: recollect inspect run     or: recollect inspect init.safetensors trained.safetensors

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    activation
        The network's activation; by default what the checkpoint says, else relu.
    """
    terminal = Terminal(json=json)
    looked = inspect_victim(_load(paths, activation))
    values = None if looked.spectrum is None else looked.spectrum.singular_values.tolist()
    rows: dict[str, object] = {"victim": looked.description, "rank": looked.rank if values else f"{looked.rank} (all of d: no subspace)"}
    rows |= {f"moved: {name}": f"{share:.2%} of its norm" if math.isfinite(share) else "from zero" for name, share in looked.moved.items()}
    for counting in looked.counting:
        rows[f"--parameters {counting.parameters}"] = f"{counting.equations} equations: enough for at most {counting.most_points} points"
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
            "counting": [asdict(counting) for counting in looked.counting],
            "norms_identifiable": looked.norms_identifiable,
            "expectations": list(looked.expectations),
        }
    )
    return 0


@app.command
def reconstruct(
    *paths: Path,
    n: int,
    out: Path,
    solver: Literal["gd"] = "gd",
    space: Literal["subspace", "full"] = "subspace",
    basis: Path | None = None,
    rank: int | Literal["auto"] = "auto",
    parameters: str = "last",
    gram: Literal["auto", "dense", "cg"] = "auto",
    norm: float | Literal["sqrt-d", "free"] | None = None,
    step: float | None = None,
    momentum: float = 0.9,
    iterations: int = 10_000,
    restarts: int = 1,
    dtype: Literal["float32", "float64"] = "float32",
    activation: str | None = None,
    seed: Seed = 0,
    device: Device = "auto",
    resume: bool = True,
    json: Json = False,
) -> int:
    """Find the inputs whose gradients span the change of the weights. Opens the two checkpoints and nothing else.

    Example: recollect reconstruct run --n 20 --out run/found     or: recollect reconstruct INIT TRAINED --n 20 --out found

    Parameters
    ----------
    paths
        RUN (a folder that `train` made), or INIT TRAINED (two checkpoints).
    n
        How many points to look for.
    out
        Folder for reconstruction.safetensors, reconstruct.json and a checkpoint to resume from.
    solver
        gd: projected gradient descent, the paper's.
    space
        subspace: Algorithm 2, within the span of ΔW1. full: Algorithm 1.
    basis
        A .safetensors file with U (d×r): search within its span instead.
    rank
        Dimension of the subspace; auto takes it from the gap in the spectrum.
    parameters
        last, all, or names of tensors or layers joined by commas.
    gram
        How to solve for the coefficients beyond the last layer: dense, cg, or auto (dense where it fits).
    norm
        Norm of the points: sqrt-d, a number, or free. Default: sqrt-d if the network hides norms, else free.
    step
        Step size; default 20 for inputs of up to 256 dimensions, else 2000.
    momentum
        Momentum of gradient descent.
    iterations
        Iterations of each start.
    restarts
        Random starts; the one with the smallest loss is kept.
    dtype
        Precision of the search.
    activation
        The network's activation; by default what the checkpoint says, else relu.
    resume
        Go on from the checkpoint in --out if it is of the same run.
    """
    terminal = Terminal(json=json)
    _check_seed(seed)
    if basis is not None and (space == "full" or rank != "auto"):
        raise OptionError("expected --basis alone, got --basis with --space full or --rank; the basis decides both: leave them out")
    if space == "full" and rank != "auto":
        raise OptionError("expected --rank with --space subspace, got it with --space full; leave one of them out")
    where = choose_device(device)
    victim = _load(paths, activation)
    chosen: FullSpace | Subspace | Basis
    if basis is not None:
        chosen = Basis(U=_read_basis(basis))
    else:
        chosen = FullSpace() if space == "full" else Subspace(rank=None if rank == "auto" else rank)
    attack = Projection(
        space=chosen,
        parameters=parameters,
        norm=math.sqrt(victim.d) if norm == "sqrt-d" else norm,
        solver=GradientDescent(step_size=step, momentum=momentum, iterations=iterations),
        restarts=restarts,
        gram=gram,
        dtype=_DTYPES[dtype],
    )
    checkpoint = FileCheckpoint(out, resume=resume)
    found = run_attack(victim, n, attack, seed=seed, device=where, progress=terminal.progress, checkpoint=checkpoint)
    options = {
        "n": n, "solver": solver, "space": "basis" if basis else space, "rank": rank, "parameters": parameters, "gram": gram, "norm": norm, "step": step,
        "momentum": momentum, "iterations": iterations, "restarts": restarts, "dtype": dtype, "activation": activation, "seed": seed, "device": where.type,
    }  # fmt: skip
    facts = write_reconstruction(out, found, {"victim": victim.describe(), "options": options})
    if checkpoint.resumed_at:
        terminal.note(f"resumed at iteration {checkpoint.resumed_at}")
    seconds = sum(stage.seconds for stage in found.stages)
    terminal.say(f"{n} points in {found.rank} coordinates: {found.loss:.3e} of the change left unexplained, {found.stages[-1].iterations} iterations, {seconds:.1f} s.")
    terminal.say(f"{found.status.value}.")
    for sentence in found.notes:
        terminal.say(f"· {sentence}")
    terminal.say(f"Written to {out}. See: recollect report {out}")
    terminal.answer({**facts, "out": str(out)})
    return 130 if found.status is Status.INTERRUPTED else 0


@app.command
def evaluate(folder: Path, *, truth: Path, json: Json = False) -> int:
    """Score a reconstruction against the true inputs.

    Example: recollect evaluate run/found --truth run/truth.safetensors

    Parameters
    ----------
    folder
        Folder that `reconstruct` wrote.
    truth
        A .safetensors or .npz file that holds `inputs`.
    """
    terminal = Terminal(json=json)
    score = score_of(read_reconstruction(folder), read_truth(truth).inputs)
    finite_errors = score.errors[score.errors.isfinite()]
    terminal.table(
        {
            "ρ": f"{score.rho:.4f}   (missed {score.missed}, spurious {score.spurious})",
            "ρ up to sign": f"{score.rho_up_to_sign:.4f}",
            "ρ to the closest": f"{score.rho_closest:.4f}",
            "errors": f"median {float(finite_errors.median()):.4f}, worst {float(finite_errors.max()):.4f}",
            "recovered": f"{score.recovered:.0%} of the points, with an error below 0.1",
            "chance, sphere": f"{score.chance['sphere']:.3f}   (up to sign {score.chance['sphere_up_to_sign']:.3f})",
            "chance, span of the data": f"{score.chance['span']:.3f}   (up to sign {score.chance['span_up_to_sign']:.3f})",
            "other true points": f"{score.chance['other_points']:.3f}" if "other_points" in score.chance else "–",
        }
    )
    terminal.answer(_score_json(score))
    return 0


@app.command
def report(folder: Path, *, truth: Path | None = None, json: Json = False) -> int:
    """Write DIR/report.html: one self-contained page, with the truth beside the reconstruction where it is given.

    Example: recollect report run/found --truth run/truth.safetensors

    Parameters
    ----------
    folder
        Folder that `reconstruct` wrote.
    truth
        A .safetensors or .npz file that holds `inputs`.
    """
    from recollect.report import render, summary

    terminal = Terminal(json=json)
    record = read_reconstruction(folder)
    known = None if truth is None else read_truth(truth)
    score = None if known is None else score_of(record, known.inputs)
    path = folder / "report.html"
    write_bytes(path, render(record, known).encode())
    terminal.say(summary(record, score))
    terminal.say(f"Written to {path}.")
    terminal.answer({"report": str(path), **(_score_json(score) if score else {})})
    return 0


def _load(paths: tuple[Path, ...], activation: str | None) -> Victim:
    if len(paths) == 1 and paths[0].is_dir():
        paths = (paths[0] / "init.safetensors", paths[0] / "trained.safetensors")
    if len(paths) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(f"expected a folder that `recollect train` made, or two checkpoints INIT TRAINED, got {got}; give one of those")
    if activation is not None:
        check_activation(activation)
    return Victim.load(*paths, activation=activation)


def _read_basis(path: Path) -> torch.Tensor:
    tensors, _ = read_tensors(path)
    if "U" not in tensors:
        raise OptionError(f"expected U (d×r) in {path}, got {', '.join(list(tensors)[:4]) or 'nothing'}; save the basis under that name")
    return tensors["U"]


def _score_json(score: Score) -> dict[str, Any]:
    return {
        "rho": score.rho,
        "rho_up_to_sign": score.rho_up_to_sign,
        "rho_closest": score.rho_closest,
        "recovered": score.recovered,
        "missed": score.missed,
        "spurious": score.spurious,
        "chance": score.chance,
        "errors": [finite(error) for error in score.errors.tolist()],
        "errors_up_to_sign": [finite(error) for error in score.errors_up_to_sign.tolist()],
    }


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise OptionError(f"expected --seed between 0 and {2**32 - 1}, got {seed}; choose one of those")


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Every way it can end is a line for a person and an exit code; a traceback is a defect."""
    if not callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill is a Ctrl-C: it keeps the best so far
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", RecollectWarning)
    try:
        code = app(sys.argv[1:] if arguments is None else arguments, exit_on_error=False, print_error=False, result_action="return_value")
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError as error:
        return _fail(f"{' '.join(str(error).split())} See: recollect --help", 2)
    except RecollectError as error:
        return _fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _fail("interrupted", 130)
    except torch.cuda.OutOfMemoryError:
        return _fail("expected the run to fit on the GPU, got out of memory; use fewer points, a narrower search (--parameters last), or --device cpu", 1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        return _fail("expected the run to fit in memory, got out of memory; use fewer points, a smaller --width, or --parameters last", 1)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, RecollectWarning):
        sys.stderr.write(f"recollect: warning: {message}\n")


def _fail(message: str, code: int) -> int:
    sys.stderr.write(f"recollect: {message}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
