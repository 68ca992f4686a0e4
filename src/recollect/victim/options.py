"""What a file of weights does not say about its network and its training. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.errors import OptionError
from recollect.options import check, option
from recollect.victim.activation_names import ACTIVATIONS

OPTIMIZERS = ("sgd", "adam", "adamw", "rmsprop", "adagrad", "sign")


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """How the command line describes a network and its training."""

    activation: str | None = option(
        None,
        help="The network's activation; auto is what the checkpoint says, else relu.",
        choices=ACTIVATIONS,
    )
    model: str | None = option(
        None,
        help="package.module:factory, a function that makes the torch module. auto: a plain MLP, "
        "inferred from the "
        "shapes of the weights.",
    )
    input_shape: str | None = option(
        None, help="Shape of one input to --model, for instance 3,32,32."
    )
    optimizer: str | None = option(
        None,
        help="The optimiser of the training; sgd includes momentum. auto looks for traces of one "
        "that rescales entries.",
        choices=OPTIMIZERS,
    )

    def __post_init__(self) -> None:
        check(self)
        if self.model is not None and self.activation is not None:
            raise OptionError(
                "expected --model or --activation, got both; the model decides: leave --activation "
                "out"
            )
        if self.model is None and self.input_shape is not None:
            raise OptionError(
                "expected --input-shape with --model, got it alone; an MLP takes flat inputs: "
                "leave it out"
            )
        parsed_shape(self.input_shape)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """`input_shape` as numbers."""
        return parsed_shape(self.input_shape)


def parsed_shape(text: str | None) -> tuple[int, ...] | None:
    """A shape as numbers, from text like 3,32,32."""
    if text is None:
        return None
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise OptionError(f"expected --input-shape like 3,32,32, got {text!r}; give whole numbers")
    return shape
