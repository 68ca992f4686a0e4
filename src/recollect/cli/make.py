"""`recollect demo` and `recollect train`: making victims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from recollect.cli.common import Count, Device, Flag, Json, Seed, app, check_seed, score_json
from recollect.console import Terminal
from recollect.files import check_writable
from recollect.recipe import Recipe
from recollect.reconstruct import choose_device
from recollect.records import finite, versions
from recollect.truth import write_training


@app.command
def demo(*, out: Path = Path("recollect-demo"), seed: Seed = 0, json: Json = False) -> int:
    """Train on 20 built-in photographs, read them back from the weights, and write a report: a quarter of a minute.

    Example: recollect demo --out demo

    Parameters
    ----------
    out
        Folder for the checkpoints, the reconstruction and the report.
    """
    from recollect.demo import tell

    terminal = Terminal(json=json)
    check_seed(seed)
    check_writable(out)
    score = tell(out, seed=seed, say=terminal.say, progress=terminal.progress)
    terminal.answer(
        {**score_json(score), "median_error": float(score.errors.median()), "report": str(out / "report.html")}
    )
    return 0


@app.command
def train(
    *,
    dataset: str,
    n: Count,
    out: Path,
    dim: Count = 60,
    rank: Count = 30,
    noise: float = 0.5,
    keep_norms: Annotated[bool, Flag] = False,
    victim: Literal["mlp", "rf"] = "mlp",
    width: Count,
    depth: Count = 2,
    bias: Annotated[bool, Flag] = False,
    activation: str = "relu",
    init: Literal["fan-in", "torch"] = "fan-in",
    loss: Literal["mse-mean", "mse-sum"] = "mse-mean",
    learning_rate: float | Literal["auto"] = "auto",
    tolerance: float = 1e-7,
    max_steps: Count = 200_000,
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
    recipe = Recipe(
        dataset=dataset,
        n=n,
        width=width,
        dim=dim,
        rank=rank,
        noise=noise,
        keep_norms=keep_norms,
        victim=victim,
        depth=depth,
        bias=bias,
        activation=activation,
        init=init,
        loss=loss,
        learning_rate=None if learning_rate == "auto" else learning_rate,
        tolerance=tolerance,
        max_steps=max_steps,
        dtype=dtype,
        seed=seed,
    )
    where = choose_device(device)
    check_writable(out)
    data = recipe.data()
    done = recipe.make(data, where, terminal.progress)
    facts: dict[str, Any] = {
        "options": {
            "dataset": dataset,
            "n": n,
            "dim": data.inputs.shape[1],
            "rank": data.basis.shape[1],
            "noise": noise if dataset == "synthetic" else None,
            "keep_norms": keep_norms,
            "victim": victim,
            "width": width,
            "depth": depth if victim == "mlp" else 2,
            "bias": bias,
            "activation": activation,
            "init": init,
            "loss": loss,
            "learning_rate": learning_rate,
            "tolerance": tolerance,
            "dtype": dtype,
            "seed": seed,
            "device": where.type,
        },
        "network": done.victim.describe(),
        "mse": done.mse,
        "steps": done.steps,
        "learning_rate": done.learning_rate,
        "lambda_max": done.lambda_max,
        "seconds": done.seconds,
        "versions": versions(),
    }
    if done.closed_form is not None:  # what `recollect bounds theorem` asks for
        form = done.closed_form
        facts |= {"alpha": form.l1, "c": form.c, "separation": finite(form.separation)}
    write_training(out, data, done, facts)
    how = "in closed form" if victim == "rf" else f"after {done.steps} steps of {done.learning_rate:.3g}"
    terminal.say(
        f"{done.victim.describe()}: mean squared error {done.mse:.1e} {how}, {done.seconds:.1f} s. Written to {out}."
    )
    terminal.answer({**facts, "out": str(out)})
    return 0
