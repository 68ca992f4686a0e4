"""How often the findings on a model's history are right: real training, other optimisers, merged
adapters and sparse changes.

    python benchmarks/detectors.py --half choose|report [--cases 400]

Limits were chosen on the half `choose`; the figures in docs/audit.md are those of `report`, which
has other seeds and other draws of data, recipes and sizes. Networks are trained by plain PyTorch. A
row says in how many victims of a kind each finding was made; the first table holds the optimisers.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn

from recollect.examine.history import history
from recollect.shapes import Tensor
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim

State = dict[str, Tensor]
DATA = ("digits", "synthetic", "wine", "wine minmax", "cancer", "cancer log", "diabetes")
SIGNS = {
    "optimiser": "rescaled-entries",
    "rank": "merged-adapters",
    "sparse": "sparse-change",
    "balance": "unbalanced",
}


class Sign(torch.optim.Optimizer):
    """θ ← θ − η sign ∇."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for value in group["params"]:
                value.data -= group["lr"] * value.grad.sign()


GRADIENT_DESCENT: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD, momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "SGD, decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=1e-3),
    "SGD, momentum, decay": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=5e-4),
}
RESCALING: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "Adam, 1e-3": lambda p: torch.optim.Adam(p, lr=1e-3),
    "Adam, 1e-2": lambda p: torch.optim.Adam(p, lr=1e-2),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-3),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "signs": lambda p: Sign(p, lr=1e-3),
}


def records(name: str, n: int, draw: random.Random) -> tuple[Tensor, Tensor]:
    """n records of a data set, standardised unless its name says otherwise."""
    kind, _, scaling = name.partition(" ")
    if kind == "synthetic":
        X, y = torch.randn(200, 20).double(), torch.randint(0, 3, (200,))
    else:
        loaders = {"digits": load_digits, "wine": load_wine, "cancer": load_breast_cancer}
        bunch = loaders.get(kind, load_diabetes)()
        X, y = torch.tensor(bunch.data).double(), torch.tensor(bunch.target)
    if scaling == "minmax":
        X = (X - X.min(0).values) / (X.max(0).values - X.min(0).values)
    elif scaling == "log":
        X = (1 + X.abs()).log()
    else:
        X = (X - X.mean(0)) / X.std(0).clamp_min(1e-9)
    chosen = torch.tensor(draw.sample(range(len(X)), min(n, len(X))))
    if kind == "diabetes":
        Y = ((y - y.double().mean()) / y.double().std())[:, None]
    else:
        Y = nn.functional.one_hot(y.long()).double()
    return X[chosen].float(), Y[chosen].float()


