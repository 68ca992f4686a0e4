"""Models in which an audit must find nothing, and trained ones whose inputs it should find.

Both are small, made by plain PyTorch, and drawn at random: data, sizes, depth, biases, step size.
`NULLS` and `REAL` map the names of situations to functions of a random number generator. Nothing of
an attack is here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from detectors import State, copied, network, records, victim_of
from torch import nn

from recollect.auditing.nulls import ALL_NULLS
from recollect.shapes import Tensor

Optimiser = Callable[[Iterable[Tensor], float], torch.optim.Optimizer]


@dataclass(frozen=True)
class Situation:
    before: State
    after: State
    X: Tensor
    """The training inputs, whether or not anything of them is left."""
    truth: Tensor | None = None
    """What the audit is told the inputs are."""
    n: int | None = None
    """What it is told their number is."""
    activation: str | None = None


def sgd(weights: Iterable[Tensor], rate: float, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(weights, lr=rate, **options)


def adam(weights: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
    return torch.optim.Adam(weights, lr=min(rate, 1e-2))


@dataclass(frozen=True)
class Recipe:
    """How a network is made and trained."""

    data: tuple[str, ...] = ("synthetic", "wine", "wine", "diabetes", "diabetes", "diabetes")
    n: tuple[int, ...] = (1, 2, 3, 4, 6, 8)
    width: tuple[int, ...] = (40, 60, 100)
    depth: tuple[int, ...] = (2, 3)
    activation: type[nn.Module] = nn.ReLU
    classes: bool = False
    """Cross-entropy instead of squared error."""
    optimiser: Optimiser = sgd
    batch: int | None = None
    pretrained: str = ""
    """Whether the network first learnt fifty other records: empty if not, else "same labels" or
    "new labels", which says what it learns afterwards."""


def train(model: nn.Module, X: Tensor, Y: Tensor, recipe: Recipe, *, steps: int = 3000) -> None:
    """Until the loss is 1e-6 (cross-entropy: 1e-2), with a third of the largest of some step sizes
    that do not diverge."""
    start = copied(model)

    def loss(chosen: Tensor) -> Tensor:
        outputs = model(X[chosen])
        if recipe.classes and Y.shape[1] > 1:
            return nn.functional.cross_entropy(outputs, Y[chosen].argmax(1))
        return nn.functional.mse_loss(outputs, Y[chosen])

    def run(rate: float, steps: int) -> bool:
        model.load_state_dict(start)
        optimiser = recipe.optimiser(model.parameters(), rate)
        first = float(loss(torch.arange(len(X))).detach())
        for _ in range(steps):
            value = loss(torch.randperm(len(X))[: recipe.batch or len(X)])
            if float(value.detach()) < (1e-2 if recipe.classes else 1e-6):
                break
            optimiser.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        return bool(value.isfinite()) and float(value.detach()) < first

    rates = (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
    fastest = next((rate for rate in rates if run(rate, 30)), 0.001)
    run(fastest / 3, steps)


def made(recipe: Recipe, draw: random.Random) -> Situation:
    torch.manual_seed(draw.randrange(10**6))
    data, n = draw.choice(recipe.data), draw.choice(recipe.n)
    both, labels = records(data, n + 50, draw)
    X, Y, others, other_labels = both[:n], labels[:n], both[n:], labels[n:]
    width, depth, bias = draw.choice(recipe.width), draw.choice(recipe.depth), draw.random() < 0.5
    model = network(X.shape[1], width, Y.shape[1], depth, bias)
    for k, layer in enumerate(model):
        if isinstance(layer, nn.ReLU):
            model[k] = recipe.activation()
    if recipe.pretrained:
        train(model, others, other_labels, replace(recipe, batch=10), steps=500)
    if recipe.pretrained == "new labels":
        Y = Y.roll(1, 1) if Y.shape[1] > 1 else -Y
    before = copied(model)
    train(model, X, Y, recipe)
    return Situation(before, copied(model), X)


# Nothing to find.


def disturbed(kind: str, draw: random.Random) -> Situation:
    real = made(Recipe(), draw)
    null = ALL_NULLS[kind](victim_of(real.before, real.after), draw.randrange(10**6))
    assert null.theta_0 is not None
    return replace(real, before=dict(null.theta_0), after=dict(null.theta_f))


def sparse(draw: random.Random) -> Situation:
    real = made(Recipe(), draw)
    after = {
        name: torch.where(torch.rand(value.shape) < 0.1, value, real.before[name])
        for name, value in real.after.items()
    }
    return replace(real, after=after)


def another_run(draw: random.Random) -> Situation:
    """θ0 of another seed."""
    real = made(Recipe(), draw)
    return replace(real, before=another_start(real))


def unrelated(draw: random.Random) -> Situation:
    """Two networks that nothing connects, neither of them trained."""
    one = another_run(draw)
    return replace(one, after=another_start(one))


def another_start(one: Situation) -> State:
    """The weights of a new network of the same sizes."""
    sizes = [value.shape for name, value in one.before.items() if name.endswith("weight")]
    bias = any(name.endswith("bias") for name in one.before)
    return copied(network(sizes[0][1], sizes[0][0], sizes[-1][0], len(sizes), bias))


def rounded(draw: random.Random) -> Situation:
    """The trained weights in 4 bits, one scale for each tensor."""
    real = made(Recipe(), draw)

    def coarse(value: Tensor) -> Tensor:
        step = value.abs().max().clamp_min(1e-12) / 7
        return (value / step).round() * step

    return replace(real, after={name: coarse(value) for name, value in real.after.items()})


def pruned(draw: random.Random) -> Situation:
    """The smaller half of the trained weights of each tensor is zero."""
    real = made(Recipe(), draw)

    def thinned(value: Tensor) -> Tensor:
        return torch.where(value.abs() > value.abs().median(), value, torch.zeros_like(value))

    return replace(real, after={name: thinned(value) for name, value in real.after.items()})


def merged(draw: random.Random) -> Situation:
    """Adapters of all layers learnt the records and were merged."""
    real = made(Recipe(), draw)
    rank, names = draw.choice((1, 2, 4)), [k for k in real.before if k.endswith("weight")]
    depth, bias = len(names), len(names) < len(real.before)
    first, last = real.before[names[0]], real.before[names[-1]]
    model = network(first.shape[1], first.shape[0], last.shape[0], depth, bias)
    X, Y = real.X, torch.randn(len(real.X), last.shape[0])
    A = [torch.randn(rank, real.before[name].shape[1]) / 3 for name in names]
    B = [torch.zeros(len(real.before[name]), rank) for name in names]
    factors = [factor.requires_grad_() for factor in (*A, *B)]
    optimiser = torch.optim.AdamW(factors, lr=5e-3)

    def sum_() -> State:
        pairs = zip(names, A, B, strict=True)
        return {**real.before, **{name: real.before[name] + b @ a for name, a, b in pairs}}

    for _ in range(200):
        optimiser.zero_grad()
        outputs = torch.func.functional_call(model, sum_(), (X,))
        nn.functional.mse_loss(outputs, Y).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return replace(real, after={name: value.detach() for name, value in sum_().items()})


def too_many(draw: random.Random) -> Situation:
    """More records than the weights can tell."""
    recipe = Recipe(("synthetic", "cancer", "diabetes"), (120,), (60,), (2,))
    return made(recipe, draw)


def exchanged(draw: random.Random) -> Situation:
    real = made(Recipe(), draw)
    return replace(real, before=real.after, after=real.before)


def other_truth(draw: random.Random) -> Situation:
    """Nothing in the weights, and records of the same kind that have nothing to do with them."""
    null, X = disturbed("shuffled", draw), made(Recipe(), draw).X
    d = null.X.shape[1]
    X = X if X.shape[1] == d else torch.randn(len(X), d)
    return replace(null, truth=X)


NULLS: Mapping[str, Callable[[random.Random], Situation]] = {
    "one entry per layer": partial(disturbed, "one entry"),
    "sparse": sparse,
    "paired permutation": partial(disturbed, "paired"),
    "shuffled": partial(disturbed, "shuffled"),
    "wrong start": partial(disturbed, "wrong start"),
    "another run": another_run,
    "noise": partial(disturbed, "random weights"),
    "rounded to 4 bits": rounded,
    "pruned": pruned,
    "merged adapters": merged,
    "more records than equations": too_many,
    "endpoints exchanged": exchanged,
    "unrelated truth": other_truth,
    "random pairs": unrelated,
    "Adam": partial(made, Recipe(optimiser=adam)),
}

# Something to find.

_WIDE = Recipe(("digits",), (10,), (250, 500, 1000), (2, 3))


def _told(recipe: Recipe, activation: str | None, draw: random.Random) -> Situation:
    real = made(recipe, draw)
    return replace(real, n=len(real.X), activation=activation)


REAL: Mapping[str, Callable[[random.Random], Situation]] = {
    name: partial(_told, recipe, activation)
    for name, recipe, activation in (
        ("2 layers", replace(_WIDE, depth=(2,)), None),
        ("3 layers", replace(_WIDE, depth=(3,)), None),
        ("cross-entropy", replace(_WIDE, classes=True), None),
        (
            "momentum, decay",
            replace(_WIDE, optimiser=partial(sgd, momentum=0.9, weight_decay=1e-4)),
            None,
        ),
        ("mini-batches", replace(_WIDE, batch=4), None),
        ("fine-tuned, same labels", replace(_WIDE, pretrained="same labels"), None),
        ("fine-tuned, new labels", replace(_WIDE, pretrained="new labels"), None),
        ("tanh", replace(_WIDE, activation=nn.Tanh), "tanh"),
        ("GELU", replace(_WIDE, activation=nn.GELU), "gelu"),
        (
            "tabular, n < d",
            replace(_WIDE, data=("wine", "cancer", "diabetes"), n=(8,)),
            None,
        ),
        (
            "tabular, n ≥ d",
            replace(_WIDE, data=("wine", "diabetes"), n=(16,)),
            None,
        ),
        (
            "one record",
            replace(_WIDE, data=("digits", "wine", "cancer", "diabetes"), n=(1,)),
            None,
        ),
        (
            "two records",
            replace(_WIDE, data=("digits", "wine", "cancer", "diabetes"), n=(2,)),
            None,
        ),
    )
}
