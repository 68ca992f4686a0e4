"""Retraining follows the gradient flow: against plain gradient descent with tiny steps."""

from __future__ import annotations

import math

import pytest
import torch
from cases import F64, generator
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from recollect.simulate import retraining
from recollect.simulate.retraining import Loss, Path, retrain
from recollect.simulate.training import tangent_kernel_norm
from recollect.victim.mlp import MLP, initial_theta, mlp

Weights = dict[str, Tensor]


def setting(
    seed: int, *, n: int = 4, d: int = 5, c: int = 2, depth: int = 2, bias: bool = True
) -> tuple[MLP, Weights, Tensor, Tensor]:
    network = mlp(d, 100, c, depth=depth, bias=bias)
    theta_0 = initial_theta(network, init="torch", generator=generator(seed), dtype=F64)
    X = torch.randn(n, d, generator=generator(seed + 1), dtype=F64)
    Y = torch.randn(n, c, generator=generator(seed + 2), dtype=F64)
    return network, theta_0, X, Y


def followed(network: MLP, theta_0: Weights, X: Tensor, Y: Tensor, **options: object) -> Path:
    given = {"loss": Loss.SQUARED_ERROR, "distance": 1.0, "straight": 0.003, "most_flops": 1e12}
    path = retrain(network, theta_0, X, Y, **{**given, **options})  # type: ignore[arg-type]
    assert path is not None
    return path


def flow(
    network: MLP, theta_0: Weights, X: Tensor, Y: Tensor, loss: Loss, *, until: float
) -> Weights:
    """Plain gradient descent with steps a fifth as large, until the outputs are Y or θ has gone so
    far."""
    step = 0.04 / tangent_kernel_norm(network, theta_0, X)
    theta = {name: value.clone().requires_grad_() for name, value in theta_0.items()}
    for _ in range(50_000):
        outputs = network(theta, X)
        if loss is Loss.SQUARED_ERROR:
            value = (outputs - Y).square().sum() / 2
            done = float(value.detach()) < until
        else:
            if Y.shape[1] == 1:
                value = torch.nn.functional.soft_margin_loss(outputs, Y.sign(), reduction="sum")
            else:
                value = torch.nn.functional.cross_entropy(outputs, Y.argmax(1), reduction="sum")
            done = apart(theta, theta_0) >= until
        if done:
            return {name: value.detach() for name, value in theta.items()}
        slopes = torch.autograd.grad(value, list(theta.values()))
        with torch.no_grad():
            for parameter, slope in zip(theta.values(), slopes, strict=True):
                parameter -= step * slope
    raise AssertionError("the twin did not end")


def apart(one: Weights, other: Weights) -> float:
    with torch.no_grad():
        return math.sqrt(sum(float((one[name] - other[name]).square().sum()) for name in other))


@settings(max_examples=5)
@given(seed=st.integers(0, 99), depth=st.integers(2, 3), bias=st.booleans())
def test_it_ends_where_small_steps_end(seed: int, depth: int, bias: bool) -> None:
    network, theta_0, X, Y = setting(seed, depth=depth, bias=bias)
    far = flow(network, theta_0, X, Y, Loss.SQUARED_ERROR, until=1e-6)
    length = apart(far, theta_0)
    path = followed(network, theta_0, X, Y, distance=length)
    # Units that switch on the way make the ends of two step sizes differ a little.
    assert apart(path.end, far) < 0.03 * length
    with torch.no_grad():
        assert float((network(path.end, X) - Y).norm()) < 1e-3 * float(Y.norm())


@pytest.mark.parametrize("c", [1, 3])
def test_cross_entropy_ends_at_the_distance(c: int) -> None:
    network, theta_0, X, Y = setting(5, c=c)
    path = followed(network, theta_0, X, Y, loss=Loss.CROSS_ENTROPY, distance=1.5)
    assert 1.5 <= apart(path.end, theta_0) < 1.55
    far = flow(network, theta_0, X, Y, Loss.CROSS_ENTROPY, until=1.5)
    assert apart(path.end, far) < 0.03 * 1.5


