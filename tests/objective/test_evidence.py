"""Evidence: where its gradients are taken, what restricting it does, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from cases import F64, evidence, generator, interpolated, perturbed, thetas
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recollect.errors import OptionError, VictimError
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.victim.mlp import initial_theta, mlp
from recollect.victim.victim import Victim

KINDS = ("weight", "bias")


@pytest.mark.parametrize("endpoints", Endpoints)
def test_the_endpoints_select_the_nodes(endpoints: Endpoints) -> None:
    victim = perturbed(mlp(3, 10, 2), 0)
    ours, twins = evidence(victim, endpoints).thetas, thetas(victim, endpoints)
    assert len(ours) == len(twins)
    for theta, twin in zip(ours, twins, strict=True):
        for name, value in twin.items():
            torch.testing.assert_close(theta[name], value)


@given(
    d=st.integers(1, 4),
    depth=st.integers(2, 4),
    s=st.floats(0.1, 10),
    module=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_bias_is_the_weight_of_a_constant_input(
    d: int, depth: int, s: float, module: bool, seed: int
) -> None:
    """f((x, s); augmented θ) = f(x; θ), and gradients by [W_1 | b_1/s] are [∂W_1 | s·∂b_1]."""
    network = mlp(d, 6, 2, depth=depth, bias=True)
    victim = perturbed(network, seed)
    if module:
        layers: list[nn.Module] = [nn.Linear(d, 6)]
        for k in range(1, depth):
            layers += [nn.ReLU(), nn.Linear(6, 2 if k == depth - 1 else 6)]
        names = {f"layers.{k}.{kind}": f"{2 * k}.{kind}" for k in range(depth) for kind in KINDS}
        assert victim.theta_0 is not None
        weights = [
            {names[name]: value for name, value in theta.items()}
            for theta in (victim.theta_0, victim.theta_f)
        ]
        victim = Victim(nn.Sequential(*layers).double(), *weights, input_shape=(d,))
    known = Evidence.change(victim)
    augmented = known.augmented(s)
    assert augmented.d == d + 1
    X = torch.randn(3, d, generator=generator(seed), dtype=F64)
    Xs = torch.cat([X, torch.full((3, 1), s, dtype=F64)], dim=1)
    for node, plain in zip(augmented.nodes, known.nodes, strict=True):
        torch.testing.assert_close(augmented.network(node, Xs), known.network(plain, X))
    if module:
        return
    first = network.first
    assert first.bias is not None
    torch.testing.assert_close(
        augmented.target[first.weight],
        torch.cat([known.target[first.weight], s * known.target[first.bias][:, None]], dim=1),
    )
    names = (first.weight, first.bias)
    dW, db = torch.func.grad(
        lambda W, b: known.network({**known.nodes[0], names[0]: W, names[1]: b}, X).sum(),
        argnums=(0, 1),
    )(known.nodes[0][names[0]], known.nodes[0][names[1]])
    dWs = torch.func.grad(
        lambda W: augmented.network({**augmented.nodes[0], names[0]: W}, Xs).sum()
    )(augmented.nodes[0][names[0]])
    torch.testing.assert_close(dWs, torch.cat([dW, s * db[:, None]], dim=1))


def test_the_change_is_that_of_the_trained_parameters_in_float64() -> None:
    victim, _ = interpolated()
    known = Evidence.change(victim)
    assert list(known.target) == ["theta"]
    assert len(known.target) == 1
    assert known.target["theta"].dtype == F64
    torch.testing.assert_close(known.target["theta"], victim.delta(["theta"])["theta"])
    with pytest.raises(KeyError):
        known.target["V"]
    assert (known.d, known.c) == (victim.d, victim.c)


def test_what_a_victim_cannot_give_is_refused() -> None:
    victim = perturbed(mlp(3, 10, 2), 0)
    with pytest.raises(VictimError, match="needs θ0"):
        Evidence.change(Victim(victim.network, None, victim.theta_f))
    shared = Evidence("a gradient", victim.network, victim.theta_f, (victim.theta_f,))
    assert not shared.moving
    assert shared.at(Endpoints.FINAL).thetas == (victim.theta_f,)
    for endpoints in (Endpoints.INITIAL, Endpoints.BOTH, Endpoints.PATH):
        with pytest.raises(OptionError, match=r"expected --endpoints final .*a gradient"):
            shared.at(endpoints)


@given(seed=st.integers(0, 99), r=st.integers(1, 5))
def test_a_restriction_splits_the_change_of_the_first_layer(seed: int, r: int) -> None:
    """‖ΔW_1‖² = ‖ΔW_1 U‖² + outside, for one restriction and for two in a row."""
    victim = perturbed(mlp(5, 10, 2), seed)
    known, name = Evidence.change(victim), "layers.0.weight"
    U = torch.linalg.qr(torch.randn(5, r, generator=generator(seed), dtype=F64)).Q
    whole, low = known.target[name], known.restrict(U)
    torch.testing.assert_close(low.target[name], whole @ U)
    torch.testing.assert_close(low.target["layers.1.weight"], known.target["layers.1.weight"])
    assert list(low.target) == list(known.target)
    X = torch.randn(4, r, generator=generator(seed + 1), dtype=F64)
    for theta, full in zip(low.nodes, known.nodes, strict=True):
        torch.testing.assert_close(low.network(theta, X), known.network(full, X @ U.T))
    total = float(whole.square().sum())
    assert float(low.target[name].square().sum()) + low.outside == pytest.approx(total)
    lowest = low.restrict(torch.eye(r, dtype=F64)[:, :1])
    assert float(lowest.target[name].square().sum()) + lowest.outside == pytest.approx(total)


def test_a_module_keeps_its_target_when_it_is_restricted() -> None:
    module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).double()
    theta = {name: value.detach() for name, value in module.state_dict().items()}
    known = Evidence.change(Victim(module, theta, {name: 2 * v for name, v in theta.items()}))
    for r in (2, 4):
        U = torch.linalg.qr(torch.randn(4, r, generator=generator(0), dtype=F64)).Q
        low = known.restrict(U)
        assert (low.d, low.outside) == (r, 0.0)
        torch.testing.assert_close(low.target["0.weight"], theta["0.weight"])


def test_smoothing_changes_the_network_alone() -> None:
    known = Evidence.change(perturbed(mlp(3, 10, 2), 0))
    smooth = known.smoothed(torch.randn(8, 3, generator=generator(0)), 0.3)
    assert smooth.network.identity != known.network.identity
    assert smooth.nodes is known.nodes
    assert smooth.target is known.target


@given(seed=st.integers(0, 99), factor=st.sampled_from([1e-6, 1e-3, 0.1, 1.0]))
def test_movement_is_the_relative_change_of_the_matrices(seed: int, factor: float) -> None:
    network = mlp(5, 10, 2, bias=True)
    before = initial_theta(network, init="fan-in", generator=generator(seed), dtype=F64)
    after = {
        name: value + factor * torch.randn(value.shape, generator=generator(seed + 1), dtype=F64)
        for name, value in before.items()
    }
    matrices = ("layers.0.weight", "layers.1.weight")
    moved = torch.cat([(after[name] - before[name]).flatten() for name in matrices])
    size = torch.cat([after[name].flatten() for name in matrices])
    known = Evidence.change(Victim(network, before, after))
    assert known.movement == pytest.approx(float(moved.norm() / size.norm()))
    still, _ = interpolated()
    assert Evidence.change(still).movement == 0.0  # random features: the last layer alone moved
