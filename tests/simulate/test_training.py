"""Training ends where it says, by the step it says, or with an error that says what to change."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cases import F64, generator, interpolated
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import OptionError, TrainingDidNotConverge, TrainingDiverged
from recollect.simulate.training import (
    FullBatchDescent,
    SquaredError,
    minimum_norm,
    tangent_kernel_norm,
    train_network,
)
from recollect.system.seeds import stream
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features


def setting(
    width: int = 60, depth: int = 2, c: int = 1, **options: bool
) -> tuple[MLP, dict[str, torch.Tensor], torch.Tensor, torch.Tensor]:
    data = synthetic(n=8, dim=6, rank=6, seed=3)
    network = mlp(6, width, c, depth=depth, **options)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(5), dtype=F64)
    return network, theta_0, data.inputs, data.targets.expand(-1, c)


@given(depth=st.integers(2, 4), c=st.integers(1, 3), bias=st.booleans())
def test_lambda_max_is_the_largest_eigenvalue_of_the_tangent_kernel(
    depth: int, c: int, bias: bool
) -> None:
    network, theta, X, _ = setting(20, depth, c, bias=bias)
    leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
    rows = [
        torch.cat(
            [
                part.reshape(-1)
                for part in torch.autograd.grad(output, list(leaves.values()), retain_graph=True)
            ]
        )
        for output in network(leaves, X).reshape(-1)
    ]
    G = torch.stack(rows)
    assert tangent_kernel_norm(network, theta, X) == pytest.approx(
        float(torch.linalg.eigvalsh(G @ G.T)[-1]), rel=0.02
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_curvature_is_the_hessian_of_the_loss(reduction: str) -> None:
    loss = SquaredError(reduction=reduction)
    Y = torch.randn(3, 2, generator=generator(0), dtype=F64)
    H = torch.autograd.functional.hessian(lambda outputs: loss.value(outputs, Y), Y + 1).reshape(
        6, 6
    )
    torch.testing.assert_close(H, loss.curvature(3, 2) * torch.eye(6, dtype=F64))


def test_both_uses_of_a_seed_draw_different_numbers() -> None:
    for seed in range(3):
        weights, data, shifted = (
            stream("weights", seed),
            stream("data", seed),
            stream("data", seed + 2**32),
        )
        drawn = [torch.randn(50, generator=g) for g in (weights, data, shifted)]
        assert not any(torch.isin(drawn[a], drawn[b]).any() for a, b in ((0, 1), (0, 2), (1, 2)))
        assert torch.equal(torch.randn(50, generator=stream("data", seed)), drawn[1])


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_it_reaches_the_tolerance_and_both_losses_take_the_same_path(reduction: str) -> None:
    network, theta_0, X, Y = setting()
    done = train_network(
        network, theta_0, X, Y, loss=SquaredError(reduction=reduction), tolerance=1e-6
    )
    assert float((network(done.victim.theta_f, X) - Y).square().mean()) <= 1e-6
    assert done.learning_rate == pytest.approx(0.2 / done.lambda_max)
    # `auto` divides the loss's scale out: the two losses differ in η by nc/2 and in nothing else.
    other = train_network(network, theta_0, X, Y, loss=SquaredError(), tolerance=1e-6)
    assert other.steps == done.steps
    torch.testing.assert_close(
        other.victim.theta_f["layers.0.weight"], done.victim.theta_f["layers.0.weight"]
    )


def test_the_stability_limit_is_where_training_breaks() -> None:
    network, theta_0, X, Y = setting(400)
    limit = 2 / train_network(network, theta_0, X, Y, tolerance=1e-3).lambda_max
    train_network(
        network,
        theta_0,
        X,
        Y,
        tolerance=1e-3,
        optimiser=FullBatchDescent(learning_rate=0.9 * limit),
    )
    with pytest.raises(TrainingDiverged, match="stability limit"):
        train_network(
            network,
            theta_0,
            X,
            Y,
            tolerance=1e-3,
            optimiser=FullBatchDescent(learning_rate=30 * limit),
        )


def test_running_out_of_steps_is_a_named_error() -> None:
    network, theta_0, X, Y = setting()
    for steps in (15, 20):
        with pytest.raises(TrainingDidNotConverge, match=f"after {steps} steps.*--max-steps"):
            train_network(network, theta_0, X, Y, optimiser=FullBatchDescent(max_steps=steps))


def test_absurd_options_are_refused() -> None:
    network, theta_0, X, Y = setting()
    for make in (
        lambda: SquaredError(reduction="max"),
        lambda: FullBatchDescent(learning_rate=-1.0),
        lambda: FullBatchDescent(learning_rate=math.nan),
        lambda: FullBatchDescent(max_steps=0),
        lambda: train_network(network, theta_0, X, Y, tolerance=0.0),
    ):
        with pytest.raises(OptionError, match="expected"):
            make()


@pytest.mark.parametrize("bias", [False, True])
def test_the_closed_form_is_where_gradient_descent_ends(bias: bool) -> None:
    victim, data = interpolated(bias=bias, activation="tanh")
    network = victim.network
    assert isinstance(network, MLP)
    assert victim.theta_0 is not None
    torch.testing.assert_close(network(victim.theta_f, data.inputs), data.targets)
    descended = train_network(
        network,
        victim.theta_0,
        data.inputs,
        data.targets,
        tolerance=1e-16,
        optimiser=FullBatchDescent(learning_rate=1.0),
    ).victim
    torch.testing.assert_close(
        descended.theta_f["theta"], victim.theta_f["theta"], rtol=1e-4, atol=1e-5
    )


def test_too_narrow_random_features_say_so() -> None:
    data = synthetic(n=20, dim=5, rank=5)
    network = random_features(5, 10, 1)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(0), dtype=F64)
    with pytest.raises(TrainingDidNotConverge, match="--width"):
        minimum_norm(network, theta_0, data.inputs, data.targets)


@given(
    n=st.integers(1, 4),
    depth=st.integers(2, 3),
    bias=st.booleans(),
    frozen=st.booleans(),
    twice=st.booleans(),
)
def test_training_in_the_span_of_the_inputs_is_training(
    n: int, depth: int, bias: bool, frozen: bool, twice: bool
) -> None:
    network = mlp(9, 7, 2, depth=depth, bias=bias, activation="tanh")
    theta_0 = initial_theta(network, init="fan-in", generator=generator(n), dtype=F64)
    network = replace(network, frozen=frozenset({"layers.0.weight"} if frozen else ()))
    X, Y = (3 + torch.randn(n, k, generator=generator(n), dtype=F64) for k in (9, 2))
    if twice:
        X[-1], Y[-1] = X[0], Y[0]
    done = train_network(
        network, theta_0, X, Y, tolerance=1.0, optimiser=FullBatchDescent(learning_rate=0.05)
    )
    assert done.steps > 0
    theta = {name: value.clone().requires_grad_() for name, value in theta_0.items()}
    for _ in range(done.steps):
        value = SquaredError().value(network(theta, X), Y)
        slopes = torch.autograd.grad(value, [theta[name] for name in network.trained])
        with torch.no_grad():
            for name, slope in zip(network.trained, slopes, strict=True):
                theta[name] -= 0.05 * slope
    torch.testing.assert_close(
        done.victim.theta_f, {name: value.detach() for name, value in theta.items()}
    )
    if frozen:
        assert torch.equal(done.victim.theta_f["layers.0.weight"], theta_0["layers.0.weight"])
