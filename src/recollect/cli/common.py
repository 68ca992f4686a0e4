"""What several commands share: the app, shared options, finding the victim, the score as JSON."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from cyclopts import App, Parameter, Token

from recollect import __version__
from recollect.console import Terminal
from recollect.errors import OptionError
from recollect.metrics import Score
from recollect.records import finite
from recollect.victim import Victim
from recollect.victim.activations import activation as check_activation

app = App(
    name="recollect",
    version=__version__,
    suppress_keyboard_interrupt=False,
    help="Read training data back out of a network's weights, to audit your own models. Start with: recollect demo",
)
Flag = Parameter(negative="")
Json = Annotated[bool, Parameter(negative="", help="Print one JSON object on stdout and nothing else there.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute.")]


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """A whole number as it is written: 10.7 is a mistake and not 11."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {tokens[0].value!r}.") from None


def _whole_or_auto(kind: object, tokens: Sequence[Token]) -> int | str:
    return "auto" if tokens[0].value == "auto" else _whole(kind, tokens)


CountOrAuto = Annotated[int | Literal["auto"], Parameter(converter=_whole_or_auto)]
Count = Annotated[int, Parameter(converter=_whole)]
Seed = Annotated[int, Parameter(converter=_whole, help="Same seed, same machine, same bits.")]


def load_victim(
    paths: tuple[Path, ...], activation: str | None, model: str | None = None, input_shape: str | None = None
) -> Victim:
    paths = checkpoints(paths)
    if len(paths) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(
            f"expected a folder that `recollect train` made, or two checkpoints INIT TRAINED, got {got}; give one "
            "of those"
        )
    return Victim.load(*paths, **network_options(activation, model, input_shape))


def checkpoints(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The two of a folder that `recollect train` made, or what was given."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / "init.safetensors", paths[0] / "trained.safetensors"
    return paths


def network_options(activation: str | None, model: str | None, input_shape: str | None) -> dict[str, Any]:
    """What a file of weights does not say of its network: `activation`, `model`, `input_shape`."""
    if activation is not None:
        check_activation(activation)
    if model is not None and activation is not None:
        raise OptionError("expected --model or --activation, got both; the model decides: leave --activation out")
    if model is None and input_shape is not None:
        raise OptionError("expected --input-shape with --model, got it alone; an MLP takes flat inputs: leave it out")
    return {
        "activation": activation,
        "model": None if model is None else build_model(model),
        "input_shape": None if input_shape is None else _shape(input_shape),
    }


def build_model(name: str) -> torch.nn.Module:
    """`package.module:factory`, looked for in the current folder too. The code it names is run: it is the caller's."""
    package, _, factory = name.partition(":")
    if not package or not factory:
        raise OptionError(f"expected --model package.module:factory, got {name}; name a function that makes the model")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        make = getattr(importlib.import_module(package), factory)
    except Exception as error:  # whatever importing the caller's code does
        what = f"{type(error).__name__}: {error}"
        raise OptionError(f"expected --model to name a function, got {name}, {what}; check the name") from None
    try:
        model = make()
    except Exception as error:  # whatever the caller's code does
        raise OptionError(
            f"expected {name} to make a model without arguments, got {type(error).__name__}: {error}; wrap it in a "
            "function that needs none"
        ) from None
    if not isinstance(model, torch.nn.Module):
        raise OptionError(f"expected {name} to return a torch.nn.Module, got {type(model).__name__}; return the model")
    return model


def _shape(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise OptionError(f"expected --input-shape like 3,32,32, got {text!r}; give whole numbers")
    return shape


def announce_svd(terminal: Terminal, victim: Victim) -> None:
    """The decomposition of ΔW1 cannot report how far it is; where it takes seconds, say at least what is going on."""
    first = victim.network.first
    shape = () if first is None else tuple(victim.theta_f[first.weight].shape)
    if math.prod(shape) > 4_000_000:
        terminal.note(f"decomposing ΔW1, {shape[0]}×{shape[1]} …")


def score_json(score: Score) -> dict[str, Any]:
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


def check_count(n: int | Literal["auto"]) -> None:
    if n != "auto" and n < 1:
        raise OptionError(f"expected --n of at least 1, got {n}; give the number of training points, or auto")


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise OptionError(f"expected --seed between 0 and {2**32 - 1}, got {seed}; choose one of those")