def test_the_straight_rest_of_the_path_is_as_accurate_as_asked_for() -> None:
    network, theta_0, X, Y = setting(1)
    far = flow(network, theta_0, X, Y, Loss.SQUARED_ERROR, until=1e-6)
    off = [
        apart(followed(network, theta_0, X, Y, straight=straight).end, far)
        for straight in (0.3, 0.1, 0.003)
    ]
    assert off[2] < 0.5 * off[0]
    assert off[2] < off[1] < off[0]


def test_the_middle_is_half_the_distance_away() -> None:
    network, theta_0, X, Y = setting(3)
    length = apart(followed(network, theta_0, X, Y).end, theta_0)
    path = followed(network, theta_0, X, Y, distance=length)
    assert apart(path.middle, theta_0) == pytest.approx(length / 2, rel=0.1)
    with torch.no_grad():  # and on the way: the outputs are between those of the ends
        start, middle = (float((network(t, X) - Y).norm()) for t in (theta_0, path.middle))
    assert 0.05 * start < middle < 0.9 * start


def test_the_span_of_few_points_changes_nothing() -> None:
    network, theta_0, X, Y = setting(4, n=3, d=4)
    wide = mlp(12, 100, 2, bias=True)
    Q = torch.linalg.qr(torch.randn(12, 4, generator=generator(0), dtype=F64)).Q
    other = initial_theta(wide, init="torch", generator=generator(9), dtype=F64)
    W1 = network.first.weight
    rest = other[W1] - other[W1] @ Q @ Q.T
    lifted = {**theta_0, W1: theta_0[W1] @ Q.T + rest}
    small = followed(network, theta_0, X, Y)
    large = followed(wide, lifted, X @ Q.T, Y)
    # Both ways of computing the path differ in rounding alone, but for the largest eigenvalue.
    torch.testing.assert_close(large.end[W1], small.end[W1] @ Q.T + rest, rtol=0, atol=1e-3)
    torch.testing.assert_close(large.middle[W1] @ Q @ Q.T + rest, large.middle[W1])


@pytest.mark.parametrize("loss", list(Loss))
def test_what_cannot_be_trained_has_no_path(loss: Loss) -> None:
    network, theta_0, X, Y = setting(2, bias=False)
    given = {"loss": loss, "distance": 1.0, "straight": 0.003}
    assert retrain(network, theta_0, X, Y, most_flops=1e4, **given) is None  # type: ignore[arg-type]
    assert retrain(network, theta_0, 0 * X, Y, most_flops=1e9, **given) is None  # type: ignore[arg-type]
    assert retrain(network, theta_0, X * torch.nan, Y, most_flops=1e9, **given) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("c", [1, 3])
def test_points_that_are_classified_already_do_not_move(c: int) -> None:
    """The cross-entropy of a large margin is flat: its curvature is below every number."""
    network, theta_0, X, Y = setting(5, c=c)
    with torch.no_grad():
        last = network.last.weight
        theta_0[last] = 1e6 * theta_0[last]
        Y = network(theta_0, X)
    given = {"loss": Loss.CROSS_ENTROPY, "distance": 1.0, "straight": 0.003, "most_flops": 1e12}
    assert retrain(network, theta_0, X, Y, **given) is None  # type: ignore[arg-type]


def test_the_number_of_steps_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cross-entropy has no end within the steps; the squared error ends on a straight line."""
    network, theta_0, X, Y = setting(2)
    monkeypatch.setattr(retraining, "_STEPS", 100)
    given = {"distance": 1e3, "straight": 1e-9, "most_flops": 1e12}
    assert retrain(network, theta_0, X, Y, loss=Loss.CROSS_ENTROPY, **given) is None
    path = retrain(network, theta_0, X, Y, loss=Loss.SQUARED_ERROR, **given)
    assert path is not None
    with torch.no_grad():
        assert float((network(path.end, X) - Y).norm()) < 1e-3 * float(Y.norm())


def test_work_can_be_stopped() -> None:
    network, theta_0, X, Y = setting(2)

    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        followed(network, theta_0, X, Y, working=stop)
