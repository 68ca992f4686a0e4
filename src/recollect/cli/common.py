"""What several commands share: the app, shared options, finding the victim, the score as JSON."""

from __future__ import annotations

import math
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
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def load_victim(paths: tuple[Path, ...], activation: str | None) -> Victim:
    if len(paths) == 1 and paths[0].is_dir():
        paths = (paths[0] / "init.safetensors", paths[0] / "trained.safetensors")
    if len(paths) != 2:
        got = " ".join(map(str, paths)) or "nothing"
        raise OptionError(
            f"expected a folder that `recollect train` made, or two checkpoints INIT TRAINED, got {got}; give one "
            "of those"
        )
    if activation is not None:
        check_activation(activation)
    return Victim.load(*paths, activation=activation)


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


def check_seed(seed: int) -> None:
    if not 0 <= seed < 2**32:
        raise OptionError(f"expected --seed between 0 and {2**32 - 1}, got {seed}; choose one of those")
