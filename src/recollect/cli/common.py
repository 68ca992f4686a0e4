"""What several commands share: the app, common options, and loading the victim. Importing this
module does not import torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter, Token

from recollect.attacks.options import imported
from recollect.cli.console import Terminal
from recollect.errors import OptionError
from recollect.options import build
from recollect.victim.options import NetworkOptions

if TYPE_CHECKING:
    from torch import nn

    from recollect.victim.victim import Victim


def _version() -> str:
    from importlib.metadata import version

    return version("recollect")


app = App(
    name="recollect",
    version=_version,
    suppress_keyboard_interrupt=False,
    help="Read training data back out of a network's weights, to audit your own models. Start "
    "with: recollect demo",
)
Flag = Parameter(negative="")


def _whole(_: object, tokens: Sequence[Token]) -> int:
    """Parse a whole number. 10.7 is an error; it is not rounded to 11."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"expected a whole number, got {tokens[0].value!r}.") from None


Count = Annotated[int, Parameter(converter=_whole)]
Json = Annotated[
    bool, Parameter(negative="", help="Print one JSON object on stdout and nothing else there.")
]
Device = Annotated[Literal["auto", "cpu", "cuda"], Parameter(help="Where to compute.")]
Flatten = Parameter(name="*")
"""The fields of a dataclass become flags of the command."""


def load_victim(paths: tuple[Path, ...], network: NetworkOptions) -> Victim:
    """The victim that a command was given: a folder that `train` made, or two checkpoints."""
    from recollect.victim.victim import load

    found = checkpoints(paths)
    if len(found) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(
            "expected a folder that `recollect train` made, or two checkpoints INIT TRAINED, got "
            f"{got}; give one "
            "of those"
        )
    init, trained = found
    return load(
        init,
        trained,
        activation=network.activation,
        model=build_model(network.model),
        input_shape=network.shape,
    )


def checkpoints(paths: tuple[Path, ...]) -> tuple[Path, ...]:
    """The two checkpoints of a folder that `recollect train` made, or the paths as given."""
    if len(paths) == 1 and paths[0].is_dir():
        return paths[0] / "init.safetensors", paths[0] / "trained.safetensors"
    return paths


def network_options(flags: Mapping[str, Any]) -> NetworkOptions:
    """The options of the network, from the flags."""
    made: NetworkOptions = build(NetworkOptions, flags)
    return made


def build_model(name: str | None) -> nn.Module | None:
    """The model that `package.module:factory` makes. The module may lie in the current folder.

    The code that it names is run, because the caller chose it.
    """
    if name is None:
        return None
    from torch import nn

    make = imported(name, "--model", "a function")
    try:
        model = make()
    except (Exception, SystemExit) as error:  # The caller's code may raise anything.
        raise OptionError(
            f"expected {name} to make a model without arguments, got {type(error).__name__}: "
            f"{error}; wrap it in a "
            "function that needs none"
        ) from None
    if not isinstance(model, nn.Module):
        raise OptionError(
            f"expected {name} to return a torch.nn.Module, got {type(model).__name__}; return the "
            "model"
        )
    return model


def announce_svd(terminal: Terminal, victim: Victim) -> None:
    """Announce the decomposition of ΔW1 if it takes seconds, because it cannot report progress."""
    first = victim.network.first
    shape = () if first is None else tuple(victim.theta_f[first.weight].shape)
    if math.prod(shape) > 4_000_000:
        terminal.note(f"decomposing ΔW1, {shape[0]}×{shape[1]} …")


def duration(seconds: float) -> str:
    """A duration in a readable unit: 40 s, 12 min, 3.5 h or 4 days."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:,.0f} days"
