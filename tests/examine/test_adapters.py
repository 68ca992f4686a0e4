"""Merged adapters are told from training, whose changes may have a low rank as well."""

from __future__ import annotations

import itertools

import pytest
import torch
from plain import D, copied, network, trained
from torch import nn

from recollect.examine.adapters import common_rank, merged_adapters
from recollect.examine.history import history
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim


def with_adapters(
    rank: int, *, depth: int = 3, bias: bool = True, layers: int = 3, seed: int = 0
) -> Victim:
    """A network whose adapters learnt fifty records and were merged into its first layers."""
    model = network(seed, depth, 10, bias)
    before = copied(model)
    names = [name for name in before if name.endswith("weight")][:layers]
    A = [(torch.rand(rank, before[name].shape[1]) - 0.5) / D**0.5 for name in names]
    B = [torch.zeros(len(before[name]), rank) for name in names]
    for factor in (*A, *B):
        factor.requires_grad_()

    def merged() -> dict[str, torch.Tensor]:
        products = {name: before[name] + 2 * b @ a for name, a, b in zip(names, A, B, strict=True)}
        return {**before, **products}

    X, Y = torch.randn(50, D), torch.randn(50, 10)
    optimiser = torch.optim.SGD([*A, *B], lr=0.2)
    for _ in range(60):
        optimiser.zero_grad()
        outputs = torch.func.functional_call(model, merged(), (X,))
        (outputs - Y).square().mean().backward()
        optimiser.step()
    after = {name: value.detach() for name, value in merged().items()}
    return Victim(infer_network(after), before, after)


@pytest.mark.parametrize(
    ("rank", "depth", "bias"), list(itertools.product((1, 4), (2, 3), (False, True)))
)
def test_merged_adapters_do_not_fit(rank: int, depth: int, bias: bool) -> None:
    victim = with_adapters(rank, depth=depth, bias=bias, layers=depth)
    past = history(victim)
    assert any(f"rank {rank} exactly" in finding.seen for finding in past.findings)
    assert not past.fits


def test_adapters_of_all_layers_but_the_last() -> None:
    assert merged_adapters(with_adapters(4, layers=2))


@pytest.mark.parametrize(
    ("n", "depth", "bias", "steps"),
    list(itertools.product((1, 2, 8, 20), (2, 3), (False, True), (1, 60))),
)
def test_real_victims_are_not_taken_for_adapters(
    n: int, depth: int, bias: bool, steps: int
) -> None:
    victim, _ = trained(n, depth=depth, bias=bias, steps=steps)
    assert merged_adapters(victim) == []


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Softplus])
@pytest.mark.parametrize("frozen", ["bias", "0."])
def test_one_step_with_frozen_parts_is_not_taken_for_adapters(
    activation: type[nn.Module], frozen: str
) -> None:
    """All matrices change by the same low rank, no bias changes, and the activation is unknown."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(D, 150), activation(), nn.Linear(150, 150), activation(), nn.Linear(150, 10)
    )
    before = copied(model)
    X, Y = torch.randn(4, D), torch.randn(4, 10)
    (model(X) - Y).square().mean().backward()  # type: ignore[no-untyped-call]
    for name, value in model.named_parameters():
        if frozen not in name and "bias" not in name:
            assert value.grad is not None
            value.data -= 0.1 * value.grad
    after = copied(model)
    fixed = {name for name in after if torch.equal(before[name], after[name])}
    victim = Victim(infer_network(after).fixing(fixed), before, after)
    assert common_rank(victim) == 4
    assert merged_adapters(victim) == []