def network(d: int, width: int, c: int, depth: int, bias: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise([d, *[width] * (depth - 1), c]):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def copied(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def loss_of(outputs: Tensor, Y: Tensor, classes: bool) -> Tensor:
    if classes and Y.shape[1] > 1:
        return nn.functional.cross_entropy(outputs, Y)
    return (outputs - Y).square().mean()


def trained(
    make: Callable[[Any], torch.optim.Optimizer],
    sizes: tuple[int, ...],
    draw: random.Random,
    steps: int,
    frozen: str = "none",
) -> Victim:
    """A network of a random recipe. `frozen`: parameters with this in their names are not
    trained."""
    torch.manual_seed(draw.randrange(10**6))
    X, Y = records(draw.choice(DATA), draw.choice(sizes), draw)
    width, depth, bias = draw.choice((60, 300)), draw.choice((2, 3)), draw.random() < 0.5
    model = network(X.shape[1], width, Y.shape[1], depth, bias)
    before, classes, batch = copied(model), draw.random() < 0.5, draw.choice((8, len(X)))
    values = [value for name, value in model.named_parameters() if frozen not in name]
    optimiser = make(values)
    for _ in range(steps):
        chosen = torch.randperm(len(X))[:batch]
        model.zero_grad()
        loss_of(model(X[chosen]), Y[chosen], classes).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return victim_of(before, copied(model))


def victim_of(before: State, after: State) -> Victim:
    fixed = {name for name in after if torch.equal(before[name], after[name])}
    return Victim(infer_network(after).fixing(fixed), before, after)


def adapted(draw: random.Random, rank: int) -> Victim:
    """Adapters of all layers, or of all but the last, learnt up to 150 records and were merged."""
    torch.manual_seed(draw.randrange(10**6))
    X, Y = records(draw.choice(("digits", "synthetic", "cancer")), draw.choice((20, 150)), draw)
    depth = draw.choice((2, 3))
    model = network(X.shape[1], draw.choice((100, 300)), Y.shape[1], depth, draw.random() < 0.5)
    before = copied(model)
    names = [name for name in before if name.endswith("weight")]
    names = names[: depth - (depth > 2 and draw.random() < 0.5)]
    A = [
        torch.empty(rank, before[name].shape[1]).uniform_(-1, 1) / before[name].shape[1] ** 0.5
        for name in names
    ]
    B = [torch.zeros(len(before[name]), rank) for name in names]
    for factor in (*A, *B):
        factor.requires_grad_()
    adam = draw.random() < 0.5
    optimiser = torch.optim.AdamW([*A, *B], lr=5e-3) if adam else torch.optim.SGD([*A, *B], lr=0.1)

    def merged() -> State:
        products = {name: before[name] + 2 * b @ a for name, a, b in zip(names, A, B, strict=True)}
        return {**before, **products}

    for _ in range(60):
        optimiser.zero_grad()
        loss_of(torch.func.functional_call(model, merged(), (X,)), Y, False).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    return victim_of(before, {name: value.detach() for name, value in merged().items()})


def kept(victim: Victim, share: float) -> Victim:
    """Only a random share of the entries of Δθ is kept."""
    assert victim.theta_0 is not None
    start = victim.theta_0
    after = {
        name: torch.where(torch.rand(value.shape) < share, value, start[name])
        for name, value in victim.theta_f.items()
    }
    return Victim(victim.network, start, after)


def victims(half: str, cases: int) -> Iterator[tuple[str, Victim]]:
    """Victims by kind. Real ones come first by optimiser, then by what is frozen."""
    draw = random.Random(f"detectors, {half}")
    rules = {**GRADIENT_DESCENT, **RESCALING}
    for _ in range(cases):
        rule = draw.choice(list(rules))
        yield rule, trained(rules[rule], (10, 40, 150), draw, draw.choice((30, 300)))
    for _ in range(cases // 2):
        frozen, steps = draw.choice(("none", "bias", "0.")), draw.choice((1, 60))
        kind = f"1 to 20 records, {steps} step{'s' * (steps > 1)}, frozen: {frozen}"
        real = trained(GRADIENT_DESCENT["SGD"], tuple(range(1, 21)), draw, steps, frozen)
        yield kind, real
        if frozen == "none":
            share = draw.choice((0.1, 0.5))
            yield f"the same, {share:.0%} of the entries kept", kept(real, share)
    for _ in range(cases // 4):
        rank = draw.choice((1, 4, 8))
        yield f"adapters of rank {rank}, merged", adapted(draw, rank)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    parser.add_argument("--cases", type=int, default=400)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, Counter[str]] = {}
    for kind, victim in victims(options.half, options.cases):
        if not all(bool(value.isfinite().all()) for value in victim.theta_f.values()):
            continue  # training diverged
        if all(torch.equal(value, victim.theta_0[name]) for name, value in victim.theta_f.items()):  # type: ignore[index]
            continue
        said = {finding.code for finding in history(victim).findings}
        count = found.setdefault(kind, Counter())
        count["victims"] += 1
        count.update(name for name, code in SIGNS.items() if code in said)
    print("| victims | number | optimiser suspected | adapters | sparse | unbalanced |")
    print("|---" * 6 + "|")
    for kind in sorted(found, key=lambda one: (one[0].isdigit(), one[0] == "t", one)):
        counts = found[kind]
        columns = (counts[name] for name in ("victims", *SIGNS))
        print(f"| {kind} | " + " | ".join(map(str, columns)) + " |")


if __name__ == "__main__":
    main()
