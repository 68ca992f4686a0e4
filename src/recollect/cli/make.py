"""`recollect demo` and `recollect train`: making victims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from recollect.cli.common import Device, Flatten, Json, app
from recollect.cli.console import Terminal
from recollect.cli.flags import flags, given
from recollect.options import build, schema
from recollect.truth.recipe import Recipe

TrainFlags = flags("TrainFlags", Recipe)
DemoFlags = flags("DemoFlags", {"seed": schema(Recipe)["seed"]})


@app.command
def demo(
    *,
    out: Path = Path("recollect-demo"),
    flags: Annotated[DemoFlags, Flatten] = DemoFlags(),  # type: ignore[valid-type]
    json: Json = False,
) -> int:
    """Train on 20 built-in photographs, read them back from the weights, and write a report: a
    quarter of a minute.

    Example: recollect demo --out demo

    Parameters
    ----------
    out
        Folder for the checkpoints, the reconstruction and the report.
    """
    from recollect.demo import recipe, tell
    from recollect.system.files import check_writable

    terminal = Terminal(json=json)
    made = recipe(**given(flags))
    check_writable(out)
    score = tell(out, made, say=terminal.say, progress=terminal.progress)
    median = float(score.errors.median())
    terminal.answer({**score.facts(), "median_error": median, "report": str(out / "report.html")})
    return 0


@app.command
def train(
    *,
    out: Path,
    flags: Annotated[TrainFlags, Flatten] = TrainFlags(),  # type: ignore[valid-type]
    device: Device = "auto",
    json: Json = False,
) -> int:
    """Make a victim: train a network until it interpolates its data, and keep θ0, θf and the truth.

    Example: recollect train --dataset photos --n 20 --width 2000 --out run

    Parameters
    ----------
    out
        Folder for init, trained, truth and basis (.safetensors) and train.json.
    """
    from recollect.system.device import choose_device
    from recollect.system.files import check_writable
    from recollect.truth.recipe import make

    terminal = Terminal(json=json)
    recipe: Recipe = build(Recipe, given(flags), owner="train")
    where = choose_device(device)
    check_writable(out)
    made = make(recipe, device=where, progress=terminal.progress)
    facts = made.save(out)
    done = made.training
    how = (
        "in closed form"
        if recipe.victim == "rf"
        else f"after {done.steps} steps of {done.learning_rate:.3g}"
    )
    terminal.say(
        f"{done.victim.describe()}: mean squared error {done.mse:.1e} {how}, {done.seconds:.1f} s. "
        f"Written to {out}."
    )
    terminal.answer({**facts, "out": str(out)})
    return 0
