"""The layerwise Gram: every rule for a layer against the dense G, the rest against slow twins."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from cases import CPU, F64, Largest, evidence, generator, perturbed, thetas
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect.errors import OptionError, VictimError
from recollect.geometry import FreeRadius, Geometry, SharedSubspace, Sphere
from recollect.objective import normal as normal_file
from recollect.objective.dense import DenseObjective
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.implicit import ImplicitObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.objective.normal import DenseNormal, ImplicitNormal
from recollect.victim.mlp import mlp
from recollect.victim.network import Layer
from recollect.victim.victim import Victim


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def tail(inputs: int, c: int, bias: bool) -> list[nn.Module]:
    return [nn.Flatten(), nn.Linear(inputs, c, bias=bias)]


MODULES = {
    "a convolution": lambda c, b: [nn.Conv2d(2, 5, 3, bias=b), nn.Tanh(), *tail(80, c, b)],
    "stride, padding, dilation": lambda c, b: [
        nn.Conv2d(2, 4, (3, 2), stride=2, padding=(1, 2), dilation=(1, 2), bias=b),
        nn.ReLU(inplace=True),
        *tail(48, c, b),
    ],
    "two convolutions and pooling": lambda c, b: [
        nn.Conv2d(2, 4, 3, padding=1, bias=b),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 2, bias=b),
        nn.GELU(),
        nn.AvgPool2d(2),
        *tail(6, c, b),
    ],
    "a residual block": lambda c, b: [
        nn.Conv2d(2, 4, 3, stride=2, padding=1, bias=b),
        Residual(
            nn.Sequential(
                nn.Conv2d(4, 4, 3, padding=1, bias=b), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1)
            )
        ),
        nn.AdaptiveAvgPool2d(1),
        *tail(4, c, b),
    ],
    "linear layers on rows of pixels": lambda c, b: [
        nn.Linear(6, 5, bias=b),
        nn.SiLU(),
        nn.Linear(5, 3, bias=b),
        *tail(36, c, b),
    ],
    "fully connected": lambda c, b: [
        nn.Flatten(),
        nn.Linear(72, 9, bias=b),
        nn.ReLU(),
        Residual(nn.Sequential(nn.Linear(9, 9, bias=b), nn.LeakyReLU())),
        nn.Linear(9, c, bias=b),
    ],
}


def module_victim(name: str, c: int, bias: bool, seed: int) -> Victim:
    torch.manual_seed(seed)
    module = nn.Sequential(*MODULES[name](c, bias)).double()
    theta_0 = {key: value.detach().clone() for key, value in module.state_dict().items()}
    theta_f = {key: value + 0.1 * torch.randn_like(value) for key, value in theta_0.items()}
    return Victim(module, theta_0, theta_f, input_shape=(2, 6, 6))


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=F64)


def layerwise(
    victim: Victim,
    parameters: str = "all",
    endpoints: Endpoints = Endpoints.FINAL,
    **options: bool,
) -> LayerwiseObjective:
    names = victim.select(parameters)
    known = evidence(victim, endpoints)
    return LayerwiseObjective(known, names, device=CPU, dtype=F64, **options)


def same_fit(victim: Victim, parameters: str, X: Tensor) -> None:
    ours = layerwise(victim, parameters).fit(X)
    names = victim.select(parameters)
    twin = DenseObjective(evidence(victim), names, device=CPU, dtype=F64).fit(X)
    assert ours.gradient is not None
    assert twin.gradient is not None
    torch.testing.assert_close(ours.loss, twin.loss, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(
        ours.alpha, twin.alpha, rtol=1e-8, atol=1e-10 * float(twin.alpha.abs().max())
    )
    size = float(twin.gradient.abs().max())
    torch.testing.assert_close(ours.gradient, twin.gradient, rtol=1e-9, atol=1e-10 * size + 1e-15)


@pytest.mark.parametrize("name", MODULES)
@given(
    c=st.sampled_from([1, 3, 10]), n=st.integers(1, 2), bias=st.booleans(), seed=st.integers(0, 999)
)
def test_every_rule_against_dense(name: str, c: int, n: int, bias: bool, seed: int) -> None:
    victim = module_victim(name, c, bias, seed)
    assert victim.network.untapped == ()
    same_fit(victim, "all", points(n, 72, seed))


def same_fits(objective: LayerwiseObjective, X: Tensor) -> None:
    """Sets of points that are stacked are explained as each by itself, with a jitter of its own."""
    jitter = torch.tensor([0.0, 1e-3, 1e-8], dtype=F64)[: len(X)]
    together = objective.fit(X, jitter=jitter)
    assert together.gradient is not None
    assert together.loss.shape == (len(X),)
    for k in range(len(X)):
        alone = objective.fit(X[k], jitter=jitter[k])
        assert alone.gradient is not None
        torch.testing.assert_close(together.loss[k], alone.loss, rtol=1e-9, atol=1e-12)
        for ours, own in ((together.alpha[k], alone.alpha), (together.gradient[k], alone.gradient)):
            torch.testing.assert_close(ours, own, rtol=1e-6, atol=1e-8 * float(own.abs().max()))


@pytest.mark.parametrize("name", MODULES)
def test_stacked_sets_of_every_rule(name: str) -> None:
    victim = module_victim(name, 3, True, 0)
    objective = layerwise(victim)
    same_fits(objective, torch.stack([points(2, 72, seed) for seed in range(3)]))


@given(
    n=st.integers(1, 4),
    c=st.integers(1, 3),
    depth=st.integers(2, 4),
    bias=st.booleans(),
    endpoints=st.sampled_from(list(Endpoints)),
    balanced=st.booleans(),
    seed=st.integers(0, 999),
)
def test_stacked_sets_at_any_endpoints(
    n: int, c: int, depth: int, bias: bool, endpoints: Endpoints, balanced: bool, seed: int
) -> None:
    victim = perturbed(mlp(5, 40, c, depth=depth, bias=bias, activation="tanh"), seed)
    objective = layerwise(victim, endpoints=endpoints, balanced=balanced)
    same_fits(objective, torch.stack([points(n, 5, seed + k) for k in range(3)]))


def test_any_part_of_the_layers() -> None:
    victim = module_victim("two convolutions and pooling", 3, True, 0)
    for parameters in ("0", "0.bias,7", "3.weight,7.bias", "0.weight,3"):
        same_fit(victim, parameters, points(2, 72, 1))


def without_a_rule(name: str) -> Victim:
    """A network in which the layer called 1 has no rule."""
    shared = nn.Linear(6, 6)
    layers: dict[str, list[nn.Module]] = {
        "a norm": [nn.Linear(72, 6), nn.LayerNorm(6), nn.Linear(6, 2)],
        "groups": [
            nn.Unflatten(1, (2, 6, 6)),
            nn.Conv2d(2, 4, 3, groups=2),
            nn.Flatten(),
            nn.Linear(64, 2),
        ],
        "called twice": [nn.Linear(72, 6), shared, nn.ReLU(), shared, nn.Linear(6, 2)],
    }
    module = nn.Sequential(*layers[name]).double()
    theta = {key: value.detach() for key, value in module.state_dict().items()}
    moved = {key: value + 0.1 for key, value in theta.items()}
    return Victim(module, theta, moved, input_shape=(72,))


@pytest.mark.parametrize("name", ["a norm", "groups", "called twice"])
def test_layers_without_a_rule_are_named_and_refused(name: str) -> None:
    victim = without_a_rule(name)
    assert victim.network.untapped == ("1.weight", "1.bias")
    with pytest.raises(OptionError, match=r"layerwise Gram, got 1\.weight"):
        layerwise(victim)
    known, names, unruled = evidence(victim), victim.select("all"), victim.network.untapped
    objective = ImplicitObjective(known, names, device=CPU, dtype=F64, unruled=unruled)
    assert objective.notes == ()
    objective.fit(points(2, 72, 0))
    assert objective.notes[0].startswith("1.weight, 1.bias belong to layers without a rule")


@pytest.mark.parametrize("name", ["a norm", "groups", "called twice"])
def test_layers_without_a_rule_are_named_and_left_to_conjugate_gradients(name: str) -> None:
    from recollect.attacks.options import FullSpace, Projection
    from recollect.attacks.problem import Problem
    from recollect.solve.gradient_descent import GradientDescent

    victim = without_a_rule(name)
    attack = Projection(space=FullSpace(), parameters="all", solver=GradientDescent(iterations=1))
    assert isinstance(Problem.of(victim, attack, CPU).objective(2), DenseObjective)
    problem = Problem.of(victim, replace(attack, gram="cg"), CPU)
    objective = problem.objective(2)
    assert isinstance(objective, ImplicitObjective)
    objective.fit(points(2, problem.r, 0).float())
    assert "1.weight" in objective.notes[0]
    forced = Problem.of(victim, replace(attack, gram="layerwise"), CPU)
    with pytest.raises(OptionError, match="layerwise"):
        forced.objective(2)


class SequenceFirst(nn.Module):
    """Seven positions before the points: as many as a module is tried at."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.tanh(self.a(x.transpose(0, 1))).mean(0))


