"""The last layer: its rows, fits and normal equations against slow twins.

Rows are taken at either end of training or at both, with signs lifted or not.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from cases import CPU, F64, evidence, generator, interpolated, perturbed, thetas
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from recollect.errors import OptionError
from recollect.geometry import FreeRadius, Geometry, SharedSubspace, Sphere
from recollect.objective import normal as normal_file
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective
from recollect.victim.mlp import MLP, mlp, random_features
from recollect.victim.parity import Parity, parity
from recollect.victim.victim import Victim

ACTIVATIONS = ["relu", "leaky-relu", "tanh", "sigmoid", "gelu", "softplus", "sine", "erf"]


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=F64)


def last_layer(
    victim: Victim, endpoints: Endpoints = Endpoints.FINAL, *, lifted: bool = False
) -> LastLayerObjective:
    return LastLayerObjective(evidence(victim, endpoints), device=CPU, dtype=F64, lifted=lifted)


@given(
    d=st.integers(1, 5),
    n=st.integers(1, 4),
    depth=st.integers(2, 4),
    bias=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    seed=st.integers(0, 999),
)
def test_the_analytic_jacobian_is_autograds(
    d: int, n: int, depth: int, bias: bool, activation: str, seed: int
) -> None:
    victim = perturbed(mlp(d, 7, 2, depth=depth, bias=bias, activation=activation), seed)
    X, theta = points(n, d, seed), victim.theta_f
    J = victim.network.jacobian(theta, X)
    assert J.shape == (7, n, d)
    for i in range(n):
        twin = torch.autograd.functional.jacobian(
            lambda x: victim.network.features(theta, x[None])[0], X[i]
        )
        torch.testing.assert_close(J[:, i], twin, rtol=1e-10, atol=1e-12)


def test_random_features_and_modules_have_the_same_jacobian_as_their_mlp() -> None:
    scaled = perturbed(random_features(4, 9, 1, bias=True, activation="tanh"), 0)
    X = points(3, 4, 1)
    twin = torch.func.vmap(
        torch.func.jacrev(lambda x: scaled.network.features(scaled.theta_f, x[None])[0])
    )(X)
    torch.testing.assert_close(scaled.network.jacobian(scaled.theta_f, X), twin.permute(1, 0, 2))
    module = nn.Sequential(
        nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)
    ).double()
    theta = {name: value.detach() for name, value in module.state_dict().items()}
    wrapped = Victim(module, theta, theta)
    twin = torch.func.vmap(
        torch.func.jacrev(lambda x: wrapped.network.features(theta, x[None])[0])
    )(X)
    torch.testing.assert_close(wrapped.network.jacobian(theta, X), twin.permute(1, 0, 2))
    U = torch.linalg.qr(points(4, 2, 5)).Q
    low = Evidence.change(wrapped).restrict(U).network.jacobian(theta, X[:, :2])
    assert low.shape == (6, 3, 2)


# What the rows are, written out.


def rows(victim: Victim, endpoints: Endpoints, lifted: bool, Z: Tensor) -> Tensor:
    """All rows, one after the other, without mixing the two ends; differentiable in Z."""
    network, bias = victim.network, victim.network.last.bias is not None
    own, linear = [], []
    for theta in thetas(victim, endpoints):
        H = network.features(theta, Z)
        if lifted:
            H = (H + network.features(theta, -Z)) / 2
            linear.append(theta["layers.0.weight"].T)
        own.append(torch.cat([H, torch.ones(len(H), 1, dtype=F64)], dim=1) if bias else H)
    fixed = torch.cat(linear) if linear else own[0][:0]
    if bias and linear:
        fixed = torch.cat([fixed, torch.zeros(len(fixed), 1, dtype=F64)], dim=1)
    return torch.cat([*own, fixed])


def change(victim: Victim) -> Tensor:
    delta = victim.delta(victim.network.last.names)
    D = delta[victim.network.last.weight]
    if victim.network.last.bias is not None:
        D = torch.cat([D, delta[victim.network.last.bias][:, None]], dim=1)
    return D / D.norm()


def projector(A: Tensor) -> Tensor:
    return torch.eye(A.shape[1], dtype=F64) - A.T @ torch.linalg.solve(A @ A.T, A)


def twin_loss(victim: Victim, endpoints: Endpoints, lifted: bool, Z: Tensor) -> Tensor:
    return (change(victim) @ projector(rows(victim, endpoints, lifted, Z))).square().sum()


class Case:
    """A span and all its twin needs to know."""

    def __init__(self, seed: int, n: int, r: int, c: int, endpoints: Endpoints, kind: str) -> None:
        width = 6 * (n + r) + 10
        networks: dict[str, MLP] = {
            "plain": mlp(r, width, c),
            "lifted": mlp(r, width, c),
            "leaky": mlp(r, width, c, activation="leaky-relu"),
            "deep": mlp(r, width, c, depth=3, activation="tanh"),
            "bias": mlp(r, width, c, bias=True, activation="gelu"),
        }
        self.victim, self.endpoints = perturbed(networks[kind], seed), endpoints
        self.lifted = kind == "lifted"
        self.Z = Sphere(2.0).project(points(n, r, seed + 1))
        self.objective = last_layer(self.victim, endpoints, lifted=self.lifted)
        A = rows(self.victim, endpoints, self.lifted, self.Z)
        scaled = A / A.norm(dim=1, keepdim=True)
        self.condition = float(torch.linalg.cond(scaled @ scaled.T))
        self.tolerance = 1e-12 * max(self.condition, 1e3)


def build(shape: tuple[object, ...]) -> Case:
    case = Case(*shape)  # type: ignore[arg-type]
    assume(case.condition < 1e7)
    return case


drawn = st.tuples(
    st.integers(0, 2**16),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from([Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH]),
    st.sampled_from(["plain", "lifted", "leaky", "deep", "bias"]),
)


@given(shape=drawn)
def test_loss_and_gradient_are_those_of_the_definition(shape: tuple[object, ...]) -> None:
    case = build(shape)
    Z = case.Z.clone().requires_grad_()
    loss = twin_loss(case.victim, case.endpoints, case.lifted, Z)
    (slope,) = torch.autograd.grad(loss, Z)
    fit = case.objective.fit(case.Z)
    assert fit.gradient is not None
    torch.testing.assert_close(fit.loss, loss.detach(), rtol=case.tolerance, atol=case.tolerance)
    size = float(slope.abs().max()) + 1e-3
    torch.testing.assert_close(fit.gradient, slope, rtol=case.tolerance, atol=case.tolerance * size)


@given(shape=drawn, starts=st.integers(1, 3))
def test_a_fit_of_several_starts_is_the_fit_of_each(shape: tuple[object, ...], starts: int) -> None:
    case = build(shape)
    Z = case.Z * torch.linspace(0.5, 2, starts, dtype=F64)[:, None, None]
    jitter = 1e-8 * torch.arange(starts, dtype=F64)
    together = case.objective.fit(Z, jitter=jitter)
    for k in range(starts):
        alone = case.objective.fit(Z[k], jitter=jitter[k])
        assert together.gradient is not None
        assert alone.gradient is not None
        size = float(alone.gradient.abs().max()) + 1e-3
        torch.testing.assert_close(
            together.loss[k], alone.loss, rtol=case.tolerance, atol=case.tolerance
        )
        torch.testing.assert_close(
            together.gradient[k], alone.gradient, rtol=1e-6, atol=case.tolerance * size
        )
        torch.testing.assert_close(
            together.alpha[k], alone.alpha, rtol=1e-6, atol=1e-6 * float(alone.alpha.abs().max())
        )


def kaufman(case: Case, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """J (cp × nr) column by column, and R.

    A column says how R moves when a coordinate does, with the part in the span left out.
    """
    Z = case.Z
    A = rows(case.victim, case.endpoints, case.lifted, Z)
    D, P = change(case.victim), projector(A)
    C = torch.linalg.solve(A @ A.T, A @ D.T)
    n, r = Z.shape
    tangents = torch.eye(n * r, dtype=F64).reshape(n * r, n, r)
    columns = []
    for tangent in tangents:
        moved = torch.func.jvp(
            lambda Z: rows(case.victim, case.endpoints, case.lifted, Z),
            (Z,),
            (geometry.tangent(Z, tangent),),
        )[1]
        columns.append(-(C.T @ moved @ P).reshape(-1))
    return torch.stack(columns, dim=1), (D @ P).reshape(-1)


@given(shape=drawn, free=st.booleans(), damping=st.sampled_from([1e-3, 1.0]))
def test_the_normal_equations_are_those_of_the_jacobian(
    shape: tuple[object, ...], free: bool, damping: float
) -> None:
    case = build(shape)
    geometry: Geometry = FreeRadius(2.0) if free else Sphere(2.0)
    J, R = kaufman(case, geometry)
    N, g = J.T @ J, (J.T @ R).reshape(case.Z.shape)
    fit, dense = case.objective.linearise(case.Z, geometry)
    size = float(N.abs().max()) + 1e-4  # it vanishes where a move changes nothing, up to rounding
    torch.testing.assert_close(dense.N, N, rtol=0, atol=case.tolerance * size)
    torch.testing.assert_close(
        dense.gradient, g, rtol=0, atol=case.tolerance * (float(g.abs().max()) + 1e-6)
    )
    full = case.objective.fit(case.Z)
    assert full.gradient is not None
    torch.testing.assert_close(fit.loss, full.loss)
    half = geometry.tangent(case.Z, full.gradient) / 2
    torch.testing.assert_close(
        dense.gradient, half, rtol=0, atol=case.tolerance * (float(g.abs().max()) + 1e-3)
    )
    # The matrix-free form, and what both make of it.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
        _, free_form = case.objective.linearise(case.Z, geometry)
    n, r = case.Z.shape
    v = points(n, r, 3)
    torch.testing.assert_close(
        free_form.product(v),
        (N @ v.reshape(-1)).reshape(n, r),
        rtol=0,
        atol=10 * case.tolerance * size * float(v.norm()),
    )
    torch.testing.assert_close(free_form.gradient, dense.gradient, rtol=1e-6, atol=1e-9)
    free_form = replace(free_form, tolerance=1e-12)
    if float(N.diagonal().mean()) > 1e-6:
        loaded = N + damping * N.diagonal().mean() * torch.eye(n * r, dtype=F64)
        twin = -torch.linalg.solve(loaded, g.reshape(-1)).reshape(n, r)
        bound = 1e-6 * (float(twin.norm()) + 1e-6)
        torch.testing.assert_close(dense.step(damping), twin, rtol=0, atol=bound)
        ratio = float(
            N.diagonal().mean() / free_form.scales.mean()
        )  # the two scale λ by their own mean diagonals
        torch.testing.assert_close(free_form.step(damping * ratio), twin, rtol=0, atol=bound)


def test_a_matrix_free_step_is_as_exact_as_the_residual_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    case, geometry = Case(3, 4, 3, 2, Endpoints.BOTH, "deep"), Sphere(2.0)
    _, dense = case.objective.linearise(case.Z, geometry)
    monkeypatch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
    fit, free = case.objective.linearise(case.Z, geometry)
    assert isinstance(free, normal_file.ImplicitNormal)
    assert free.tolerance == normal_file.forcing(fit.loss)
    N = dense.N + 0.1 * float(free.scales.mean()) * torch.eye(12, dtype=F64)
    rest = (N @ free.step(0.1).reshape(-1)).reshape(4, 3) + dense.gradient
    assert float(rest.norm()) <= (free.tolerance + 1e-9) * float(dense.gradient.norm())


def test_points_that_move_together_need_the_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(3, 4, 3, 2, Endpoints.BOTH, "deep")
    monkeypatch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
    _, normal = case.objective.linearise(case.Z, SharedSubspace(Sphere(2.0), 2))
    assert isinstance(normal, normal_file.DenseNormal)
    assert normal.frame is not None


def test_steps_become_exact_as_the_residual_vanishes() -> None:
    exactness = [normal_file.forcing(torch.tensor(loss)) for loss in (1.0, 1e-2, 1e-8, 1e-40)]
    assert exactness == pytest.approx([0.3, 0.3, 1e-2, 1e-4])


def test_the_variances_are_the_blocks_of_the_inverse() -> None:
    case = Case(3, 4, 3, 2, Endpoints.BOTH, "deep")
    for geometry in (Sphere(2.0), FreeRadius(2.0)):
        _, normal = case.objective.linearise(case.Z, geometry)
        twin = (
            torch.linalg.pinv(normal.N, hermitian=True, rtol=1e-10).diagonal().reshape(4, 3).sum(1)
        )
        torch.testing.assert_close(normal.variances(), twin, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("n", "r", "loose"), [(40, 30, 1), (300, 30, 1), (100, 100, 3), (30, 30, 0)]
)
def test_variances_without_the_matrix_tell_loose_points_from_the_others(
    n: int, r: int, loose: int
) -> None:
    # N = diag + UUᵀ couples all points, and by Woodbury its inverse is known. One direction of each
    # loose point is not held.
    U = torch.randn(n * r, 5, generator=generator(n), dtype=F64) / (n * r) ** 0.5
    diagonal = 0.5 + torch.rand(n * r, generator=generator(r), dtype=F64)
    diagonal[torch.arange(loose) * r] = 1e-7
    U[torch.arange(loose) * r] *= 1e-3
    V = U / diagonal[:, None]
    core = torch.linalg.inv(torch.eye(5, dtype=F64) + U.T @ V)
    exact = (1 / diagonal - torch.einsum("ia,ab,ib->i", V, core, V)).reshape(n, r).sum(1)

    def apply(v: Tensor) -> Tensor:
        flat = v.reshape(-1)
        return (diagonal * flat + U @ (U.T @ flat)).reshape(n, r)

    zero = torch.zeros(n, r, dtype=F64)
    found = normal_file.ImplicitNormal(
        apply, diagonal.reshape(n, r).mean(1), zero, zero, 0.1
    ).variances()
    assert (found[:loose] > 100 * found.median()).all()
    torch.testing.assert_close(found, exact, rtol=0.5, atol=0)


def test_at_the_data_the_normal_matrix_is_half_the_hessian_of_the_loss() -> None:
    """Where the residual vanishes, Kaufman's approximation is exact.

    JᵀJ is then the curvature of the loss itself.
    """
    victim, data = interpolated(n=3, d=4, r=4, p=80, activation="tanh", bias=True)
    objective = last_layer(victim)
    D = victim.delta(["theta"])["theta"]
    D = D / D.norm()

    def loss(X: Tensor) -> Tensor:
        return (D @ projector(victim.network.features(victim.theta_f, X))).square().sum()

    hessian = torch.autograd.functional.hessian(loss, data.inputs).reshape(12, 12)
    _, normal = objective.linearise(data.inputs, FreeRadius(2.0))
    torch.testing.assert_close(
        2 * normal.N, hessian, rtol=1e-5, atol=1e-8 * float(hessian.abs().max())
    )


def test_parity_is_told_apart() -> None:
    def of(network: MLP) -> Parity:
        victim = perturbed(network, 0)
        return parity(victim.network, victim.theta_f)

    assert of(mlp(4, 20, 1)) is Parity.LINEAR
    assert of(mlp(4, 20, 1, activation="leaky-relu")) is Parity.LINEAR
    assert of(random_features(4, 20, 1)) is Parity.LINEAR
    assert of(mlp(4, 20, 1, activation="tanh")) is Parity.ODD
    assert of(mlp(4, 20, 1, depth=3)) is Parity.NONE
    assert of(mlp(4, 20, 1, bias=True)) is Parity.NONE
    with pytest.raises(OptionError, match="linear odd part"):
        last_layer(perturbed(mlp(4, 20, 1, depth=3), 0), lifted=True)


@given(seed=st.integers(0, 99), flips=st.lists(st.booleans(), min_size=4, max_size=4))
def test_a_lifted_span_does_not_see_signs(seed: int, flips: list[bool]) -> None:
    victim = perturbed(mlp(3, 60, 2), seed)
    Z = points(4, 3, seed)
    signs = torch.tensor([-1.0 if flip else 1.0 for flip in flips], dtype=F64)[:, None]
    objective = last_layer(victim, Endpoints.BOTH, lifted=True)
    torch.testing.assert_close(
        objective.fit(Z).loss, objective.fit(signs * Z).loss, rtol=1e-6, atol=1e-12
    )
    # The lifted objective explains whatever the plain one does.
    assert objective.fit(Z).loss <= last_layer(victim, Endpoints.BOTH).fit(Z).loss + 1e-12


def test_features_that_did_not_move_have_one_end() -> None:
    victim, _ = interpolated()
    assert not Evidence.change(victim).moving
    with pytest.raises(OptionError, match="use final"):
        last_layer(victim, Endpoints.BOTH)
    assert Evidence.change(perturbed(mlp(3, 20, 1), 0)).moving


def test_the_last_layer_has_no_third_end() -> None:
    with pytest.raises(OptionError, match="use both"):
        last_layer(perturbed(mlp(3, 20, 2), 0), Endpoints.PATH)
