"""Infers a plain MLP, or random features, from a state dict alone.

The shapes of the weights give the widths, and the order in which they chain is that of the layers.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recollect.errors import CheckpointError
from recollect.shapes import Theta
from recollect.victim.activations import activation as check_activation
from recollect.victim.mlp import MLP, random_features
from recollect.victim.network import Layer

METADATA_KEY = "recollect"
"""Metadata key under which Recollect's checkpoints describe their architecture. It holds what a
model card would tell, and nothing about the data."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a state dict does not hold: the activation, and the shape of a flat input as an
    image."""

    activation: str | None = None
    """None if the checkpoint does not name it."""
    input_shape: tuple[int, ...] | None = None
    run: str | None = None
    """A name that the two checkpoints of one training run share."""
    step: int | None = None
    """The steps of training before this checkpoint; None if the file does not say."""

    def to_metadata(self) -> dict[str, str]:
        facts: dict[str, Any] = {
            "activation": self.activation,
            "input_shape": self.input_shape,
            "run": self.run,
        }
        if self.step is not None:
            facts["step"] = self.step
        return {METADATA_KEY: json.dumps(facts)}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str]) -> Architecture:
        try:
            content: Any = json.loads(metadata.get(METADATA_KEY, "{}"))
            shape = content.get("input_shape")
            shape = None if shape is None else tuple(int(size) for size in shape)
            if shape is not None and (
                not 1 <= len(shape) <= 3 or min(shape) < 1 or max(shape) > 2**20
            ):
                raise ValueError
            name = content.get("activation")
            name = None if name is None else check_activation(str(name)).name
            run, step = content.get("run"), content.get("step")
            return cls(
                activation=name,
                input_shape=shape,
                run=run if isinstance(run, str) else None,
                step=step if type(step) is int else None,
            )
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError):
            raise CheckpointError(
                f"expected the metadata entry {METADATA_KEY!r} to describe a network, got "
                "something else; remove it "
                "from the file"
            ) from None


def infer_network(state: Theta, activation: str | None = None) -> MLP:
    """The MLP whose parameters `state` holds. ReLU is assumed unless `activation` is given, because
    a state dict does not name it."""
    if activation is None:
        return replace(infer_network(state, "relu"), assumed=True)
    state = {
        name: tensor for name, tensor in state.items() if tensor.is_floating_point()
    }  # Counters are left out.
    if set(state) in ({"V", "theta"}, {"V", "b", "theta"}):
        return _random_features(state, activation)
    weights = {name: tuple(tensor.shape) for name, tensor in state.items() if tensor.dim() == 2}
    biases = {name: tuple(tensor.shape) for name, tensor in state.items() if tensor.dim() == 1}
    layers: dict[str, Layer] = {}
    for name in weights:
        bias = _bias_of(name)
        layers[name] = Layer(name, bias if biases.pop(bias, None) == weights[name][:1] else None)
    other = [
        name
        for name in state
        if name not in weights and (name in biases or state[name].dim() not in (1, 2))
    ]
    other += [name for name in weights if not state[name].numel()]
    if other or not weights:
        listed = ", ".join(
            f"{name} {list(state[name].shape)}" for name in (other or list(state))[:4]
        )
        raise CheckpointError(
            f"expected weights (and biases) of a plain MLP, got {listed}; "
            "for another architecture give --model package.module:factory (and --input-shape), or "
            "in Python "
            "Victim(model, theta_0, theta_f)"
        )
    if len(weights) < 2:
        raise CheckpointError(
            f"expected at least two weight matrices, got {next(iter(weights))} alone; a linear "
            "model hides nothing"
        )
    order = _order(weights)
    widths = (weights[order[0]][1], *(weights[name][0] for name in order))
    return MLP(widths=widths, layers=tuple(layers[name] for name in order), activation=activation)


def _random_features(state: Theta, activation: str) -> MLP:
    V, theta = state["V"], state["theta"]
    bias = state.get("b")
    fits = (
        V.dim() == 2
        and theta.dim() == 2
        and min(*V.shape, *theta.shape) > 0
        and theta.shape[1] == V.shape[0]
        and (bias is None or bias.shape == V.shape[:1])
    )
    if not fits:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in state.items())
        raise CheckpointError(
            f"expected random features V (p×d), b (p), theta (c×p), got {shapes}; save the tensors "
            "in those shapes"
        )
    return random_features(
        V.shape[1], V.shape[0], theta.shape[0], bias=bias is not None, activation=activation
    )


def _bias_of(weight: str) -> str:
    head, _, tail = weight.rpartition(".")
    renamed = tail.replace("weight", "bias").replace("W", "b")
    return f"{head}.{renamed}" if head else renamed


def _order(weights: Mapping[str, tuple[int, ...]]) -> list[str]:
    """The layers from input to output: the only order in which the shapes chain and the numbers in
    similar names increase."""
    families: dict[str, list[str]] = {}
    for name in sorted(
        weights, key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)]
    ):
        families.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    # Names that differ only in their numbers form a family, whose order is fixed. Only the ways to
    # interleave families are searched, and a hostile file with 30! of them is refused.
    searched = (
        _chains(list(families.values()), weights) if len(families) <= _FAMILIES else iter((None,))
    )
    chains = list(itertools.islice(searched, 2))
    if len(chains) == 1 and chains[0] is not None:
        return chains[0]
    listed = ", ".join(f"{name} {list(weights[name])}" for name in list(weights)[:6])
    problem = "several orders of them fit" if len(chains) == 2 else "no order of them fits"
    if None in chains:
        problem = "there are too many orders to try"
    if len(families) > _FAMILIES:
        problem = f"{len(families)} different names are too many to try their orders"
    raise CheckpointError(
        f"expected weight matrices that chain from input to output, got {listed}: {problem}; name "
        "the layers 0, 1, 2, …"
    )


_FAMILIES = 8
_STEPS = 20_000
"""Step limit of the backtracking search, which would otherwise take exponential time on dead ends.
It is far more than is needed to find two orders where there are two."""


def _chains(
    families: list[list[str]], weights: Mapping[str, tuple[int, ...]]
) -> Iterator[list[str] | None]:
    """Yield every order that fits, depth first, and None at the end if the step limit was reached.

    The search is not recursive, because there may be a thousand layers.
    """
    total, taken = sum(map(len, families)), [0] * len(families)
    chain: list[str] = []
    last: list[int] = []  # the family of each layer in the chain
    choices = [iter(range(len(families)))]  # the families still to be tried after each layer
    for _ in range(_STEPS):
        for k in choices[-1]:
            if taken[k] < len(families[k]):
                name = families[k][taken[k]]
                if not chain or weights[chain[-1]][0] == weights[name][1]:
                    break
        else:  # Nothing is left to try here: go one step back.
            choices.pop()
            if not chain:
                return
            chain.pop()
            taken[last.pop()] -= 1
            continue
        chain.append(name)
        last.append(k)
        taken[k] += 1
        if len(chain) == total:
            yield list(chain)
        choices.append(iter(range(len(families))))
    yield None
