"""Networks as functions: homogeneity, restriction, initialisation, and any torch module as one of
them."""

from __future__ import annotations

import math

import pytest
import torch
from cases import F64, generator, perturbed, small_mlp
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from recollect.errors import OptionError, VictimError
from recollect.victim.activations import activation
from recollect.victim.architectures import Head, convolutional, residual
from recollect.victim.mlp import initial_theta, mlp, random_features
from recollect.victim.module import ModuleNetwork
from recollect.victim.victim import Victim


@given(
    depth=st.integers(2, 5),
    bias=st.booleans(),
    activation=st.sampled_from(
        ["relu", "leaky-relu", "tanh", "sigmoid", "gelu", "softplus", "sine", "erf"]
    ),
    seed=st.integers(0, 99),
)
def test_homogeneous_says_what_evaluation_shows(
    depth: int, bias: bool, activation: str, seed: int
) -> None:
    victim = perturbed(mlp(4, 20, 2, depth=depth, bias=bias, activation=activation), seed)
    X = torch.randn(3, 4, generator=generator(seed), dtype=F64)
    f, theta = victim.network, victim.theta_f
    assert torch.allclose(f(theta, 3 * X), 3 * f(theta, X), rtol=1e-9) == f.homogeneous


def test_initial_weights_have_the_stated_distribution() -> None:
    network = mlp(400, 500, 3, bias=True)
    theta = initial_theta(network, init="fan-in", generator=generator(0), dtype=F64)
    assert float(theta["layers.0.weight"].std()) == pytest.approx(400**-0.5, rel=0.01)
    assert float(theta["layers.1.weight"].std()) == pytest.approx(500**-0.5, rel=0.1)
    theta = initial_theta(network, init="torch", generator=generator(0), dtype=F64)
    assert float(theta["layers.0.weight"].abs().max()) == pytest.approx(1 / 20, rel=0.01)
    features = random_features(100, 2000, 1, bias=True)
    theta = initial_theta(features, init="torch", generator=generator(0), dtype=F64)
    assert float(theta["V"].std()) == pytest.approx(0.1, rel=0.01)
    assert float(theta["b"].std()) == pytest.approx(1, rel=0.05)
    assert not theta["theta"].any()
    a, b = (
        initial_theta(network, init="fan-in", generator=generator(0), dtype=dtype)
        for dtype in (torch.float32, F64)
    )
    assert all(torch.equal(a[name], b[name].float()) for name in a)


def test_random_features_are_the_papers_formula() -> None:
    network = random_features(3, 7, 1, bias=True, activation="tanh")
    theta = initial_theta(network, init="fan-in", generator=generator(0), dtype=F64)
    theta["theta"] = torch.randn(1, 7, generator=generator(1), dtype=F64)
    x = torch.randn(3, generator=generator(2), dtype=F64)
    expected = torch.tanh(theta["V"] @ x + theta["b"]) @ theta["theta"][0] / math.sqrt(7)
    torch.testing.assert_close(network(theta, x[None])[0, 0], expected)


def module() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3, bias=False)
    )


def test_a_module_is_a_network() -> None:
    torch.manual_seed(0)
    net = module().double()
    theta = net.state_dict()
    wrapped = ModuleNetwork(net, theta)
    X = torch.randn(4, 6, dtype=F64)
    torch.testing.assert_close(wrapped(theta, X), net(X))
    torch.testing.assert_close(wrapped.features(theta, X), net[:-1](X))
    assert (wrapped.d, wrapped.c) == (6, 3)
    assert wrapped.last.names == ("4.weight",)
    assert wrapped.first is not None
    assert wrapped.first.names == ("0.weight", "0.bias")
    assert not wrapped.homogeneous
    bare = nn.Sequential(nn.Linear(5, 7, bias=False), nn.ReLU(), nn.Linear(7, 1, bias=False))
    assert ModuleNetwork(bare, bare.state_dict()).homogeneous
    U = torch.linalg.qr(torch.randn(6, 2, dtype=F64)).Q
    Z = torch.randn(4, 2, dtype=F64)
    torch.testing.assert_close(
        wrapped.restrict(U)(wrapped.restrict_theta(theta, U), Z), net(Z @ U.T)
    )


