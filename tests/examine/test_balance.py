"""What the gradient flow keeps: small steps keep it, overshooting steps and Adam do not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import F64, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from recollect.examine.balance import imbalance, unbalanced
from recollect.examine.history import history
from recollect.shapes import Tensor
from recollect.simulate.training import FullBatchDescent, tangent_kernel_norm, train_network
from recollect.victim.mlp import MLP, initial_theta, mlp
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim


def regression(
    optimiser: type[torch.optim.Optimizer], rate: float, *, width: int = 1024, seed: int = 0
) -> Victim:
    """Ten rows of thirty columns and one output, with PyTorch's own initialisation."""
    torch.manual_seed(seed)
    X, y = torch.randn(10, 30), torch.randn(10, 1)
    network = nn.Sequential(nn.Linear(30, width), nn.ReLU(), nn.Linear(width, 1))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    made = optimiser(network.parameters(), lr=rate)  # type: ignore[call-arg]
    for _ in range(2000):
        made.zero_grad()
        loss = (network(X) - y).square().mean()
        loss.backward()
        made.step()
        if float(loss.detach()) < 1e-10:
            break
    return Victim(infer_network(network.state_dict()), before, network.state_dict())


def trained(seed: int, depth: int, bias: bool, share: float) -> Victim:
    """Gradient descent with this share of the largest stable step."""
    network = mlp(5, 60, 2, depth=depth, bias=bias)
    theta_0 = initial_theta(network, init="torch", generator=generator(seed), dtype=F64)
    X = torch.randn(4, 5, generator=generator(seed + 1), dtype=F64)
    Y = torch.randn(4, 2, generator=generator(seed + 2), dtype=F64)
    # The curvature of the loss ½ mean ‖f − y‖² is that of the kernel over n.
    rate = share * 2 * len(X) / tangent_kernel_norm(network, theta_0, X)
    descent = FullBatchDescent(learning_rate=rate, max_steps=10**6)
    return train_network(network, theta_0, X, Y, optimiser=descent, tolerance=1e-4).victim


@settings(max_examples=4)
@given(seed=st.integers(0, 99), depth=st.integers(2, 4), bias=st.booleans())
def test_small_steps_keep_the_layers_in_balance(seed: int, depth: int, bias: bool) -> None:
    small, smaller = (imbalance(trained(seed, depth, bias, share)) for share in (0.02, 0.005))
    assert small is not None
    assert smaller is not None
    assert smaller < 0.5 * small  # B is proportional to the step
    assert small < 0.15


def direct(victim: Victim) -> float:
    """B of a network with one hidden layer, unit by unit."""
    assert victim.theta_0 is not None
    broken = changed = 0.0
    for u in range(len(victim.theta_f["0.weight"])):
        gains = []
        for names in (("0.weight", "0.bias"), ("2.weight",)):
            ends: list[Tensor] = []
            for theta in (victim.theta_f, victim.theta_0):
                parts = [
                    theta[name][:, u] if name == "2.weight" else theta[name][u].reshape(-1)
                    for name in names
                ]
                ends.append(torch.cat(parts).double().square().sum())
            gains.append(float(ends[0] - ends[1]))
        broken += abs(gains[0] - gains[1])
        changed += abs(gains[0]) + abs(gains[1])
    return broken / changed


@pytest.mark.parametrize("rate", [0.005, 0.02])
def test_against_the_definition(rate: float) -> None:
    victim = regression(torch.optim.SGD, rate, width=50)
    assert imbalance(victim) == pytest.approx(direct(victim), rel=1e-6)


@pytest.mark.parametrize("seed", range(3))
def test_steps_that_overshoot_are_noticed(seed: int) -> None:
    """Both runs reach the same loss; from the second one nothing comes back."""
    calm, wild = (regression(torch.optim.SGD, rate, seed=seed) for rate in (0.005, 0.025))
    assert unbalanced(calm) == []
    assert history(calm).fits
    assert [one.code for one in unbalanced(wild)] == ["unbalanced"]
    assert not history(wild).fits


def test_adam_is_noticed() -> None:
    assert unbalanced(regression(torch.optim.Adam, 1e-3))


def test_what_is_not_known_is_not_said() -> None:
    victim = regression(torch.optim.SGD, 0.025, width=50)
    assert imbalance(victim) is not None
    network = victim.network
    assert isinstance(network, MLP)
    tanh = Victim(replace(network, activation="tanh"), victim.theta_0, victim.theta_f)
    assert imbalance(tanh) is None
    assert imbalance(Victim(network, None, victim.theta_f)) is None
    frozen = network.fixing({"2.weight", "2.bias"})
    assert imbalance(Victim(frozen, victim.theta_0, victim.theta_f)) is None
    same = {name: value.clone() for name, value in victim.theta_f.items()}
    same["0.bias"][0] += 1e-7
    assert imbalance(Victim(network, victim.theta_f, same)) is None
