"""Small networks made and trained by plain PyTorch, without this package."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim

State = dict[str, torch.Tensor]
D, WIDTH = 20, 100


def network(seed: int, depth: int, outputs: int, bias: bool) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = [D, *[WIDTH] * (depth - 1), outputs]
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b, bias=bias), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def copied(model: nn.Module) -> State:
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(
    n: int, *, depth: int = 2, outputs: int = 3, bias: bool = False, seed: int = 0, steps: int = 100
) -> tuple[Victim, torch.Tensor]:
    """A network that learnt n records of one norm by plain gradient descent."""
    model = network(seed, depth, outputs, bias)
    before = copied(model)
    X, Y = torch.randn(n, D), torch.randn(n, outputs)
    X = X / X.norm(dim=1, keepdim=True) * D**0.5
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        (model(X) - Y).square().mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    after = copied(model)
    return Victim(infer_network(after), before, after), X