class UsedTwice(nn.Module):
    """A weight that a layer owns and a function uses as well."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(21, 5), nn.Linear(21, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = nn.functional.linear(torch.tanh(self.a(x.flatten(1))), self.a.weight.t())
        return self.b(h)


class Idle(nn.Module):
    """A layer called by keyword, and one whose output nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.idle, self.b = nn.Linear(21, 5), nn.Linear(21, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        self.idle(x)
        return self.b(torch.relu(self.a(input=x)))


class Moody(nn.Module):
    """A layer that is called only for several points at once."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(21, 21), nn.Linear(21, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        return self.b(self.a(x) if len(x) > 1 else x)


@pytest.mark.parametrize(
    ("module", "left"),
    [
        (SequenceFirst, ("a.weight", "a.bias")),
        (UsedTwice, ("a.weight", "a.bias")),
        (Idle, ("idle.weight", "idle.bias")),
    ],
)
def test_what_a_layer_does_is_tried_and_not_assumed(
    module: type[nn.Module], left: tuple[str, ...]
) -> None:
    torch.manual_seed(0)  # some weights let the points share their gates, and α is then not unique
    own = module().double()
    theta = {key: value.detach() for key, value in own.state_dict().items()}
    moved = {
        key: value + 0.1 * torch.sin(torch.arange(value.numel()).double()).reshape(value.shape)
        for key, value in theta.items()
    }
    victim = Victim(own, theta, moved, input_shape=(7, 3))
    assert victim.network.untapped == left
    rest = ",".join(name for name in victim.network.trained if name not in left)
    same_fit(victim, rest, points(3, 21, 0))


def test_a_layer_that_is_not_always_called_is_an_error_with_words() -> None:
    module = Moody().double()
    theta = {key: value.detach() for key, value in module.state_dict().items()}
    network = Victim(module, theta, theta, input_shape=(7, 3)).network
    with pytest.raises(VictimError, match="called once"):
        network.taps(theta, points(1, 21, 0))


def test_it_never_holds_the_dense_jacobian() -> None:
    n, c, p, d = 12, 10, 90, 40
    victim = perturbed(mlp(d, p, c, depth=3), 0)
    objective = layerwise(victim)
    with Largest() as largest:
        objective.fit(points(n, d, 0))
    assert 0 < largest.size <= max((n * c) ** 2, n * c * p, p * p)


# Both endpoints, and what Levenberg–Marquardt is told, written out.


def drawn(
    depth: int, c: int, n: int, bias: bool, activation: str, tau: float, seed: int
) -> tuple[Victim, Tensor]:
    victim = perturbed(mlp(4, 24, c, depth=depth, bias=bias, activation=activation), seed)
    if tau:
        smooth = Evidence.change(victim).smoothed(points(20, 4, seed + 5), tau).network
        victim = Victim(smooth, victim.theta_0, victim.theta_f)
    return victim, Sphere(2.0).project(points(n, 4, seed + 6))


def explained(victim: Victim, objective: LayerwiseObjective, Z: Tensor, alpha: Tensor) -> Tensor:
    """Σ_e Σ_ik α_ik ∇f_k(z_i; θ_e), with the layers scaled as the objective scales them.

    It is differentiable in Z and α.
    """
    total: Tensor = torch.zeros((), dtype=F64)
    for theta, own in zip(thetas(victim, objective.endpoints), alpha, strict=True):
        chosen = {name: theta[name] for name in victim.network.trained}
        part = torch.func.grad(lambda t, own=own: (victim.network(t, Z) * own).sum())(chosen)
        total = total + torch.cat(
            [scales(victim, objective)[name] * part[name].reshape(-1) for name in chosen]
        )
    return total


def well_posed(objective: LayerwiseObjective, Z: Tensor) -> None:
    """Leave out draws in which the middle of the path adds nothing but rounding.

    That is the case where no unit switches on the way.
    """
    factor = objective.explain(Z).gram._factor
    assume(objective.endpoints is not Endpoints.PATH or float(torch.linalg.cond(factor)) ** 2 < 1e8)


def scales(victim: Victim, objective: LayerwiseObjective) -> dict[str, float]:
    delta = victim.delta(victim.network.trained)
    if not objective.balanced:
        return dict.fromkeys(delta, 1.0)
    squares = [
        sum(float(delta[name].square().sum()) for name in layer.names) for layer in objective.layers
    ]
    total = sum(squares)
    return {
        name: math.sqrt(total / (len(squares) * square))
        for layer, square in zip(objective.layers, squares, strict=True)
        for name in layer.names
    }


drawings = {
    "depth": st.integers(2, 4),
    "c": st.integers(1, 3),
    "n": st.integers(1, 3),
    "bias": st.booleans(),
    "activation": st.sampled_from(["relu", "leaky-relu", "tanh", "gelu", "sine"]),
    "tau": st.sampled_from([0.0, 0.3]),
    "seed": st.integers(0, 999),
    "endpoints": st.sampled_from(list(Endpoints)),
    "balanced": st.booleans(),
}


@given(**drawings, free=st.booleans())
def test_loss_gradient_and_normal_equations_match_their_definitions(
    depth: int,
    c: int,
    n: int,
    bias: bool,
    activation: str,
    tau: float,
    seed: int,
    endpoints: Endpoints,
    balanced: bool,
    free: bool,
) -> None:
    victim, Z = drawn(depth, c, n, bias, activation, tau, seed)
    geometry: Geometry = FreeRadius(2.0) if free else Sphere(2.0)
    names = victim.select("all")
    objective = layerwise(victim, endpoints=endpoints, balanced=balanced)
    well_posed(objective, Z)
    ends = len(thetas(victim, endpoints))
    change, scale = victim.delta(names), scales(victim, objective)
    length = math.sqrt(sum(float(part.square().sum()) for part in change.values()))
    delta = torch.cat([scale[name] * change[name].reshape(-1) for name in names]) / length

    def loss_at(Z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        zero = torch.zeros(ends, n, c, dtype=F64)
        G = torch.func.jacrev(lambda alpha: explained(victim, objective, Z, alpha))(zero).reshape(
            len(delta), -1
        )
        alpha = torch.linalg.lstsq(G.detach(), delta[:, None], driver="gelsd").solution[:, 0]
        return (delta - G @ alpha).square().sum(), alpha.reshape(ends, n, c), G

    free_Z = Z.clone().requires_grad_()
    loss, alpha, G = loss_at(free_Z)
    (slope,) = torch.autograd.grad(loss, free_Z)  # α held, as the envelope theorem allows
    fit, normal = objective.linearise(Z, geometry)
    close = {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(fit.loss, loss.detach(), **close)
    assert fit.gradient is not None
    torch.testing.assert_close(
        fit.gradient, slope, rtol=1e-5, atol=1e-7 * float(slope.abs().max() + 1)
    )
    torch.testing.assert_close(
        normal.gradient, geometry.tangent(Z, slope) / 2, rtol=1e-5, atol=1e-7
    )
    M = torch.func.jacfwd(lambda Z: explained(victim, objective, Z, alpha))(Z)
    M = geometry.tangent(Z, M).reshape(len(delta), -1)
    G = G.detach()
    F = M - G @ torch.linalg.lstsq(G, M, driver="gelsd").solution
    size = float((M.T @ M).abs().max())
    torch.testing.assert_close(normal.N, F.T @ F, rtol=1e-6, atol=1e-9 * size)  # type: ignore[attr-defined]


@given(**drawings, damping=st.sampled_from([1e-3, 0.1, 10.0]))
def test_the_matrix_free_step_is_the_dense_one(
    depth: int,
    c: int,
    n: int,
    bias: bool,
    activation: str,
    tau: float,
    seed: int,
    endpoints: Endpoints,
    balanced: bool,
    damping: float,
) -> None:
    victim, Z = drawn(depth, c, n, bias, activation, tau, seed)
    objective = layerwise(victim, endpoints=endpoints, balanced=balanced)
    geometry = Sphere(2.0)
    well_posed(objective, Z)
    _, dense = objective.linearise(Z, geometry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
        _, free_form = objective.linearise(Z, geometry)
    assert isinstance(dense, DenseNormal)
    assert isinstance(free_form, ImplicitNormal)
    v = points(n, 4, seed + 9)
    size = float(dense.N.abs().max()) + 1e-12
    expected = (dense.N @ v.reshape(-1)).reshape(v.shape)
    torch.testing.assert_close(free_form.product(v), expected, rtol=1e-6, atol=1e-8 * size)
    torch.testing.assert_close(free_form.gradient, dense.gradient)
    free_form = replace(free_form, tolerance=1e-10)
    # Later steps start from the directions of the first one, whether they are damped more or less.
    for factor in (1.0, 4.0, 64.0, 0.01):
        # The two scale λ by their own mean diagonals.
        loading = factor * damping * float(free_form.scales.mean())
        N = dense.N + loading * torch.eye(n * 4, dtype=F64)
        step = torch.linalg.solve(N, -dense.gradient.reshape(-1)).reshape(v.shape)
        size = float(step.abs().max())
        torch.testing.assert_close(
            free_form.step(factor * damping), step, rtol=1e-5, atol=1e-6 * size + 1e-12
        )


def test_points_that_move_together_need_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    victim, Z = drawn(2, 2, 3, False, "tanh", 0.0, 0)
    monkeypatch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
    _, normal = layerwise(victim).linearise(Z, SharedSubspace(Sphere(2.0), 2))
    assert isinstance(normal, DenseNormal)
    assert normal.frame is not None


@pytest.mark.parametrize("name", ["a convolution", "a residual block"])
def test_the_matrix_free_product_of_a_module_is_its_definition(name: str) -> None:
    victim = module_victim(name, 2, True, 3)
    names, Z, geometry = victim.select("all"), points(2, 72, 4), FreeRadius(1.0)
    objective = layerwise(victim)
    fit, normal = objective.linearise(Z, geometry)
    assert isinstance(normal, ImplicitNormal)
    theta = {key: victim.theta_f[key] for key in names}
    length = math.sqrt(sum(float(part.square().sum()) for part in victim.delta(names).values()))

    def combined(Z: Tensor, alpha: Tensor) -> Tensor:
        part = torch.func.grad(lambda t: (alpha * victim.network(t, Z)).sum())(theta)
        return torch.cat([part[key].reshape(-1) for key in names])

    alpha = fit.alpha / length
    G = torch.func.jacrev(lambda alpha: combined(Z, alpha))(alpha).flatten(1)
    v = points(2, 72, 5)
    moved = torch.func.jvp(lambda Z: combined(Z, alpha), (Z,), (v,))[1]
    free = moved - G @ torch.linalg.lstsq(G, moved[:, None], driver="gelsd").solution[:, 0]
    expected = torch.func.vjp(lambda Z: combined(Z, alpha), Z)[1](free)[0]
    torch.testing.assert_close(
        normal.product(v), expected, rtol=1e-6, atol=1e-9 * float(expected.abs().max())
    )


@given(
    seed=st.integers(0, 999),
    n=st.integers(1, 3),
    c=st.integers(1, 2),
    activation=st.sampled_from(["relu", "leaky-relu"]),
    tau=st.sampled_from([0.0, 0.3]),
    endpoints=st.sampled_from([Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH]),
)
def test_lifting_leaves_even_parts_and_a_free_linear_one(
    seed: int, n: int, c: int, activation: str, tau: float, endpoints: Endpoints
) -> None:
    victim, Z = drawn(2, c, n, False, activation, tau, seed)
    names = victim.select("all")
    objective = layerwise(victim, endpoints=endpoints, lifted=True)
    flips = torch.where(torch.rand(n, generator=generator(seed)) < 0.5, -1.0, 1.0).double()
    fit, normal = objective.linearise(Z, Sphere(2.0))
    flipped = objective.fit(flips[:, None] * Z)
    torch.testing.assert_close(flipped.loss, fit.loss, rtol=1e-8, atol=1e-10)

    def combined(Z: Tensor, alpha: Tensor, sign: int) -> Tensor:
        """Σ α ∇(f(z) + sign·f(−z))/2 over points, outputs and ends."""
        total: Tensor = torch.zeros((), dtype=F64)
        for theta, own in zip(thetas(victim, endpoints), alpha, strict=True):

            def half(t: dict[str, Tensor], own: Tensor = own) -> Tensor:
                return (own * (victim.network(t, Z) + sign * victim.network(t, -Z))).sum() / 2

            part = torch.func.grad(half)({name: theta[name] for name in names})
            total = total + torch.cat([part[name].reshape(-1) for name in names])
        return total

    E = torch.eye(4, dtype=F64)
    zero, fixed = (
        torch.zeros(len(thetas(victim, endpoints)), n, c, dtype=F64),
        torch.zeros(len(thetas(victim, endpoints)), 4, c, dtype=F64),
    )
    own = torch.func.jacrev(lambda alpha: combined(Z, alpha, 1))(zero)
    linear = torch.func.jacrev(lambda alpha: combined(E, alpha, -1))(fixed)
    G = torch.cat([own.flatten(1), linear.flatten(1)], dim=1)
    change = torch.cat([part.reshape(-1) for part in victim.delta(names).values()])
    delta = change / change.norm()
    alpha = torch.linalg.lstsq(G, delta[:, None], driver="gelsd").solution[:, 0]
    torch.testing.assert_close(fit.loss, (delta - G @ alpha).square().sum(), rtol=1e-6, atol=1e-9)
    M = torch.func.jacfwd(lambda Z: combined(Z, alpha[: zero.numel()].reshape(zero.shape), 1))(Z)
    M = Sphere(2.0).tangent(Z, M).reshape(len(delta), -1)
    F = M - G @ torch.linalg.lstsq(G, M, driver="gelsd").solution
    size = float((M.T @ M).abs().max())
    torch.testing.assert_close(normal.N, F.T @ F, rtol=1e-5, atol=1e-8 * size)  # type: ignore[attr-defined]


@pytest.mark.parametrize("bias", [False, True])
def test_the_sign_system_holds_where_the_linear_parts_do(bias: bool) -> None:
    """Where Δθ is made of gradients at chosen points, the free linear part is theirs.

    This holds whatever signs the points are given.
    """
    victim, Z = drawn(2, 1, 3, False, "relu", 0.0, 1)
    alpha = points(3, 1, 2)
    chosen = dict(victim.theta_f)
    if bias:  # of the last layer alone
        network = mlp(4, 24, 1)
        network = replace(network, layers=(network.first, Layer(network.last.weight, "bias")))
        chosen["bias"] = torch.ones(1, dtype=F64)
        victim = Victim(network, chosen, chosen)
    change = torch.func.grad(lambda t: (alpha * victim.network(t, Z)).sum())(chosen)
    made = Victim(victim.network, {name: chosen[name] - change[name] for name in chosen}, chosen)
    objective = layerwise(made, lifted=True, balanced=True)
    flips = torch.tensor([1.0, -1.0, -1.0], dtype=F64)
    assert float(objective.fit(flips[:, None] * Z).loss) < 1e-20
    M, t = objective.sign_system(flips[:, None] * Z)
    torch.testing.assert_close(M @ flips, t, rtol=1e-7, atol=1e-7 * float(t.abs().max()))
    with pytest.raises(ValueError, match="lifted"):
        layerwise(made).sign_system(Z)


@given(
    seed=st.integers(0, 99),
    n=st.integers(2, 4),
    c=st.integers(1, 3),
    endpoints=st.sampled_from(list(Endpoints)),
)
def test_cost_and_gain_are_differences_of_losses(
    seed: int, n: int, c: int, endpoints: Endpoints
) -> None:
    victims = [drawn(2, c, n, False, "relu", 0.2, seed), drawn(3, c, n, True, "tanh", 0.0, seed)]
    victims.append((module_victim("a convolution", c, True, seed), points(n, 72, seed)))
    for victim, Z in victims:
        objective = layerwise(victim, endpoints=endpoints)
        well_posed(objective, Z)
        loss, cost = float(objective.fit(Z, gradient=False).loss), objective.costs(Z)
        for i in range(n):
            others = torch.cat([Z[:i], Z[i + 1 :]])
            without = float(objective.fit(others, gradient=False).loss)
            assert abs(float(cost[i]) - (without - loss)) < 1e-7
            z = Z[i : i + 1].clone().requires_grad_()
            gain = objective.gains(others)(z)
            assert abs(float(gain.detach()) - (without - loss)) < 1e-7
            (slope,) = torch.autograd.grad(gain.sum(), z)
            step = 1e-6 * points(1, Z.shape[1], seed + 1)
            with torch.no_grad():
                rise = objective.gains(others)(z + step) - objective.gains(others)(z - step)
            assert abs(float(rise) / 2 - float((slope * step).sum())) < 1e-9


def test_gates_close_to_the_network_itself() -> None:
    for depth, activation in ((2, "relu"), (4, "leaky-relu")):
        victim = perturbed(mlp(5, 30, 2, depth=depth, activation=activation), 0)
        X = points(40, 5, 1)
        hard = victim.network(victim.theta_f, X)
        gaps = []
        for tau in (1.0, 0.1, 0.01, 0.001):
            soft = Evidence.change(victim).smoothed(X, tau)
            gaps.append(float((soft.network(victim.theta_f, X) - hard).abs().max()))
            assert soft.network.identity != victim.network.identity
        assert gaps == sorted(gaps, reverse=True)
        assert gaps[-1] < 1e-2 * gaps[0]
    smooth = perturbed(mlp(5, 30, 2, activation="tanh"), 0)
    torch.testing.assert_close(
        Evidence.change(smooth).smoothed(X, 0.5).network(smooth.theta_f, X),
        smooth.network(smooth.theta_f, X),
        rtol=0,
        atol=0,
    )


def test_a_module_closes_its_gates_like_its_mlp() -> None:
    victim = perturbed(mlp(5, 12, 2, depth=3), 0)
    module = nn.Sequential(
        nn.Linear(5, 12, bias=False),
        nn.ReLU(inplace=True),
        nn.Linear(12, 12, bias=False),
        nn.ReLU(inplace=True),
        nn.Linear(12, 2, bias=False),
    ).double()
    names = dict(zip(module.state_dict(), victim.theta_f, strict=True))
    theta = {ours: victim.theta_f[theirs] for ours, theirs in names.items()}
    twin, X = Victim(module, theta, theta), points(20, 5, 1)
    ours, theirs = (Evidence.change(one).smoothed(X, 0.3) for one in (victim, twin))
    torch.testing.assert_close(theirs.network(theta, X), ours.network(victim.theta_f, X))


def test_where_no_unit_switches_the_middle_of_the_way_adds_nothing() -> None:
    """Gradients of two layers are linear in θ while the gates stay as they are."""
    victim = perturbed(mlp(4, 40, 2), 0)
    assert victim.theta_0 is not None
    near = {
        name: start + 1e-4 * (victim.theta_f[name] - start)
        for name, start in victim.theta_0.items()
    }
    victim = Victim(victim.network, victim.theta_0, near)
    Z = Sphere(2.0).project(points(3, 4, 7))
    final, both, path = (
        layerwise(victim, endpoints=endpoints).fit(Z)
        for endpoints in (Endpoints.FINAL, Endpoints.BOTH, Endpoints.PATH)
    )
    assert float(both.loss) < 0.99 * float(final.loss)
    torch.testing.assert_close(path.loss, both.loss, rtol=1e-6, atol=1e-12)
    assert path.gradient is not None
    torch.testing.assert_close(path.gradient, both.gradient, rtol=1e-5, atol=1e-8)