def test_a_convolution_needs_its_input_shape_and_has_no_first_layer() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 2))
    with pytest.raises(VictimError, match="input_shape"):
        ModuleNetwork(net, net.state_dict())
    wrapped = ModuleNetwork(net, net.state_dict(), (1, 8, 8))
    assert wrapped.first is None
    assert wrapped.d == 64
    with pytest.raises(VictimError, match=r"nn\.Linear"):
        ModuleNetwork(nn.Sequential(nn.ReLU()), {})


def test_what_a_module_does_is_tried_and_not_read_off_its_layers() -> None:
    torch.manual_seed(0)
    probabilities = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3), nn.Softmax(1))
    with pytest.raises(VictimError, match="something after it"):
        ModuleNetwork(probabilities, probabilities.state_dict())
    normed = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    assert ModuleNetwork(normed, normed.state_dict(), (4,)).first is None
    biased = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))
    nn.init.zeros_(biased[0].bias)
    zero = biased.state_dict()
    assert ModuleNetwork(biased, zero).homogeneous
    assert not ModuleNetwork(biased, {**zero, "0.bias": torch.ones(6)}).homogeneous


def test_selecting_parameters() -> None:
    victim = small_mlp(depth=3, bias=True)
    assert victim.select("last") == ("layers.2.weight", "layers.2.bias")
    assert victim.select("all") == victim.network.trained
    assert victim.select("layers.1,layers.0.bias") == (
        "layers.1.weight",
        "layers.1.bias",
        "layers.0.bias",
    )
    with pytest.raises(OptionError, match=r"layers\.0\.weight"):
        victim.select("layers.9")
    with pytest.raises(VictimError, match="θ0"):
        Victim(victim.network, None, victim.theta_f).delta(["layers.0.weight"])


@pytest.mark.parametrize(("width", "depth"), [(0, 2), (-3, 2), (5, 1), (5, 0)])
def test_absurd_sizes_are_refused(width: int, depth: int) -> None:
    with pytest.raises(OptionError, match="expected"):
        mlp(3, width, 1, depth=depth)


def test_the_architectures_have_rules_for_every_layer() -> None:
    for module, shape, first in (
        (convolutional(channels=1, size=8, width=3, c=2), (1, 8, 8), None),
        (residual(channels=1, size=8, width=3, c=2), (1, 8, 8), None),
        (Head(nn.Sequential(nn.Linear(6, 5), nn.Tanh()), 5, 2), (6,), "extractor.0.weight"),
    ):
        theta = {name: value.detach() for name, value in module.double().state_dict().items()}
        network = Victim(module, theta, theta, input_shape=shape).network
        assert network.untapped == ()
        assert (network.first.weight if network.first else None) == first
        X = torch.randn(3, network.d, generator=generator(0), dtype=torch.float64)
        outputs, taps = network.taps(theta, X)
        torch.testing.assert_close(outputs, network(theta, X))
        assert [name for tap in taps for name in tap.layer.names] == list(network.trained)
    assert network.trained == ("head.weight", "head.bias")  # the extractor is frozen


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu", "silu", "clipped-relu", "softplus"])
@pytest.mark.parametrize("tau", [0.0, 0.3])
def test_the_second_derivative_of_an_activation(name: str, tau: float) -> None:
    phi = activation(name)
    phi = phi.smoothed(tau) if tau else phi
    t = torch.tensor([-2.0, -0.31, 0.2, 0.7, 3.0], dtype=torch.float64)
    with torch.no_grad():
        slope, bend = phi.bend(t)
    h = 1e-6
    torch.testing.assert_close(
        slope, (phi.phi(t + h) - phi.phi(t - h)) / (2 * h), rtol=1e-5, atol=1e-5
    )
    difference = (phi.derivative(t + h) - phi.derivative(t - h)) / (2 * h)
    torch.testing.assert_close(bend, difference, rtol=1e-5, atol=1e-5)
    assert not bend.requires_grad
