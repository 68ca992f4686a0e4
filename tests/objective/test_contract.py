"""One suite for all objectives: each against a slow float64 twin written from the definition.

A twin knows nothing of layers. It forms G by plain backpropagation at every node of every piece of
evidence, projects by a singular value decomposition, and finds costs and gains by leaving points
out and adding points. The objectives under test are single ones and weighted sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from cases import CPU, F64, Largest, evidence, generator, interpolated, perturbed
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from recollect.errors import OptionError
from recollect.geometry import FreeRadius, Geometry, Slice, Sphere
from recollect.objective import normal as normal_file
from recollect.objective.base import ExactObjective, GramObjective, Objective
from recollect.objective.dense import DenseObjective
from recollect.objective.endpoints import Endpoints
from recollect.objective.evidence import Evidence
from recollect.objective.gram import Gram
from recollect.objective.implicit import ImplicitObjective
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.objective.normal import DenseNormal, ImplicitNormal
from recollect.objective.sum import SumObjective
from recollect.victim.mlp import MLP, initial_theta, mlp, random_features
from recollect.victim.victim import Victim, select

# What is tested: terms w·L(X), each with its own evidence.


@dataclass(frozen=True)
class Term:
    """w·L(X) for one piece of evidence: all that the objective and its twin need to know."""

    kind: str
    parameters: str
    evidence: Evidence
    weight: float = 1.0
    lifted: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        return select(self.evidence.network, self.parameters)

    def objective(self) -> Objective:
        known, names = self.evidence, self.names
        if self.kind == "last layer":
            return LastLayerObjective(known, device=CPU, dtype=F64, lifted=self.lifted)
        if self.kind == "layerwise":
            return LayerwiseObjective(known, names, device=CPU, dtype=F64, lifted=self.lifted)
        if self.kind == "dense":
            return DenseObjective(known, names, device=CPU, dtype=F64)
        return ImplicitObjective(known, names, device=CPU, dtype=F64, tolerance=1e-13)


Form = tuple[tuple[str, str], ...]
"""The kind and the parameters of each term."""

EXACT: list[Form] = [
    (("last layer", "last"),),
    (("layerwise", "last"),),
    (("layerwise", "all"),),
    (("last layer", "last"), ("last layer", "last")),
    (("last layer", "last"), ("layerwise", "all")),
    (("layerwise", "all"), ("layerwise", "all")),
]
FORMS: list[Form] = [
    (("dense", "last"),),
    (("dense", "all"),),
    (("implicit", "last"),),
    (("implicit", "all"),),
    *EXACT,
]
WEIGHTS = (0.7, 1.6)


def in_words(form: Form) -> str:
    return " + ".join(f"{kind} of {parameters}" for kind, parameters in form)


every_form = pytest.mark.parametrize("form", FORMS, ids=in_words)
every_exact_form = pytest.mark.parametrize("form", EXACT, ids=in_words)


def terms_of(form: Form, pieces: Sequence[Evidence]) -> list[Term]:
    """One term for each part of the form, each with the next piece of evidence."""
    weights = (1.0,) if len(form) == 1 else WEIGHTS
    return [
        Term(kind, parameters, piece, weight)
        for (kind, parameters), piece, weight in zip(form, pieces, weights, strict=False)
    ]


def objective_of(terms: Sequence[Term]) -> Objective:
    parts = [term.objective() for term in terms]
    if len(parts) == 1:
        return parts[0]
    return SumObjective(parts, [term.weight for term in terms])  # type: ignore[arg-type]


def exact_objective_of(terms: Sequence[Term]) -> ExactObjective:
    objective = objective_of(terms)
    assert isinstance(objective, ExactObjective)
    return objective


# The twin.


def gradients(term: Term, X: Tensor) -> Tensor:
    """G by plain backpropagation, one row for each θ_e, point and output; differentiable in X.

    Where signs are lifted, these are the gradients of the even part of f at the points, followed by
    those of its odd part at the unit vectors.
    """
    if not term.lifted:
        return _rows(term, X, lambda plus, minus: plus)
    even = _rows(term, X, lambda plus, minus: (plus + minus) / 2)
    unit = torch.eye(term.evidence.d, dtype=F64)
    return torch.cat([even, _rows(term, unit, lambda plus, minus: (plus - minus) / 2)])


def _rows(term: Term, X: Tensor, part: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    network, names, rows = term.evidence.network, term.names, []
    for node in term.evidence.thetas:
        theta = {name: value.clone().requires_grad_(name in names) for name, value in node.items()}
        for x in X:
            for output in part(network(theta, x[None])[0], network(theta, -x[None])[0]):
                parts = torch.autograd.grad(
                    output, [theta[name] for name in names], create_graph=True
                )
                rows.append(torch.cat([part.reshape(-1) for part in parts]))
    if not rows:
        return torch.zeros(0, len(target(term)), dtype=F64)
    return torch.stack(rows)


def target(term: Term) -> Tensor:
    """Δ as one vector."""
    return torch.cat([term.evidence.target[name].reshape(-1) for name in term.names])


def orthogonal(G: Tensor, V: Tensor) -> Tensor:
    """P⊥V, the part of the columns of V that is orthogonal to the rows of G, by an SVD."""
    return V - G.T @ torch.linalg.lstsq(G.T, V, driver="gelsd").solution if len(G) else V


def twin_loss(terms: Sequence[Term], X: Tensor) -> Tensor:
    """Σ w ‖P⊥Δ‖²/‖Δ‖²."""
    losses = []
    for term in terms:
        delta = target(term)[:, None]
        R = orthogonal(gradients(term, X).detach(), delta)
        losses.append(term.weight * R.square().sum() / delta.square().sum())
    return torch.stack(losses).sum()


def coefficients(term: Term, X: Tensor) -> tuple[Tensor, Tensor]:
    """α of the rows that points own (θ_e × points × outputs), and of the other rows."""
    G = gradients(term, X).detach()
    alpha = torch.linalg.lstsq(G.T, target(term)[:, None], driver="gelsd").solution[:, 0]
    shape = (len(term.evidence.thetas), len(X), term.evidence.c)
    own = torch.Size(shape).numel()
    return alpha[:own].reshape(shape), alpha[own:]


def twin_alpha(terms: Sequence[Term], X: Tensor) -> Tensor:
    """α summed over all θ_e, with the outputs of all terms side by side."""
    return torch.cat([coefficients(term, X)[0].sum(0) for term in terms], dim=1)


def twin_slope(terms: Sequence[Term], X: Tensor) -> Tensor:
    """The gradient of the loss, by automatic differentiation of the projection itself."""
    X, loss = X.clone().requires_grad_(), torch.zeros((), dtype=F64)
    for term in terms:
        G, delta = gradients(term, X), target(term)
        R = delta - G.T @ torch.linalg.solve(G @ G.T, G @ delta)
        loss = loss + term.weight * R.square().sum() / delta.square().sum()
    (slope,) = torch.autograd.grad(loss, X)
    return slope


def combination(term: Term, X: Tensor, alpha: Tensor) -> Tensor:
    """Σ_e Σ_ik α_ik^e ∇f_k(x_i; θ_e) of the rows that points own, as one vector."""
    network, names, total = term.evidence.network, term.names, torch.zeros((), dtype=F64)
    for node, own in zip(term.evidence.thetas, alpha, strict=True):

        def weighted(chosen: dict[str, Tensor], node: object = node, own: Tensor = own) -> Tensor:
            theta = {**node, **chosen}  # type: ignore[dict-item]
            outputs = network(theta, X)
            if term.lifted:
                outputs = (outputs + network(theta, -X)) / 2
            return (own * outputs).sum()

        parts = torch.func.grad(weighted)({name: node[name] for name in names})
        total = total + torch.cat([parts[name].reshape(-1) for name in names])
    return total


def twin_normal(terms: Sequence[Term], Z: Tensor, geometry: Geometry) -> tuple[Tensor, Tensor]:
    """JᵀJ and g of Kaufman's linearisation J = −P⊥ ∂G·α of R = P⊥Δ, by columns."""
    n, r = Z.shape
    N, g = torch.zeros(n * r, n * r, dtype=F64), torch.zeros(n * r, dtype=F64)
    for term in terms:
        G, delta = gradients(term, Z).detach(), target(term)
        alpha = coefficients(term, Z)[0]
        moved = torch.func.jacfwd(lambda Z, term=term, alpha=alpha: combination(term, Z, alpha))(Z)
        moved = geometry.tangent(Z, moved).reshape(len(delta), n * r)
        both = orthogonal(G, torch.cat([-moved, delta[:, None]], dim=1) / delta.norm())
        J, R = both[:, :-1], both[:, -1]
        N, g = N + term.weight * J.T @ J, g + term.weight * J.T @ R
    return N, g.reshape(n, r)


def twin_signs(terms: Sequence[Term], Z: Tensor) -> tuple[Tensor, Tensor]:
    """V and v, one above the other for all lifted terms, scaled by √w/‖Δ‖.

    Column i of V is what the odd part of f contributes at z_i, and v is the free linear part. The
    signs s are right where Vs = v.
    """
    systems = []
    for term in terms:
        if not term.lifted:
            continue
        odd = _rows(term, Z, lambda plus, minus: (plus - minus) / 2).detach()
        own, free = coefficients(term, Z)
        columns = (own.reshape(-1, 1) * odd).reshape(*own.shape, -1).sum((0, 2)).T
        fixed = gradients(term, Z).detach()[own.numel() :]
        scale = term.weight**0.5 / target(term).norm()
        systems.append((scale * columns, scale * (fixed.T @ free)))
    return torch.cat([V for V, _ in systems]), torch.cat([v for _, v in systems])


def precision(terms: Sequence[Term], X: Tensor) -> float:
    """The relative error that a solve with these Gram matrices allows.

    Draws for which it allows nothing are thrown away.
    """
    conditions = []
    for term in terms:
        G = gradients(term, X).detach()
        conditions.append(float(torch.linalg.cond(G @ G.T)))
    assume(max(conditions) < 1e7)
    return 1e-13 * max(*conditions, 1e2)


# Drawn networks and evidence.


def points(n: int, d: int, seed: int) -> Tensor:
    return torch.randn(n, d, generator=generator(seed), dtype=F64)


def another(network: MLP, seed: int, *, nodes: int = 1) -> Evidence:
    """A random vector, with gradients at weights that have nothing to do with those of a victim."""
    drawn = generator(seed)
    theta = tuple(
        initial_theta(network, init="fan-in", generator=drawn, dtype=F64) for _ in range(nodes)
    )
    vector = {
        name: torch.randn(theta[0][name].shape, generator=drawn, dtype=F64)
        for name in network.trained
    }
    return Evidence("a random vector", network, vector, theta)


@dataclass(frozen=True)
class Shape:
    """A network and its evidence: drawn as plain numbers, built inside the test."""

    d: int
    c: int
    n: int
    spare: int
    depth: int
    bias: bool
    activation: str
    seed: int

    def network(self) -> MLP:
        sizes = (self.d, self.n + self.spare, self.c)
        if self.depth == 1:
            return random_features(*sizes, bias=self.bias, activation=self.activation)
        return mlp(*sizes, depth=self.depth, bias=self.bias, activation=self.activation)

    def build(self, form: Form) -> tuple[list[Term], Tensor]:
        network = self.network()
        known = evidence(perturbed(network, self.seed))
        terms = terms_of(form, [known, another(network, self.seed + 50)])
        return terms, points(self.n, self.d, self.seed + 3)


shapes = st.builds(
    Shape,
    d=st.integers(2, 6),
    c=st.integers(1, 3),
    n=st.integers(1, 3),
    spare=st.integers(12, 30),
    depth=st.integers(1, 4),
    bias=st.booleans(),
    activation=st.sampled_from(["relu", "tanh", "gelu", "softplus", "sine"]),
    seed=st.integers(0, 2**16),
)


@every_form
@given(shape=shapes)
def test_values_and_gradients_match_the_definition(form: Form, shape: Shape) -> None:
    terms, X = shape.build(form)
    same_fit(terms, X, precision(terms, X))


def same_fit(terms: Sequence[Term], X: Tensor, tolerance: float, least: float = 1e-12) -> None:
    fit, slope = objective_of(terms).fit(X), twin_slope(terms, X)
    assert fit.gradient is not None
    close(fit.loss, twin_loss(terms, X), tolerance, 1.0)
    close(fit.alpha, twin_alpha(terms, X), tolerance)
    close(fit.gradient, slope, tolerance, float(slope.abs().max()) + least)


def close(ours: Tensor, theirs: Tensor, tolerance: float, size: float | None = None) -> None:
    """Equal up to the tolerance, relative to the size given or to the largest entry."""
    size = float(theirs.abs().max()) + 1e-12 if size is None else size
    torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * size)


@every_form
@given(shape=shapes, seed=st.integers(0, 99))
def test_permuting_the_points_permutes_the_answer(form: Form, shape: Shape, seed: int) -> None:
    terms, X = shape.build(form)
    tolerance = precision(terms, X)
    order = torch.randperm(len(X), generator=generator(seed))
    objective = objective_of(terms)
    a, b = objective.fit(X), objective.fit(X[order])
    assert a.gradient is not None
    assert b.gradient is not None
    close(a.loss, b.loss, tolerance, 1.0)
    close(b.gradient, a.gradient[order], tolerance)


@every_form
@given(shape=shapes, factor=st.floats(0.01, 100))
def test_scaling_the_change_scales_alpha_and_leaves_the_loss(
    form: Form, shape: Shape, factor: float
) -> None:
    terms, X = shape.build(form)
    tolerance = precision(terms, X)
    a, b = (objective_of(some).fit(X) for some in (terms, [scaled(term, factor) for term in terms]))
    tolerance *= max(1, 1 / factor)  # a short Δθ is a difference of nearly equal weights
    close(a.loss, b.loss, tolerance, 1.0)
    close(b.alpha, factor * a.alpha, tolerance)


def scaled(term: Term, factor: float) -> Term:
    """The same gradients and `factor` times the target, so that ‖P⊥Δ‖² is factor² as large."""
    known = term.evidence
    if len(known.nodes) == 1:
        longer = {name: factor * value for name, value in known.target.items()}
        return replace(term, evidence=replace(known, target=longer))
    after, before = known.nodes  # θf stays and θ0 moves
    moved = {name: value - factor * (value - before[name]) for name, value in after.items()}
    return replace(term, evidence=evidence(Victim(known.network, moved, after)))


@every_form
@given(shape=shapes, seed=st.integers(0, 99))
def test_a_restriction_is_the_lift_to_the_subspace(form: Form, shape: Shape, seed: int) -> None:
    """L(Z; restricted to U) = L(ZUᵀ), with gradient (∇L)U.

    For a square U this is a rotation of the full space.
    """
    terms, X = shape.build(form)
    r = 2 + seed % (shape.d - 1)
    U = torch.linalg.qr(points(shape.d, r, seed)).Q
    Z = points(len(X), r, seed + 1)
    tolerance = precision(terms, Z @ U.T)
    restricted = [replace(term, evidence=term.evidence.restrict(U)) for term in terms]
    low, high = objective_of(restricted).fit(Z), objective_of(terms).fit(Z @ U.T)
    assert low.gradient is not None
    assert high.gradient is not None
    close(low.loss, high.loss, tolerance, 1.0)
    size = float(high.gradient.abs().max() + 1e-12)
    close(low.gradient, high.gradient @ U, tolerance, size)


# The exact contract: normal equations, costs, gains and signs.

NETWORKS = {
    "random features": {"depth": 1, "bias": False, "activation": "relu"},
    "two layers of ReLU": {"depth": 2, "bias": False, "activation": "relu"},
    "leaky ReLU": {"depth": 2, "bias": False, "activation": "leaky-relu"},
    "two layers with biases": {"depth": 2, "bias": True, "activation": "gelu"},
    "three layers": {"depth": 3, "bias": False, "activation": "tanh"},
    "three layers with biases": {"depth": 3, "bias": True, "activation": "relu"},
}
SLICED = {"two layers with biases", "three layers with biases"}
"""Networks whose first bias may become the weight of a constant input."""
LIFTABLE = ["random features", "two layers of ReLU", "leaky ReLU"]
ENDPOINTS = [Endpoints.FINAL, Endpoints.INITIAL, Endpoints.BOTH]


@dataclass(frozen=True)
class ExactShape:
    """Terms with gradients at one or both endpoints, with signs lifted or not."""

    network: str
    d: int
    c: int
    n: int
    spare: int
    endpoints: tuple[Endpoints, Endpoints]
    lifted: tuple[bool, bool]
    free: bool
    seed: int

    @property
    def sliced(self) -> bool:
        return self.network in SLICED and not self.free

    def build(self, form: Form) -> tuple[list[Term], Tensor]:
        d = self.d - self.sliced
        drawn = Shape(d, self.c, self.n, self.spare, seed=self.seed, **NETWORKS[self.network])  # type: ignore[arg-type]
        network = drawn.network()
        pieces = [
            Evidence.change(perturbed(network, self.seed)),
            # A gradient that somebody shares has one node; a second victim has two.
            another(network, self.seed + 50, nodes=1 + (self.endpoints[1] is not Endpoints.FINAL)),
        ]
        terms = []
        for term, endpoints, lifted in zip(
            terms_of(form, pieces), self.endpoints, self.lifted, strict=False
        ):
            still = endpoints.several and not term.evidence.moving
            known = term.evidence if still else term.evidence.at(endpoints)
            known = known.augmented(1.5) if self.sliced else known
            terms.append(replace(term, evidence=known, lifted=lifted and self.network in LIFTABLE))
        return terms, self.geometry.project(points(self.n, self.d, self.seed + 3))

    @property
    def geometry(self) -> Geometry:
        if self.sliced:
            return Slice(torch.arange(1.0, self.d + 1, dtype=F64), 1.5)
        return FreeRadius(2.0) if self.free else Sphere(2.0)


exact_drawing = {
    "d": st.integers(2, 4),
    "c": st.integers(1, 2),
    "n": st.integers(1, 3),
    "spare": st.integers(20, 30),
    "endpoints": st.tuples(st.sampled_from(ENDPOINTS), st.sampled_from(ENDPOINTS)),
    "lifted": st.tuples(st.booleans(), st.booleans()),
    "free": st.booleans(),
    "seed": st.integers(0, 2**16),
}
exact_shapes = st.builds(ExactShape, network=st.sampled_from(list(NETWORKS)), **exact_drawing)
lifted_shapes = st.builds(
    ExactShape,
    network=st.sampled_from(LIFTABLE),
    **{**exact_drawing, "lifted": st.tuples(st.just(True), st.booleans())},
)


@every_exact_form
@given(shape=exact_shapes)
def test_endpoints_and_lifting_match_the_definition(form: Form, shape: ExactShape) -> None:
    terms, Z = shape.build(form)
    # Where moving a point along the sphere changes nothing, the gradient vanishes up to rounding.
    same_fit(terms, Z, 10 * precision(terms, Z), least=1e-3)


@pytest.mark.parametrize("form", [form for form in EXACT if len(form) == 1], ids=in_words)
@given(shape=exact_shapes)
def test_the_remainder_is_what_the_gradients_leave(form: Form, shape: ExactShape) -> None:
    (term,), Z = shape.build(form)
    objective = term.objective()
    assert isinstance(objective, GramObjective)
    delta = target(term)
    R = orthogonal(gradients(term, Z).detach(), delta[:, None])[:, 0]
    parts = objective.remainder(Z)
    ours = torch.cat([parts[name].reshape(-1) for name in term.names])
    close(ours, R, 10 * precision([term], Z), float(delta.norm()))


@given(shape=exact_shapes)
def test_a_balanced_remainder_is_orthogonal_in_balanced_units(shape: ExactShape) -> None:
    (term,), Z = shape.build((("layerwise", "all"),))
    objective = LayerwiseObjective(
        term.evidence, term.names, device=CPU, dtype=F64, lifted=term.lifted, balanced=True
    )
    parts, G = objective.remainder(Z), gradients(term, Z).detach()
    lengths = {}
    for layer in objective.layers:
        names = [name for name in layer.names if name in term.names]
        length = math.sqrt(sum(float(term.evidence.target[k].square().sum()) for k in names))
        lengths |= dict.fromkeys(names, length)
    weights = torch.cat(
        [torch.full((parts[name].numel(),), 1 / lengths[name], dtype=F64) for name in term.names]
    )
    R = torch.cat([parts[name].reshape(-1) for name in term.names])
    twin = orthogonal(G * weights, (target(term) * weights)[:, None])[:, 0] / weights
    close(R, twin, 100 * precision([term], Z), float(target(term).norm()))


@every_exact_form
@given(shape=exact_shapes)
def test_equations_and_unknowns_are_counted(form: Form, shape: ExactShape) -> None:
    terms, Z = shape.build(form)
    objective = exact_objective_of(terms)
    rows = sum(len(gradients(term, Z)) for term in terms)
    assert objective.equations == sum(len(target(term)) for term in terms)
    coordinates = shape.n * shape.geometry.free_dimensions(shape.d)
    assert objective.unknowns(shape.n, shape.d, shape.geometry) == coordinates + rows
    assert objective.r == shape.d
    assert objective.lifted == any(term.lifted for term in terms)
    assert objective.endpoints is terms[0].evidence.endpoints


@every_exact_form
@given(shape=exact_shapes)
def test_what_is_kept_of_the_latest_points_is_used_for_them_alone(
    form: Form, shape: ExactShape
) -> None:
    terms, Z = shape.build(form)
    geometry, jitter = shape.geometry, torch.tensor(1e-6, dtype=F64)
    other = geometry.project(points(*Z.shape, 7))

    def alike(kept: ExactObjective, at: Tensor, loading: Tensor | None) -> None:
        fresh = exact_objective_of(terms)
        (fit, normal), (twin, its) = (
            objective.linearise(at, geometry, loading) for objective in (kept, fresh)
        )
        for ours, theirs in (
            (fit.loss, twin.loss),
            (fit.alpha, twin.alpha),
            (normal.gradient, its.gradient),
            (kept.costs(at, loading), fresh.costs(at, loading)),
        ):
            torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)

    objective = exact_objective_of(terms)
    moving = Z.clone()
    objective.fit(moving, gradient=False)
    alike(objective, moving, None)
    alike(objective, moving, jitter)
    objective.fit(other, gradient=False, jitter=jitter)
    alike(objective, Z, jitter)
    # In place: what was computed belongs to the points that were.
    objective.fit(moving, gradient=False)
    moving.copy_(other)
    alike(objective, Z, None)
    alike(objective, moving, None)


@every_exact_form
@given(shape=exact_shapes)
def test_the_normal_equations_match_the_definition(form: Form, shape: ExactShape) -> None:
    terms, Z = shape.build(form)
    tolerance, geometry = 100 * precision(terms, Z), shape.geometry
    N, g = twin_normal(terms, Z, geometry)
    objective = exact_objective_of(terms)
    fit, dense = objective.linearise(Z, geometry)
    assert isinstance(dense, DenseNormal)
    assert objective.dense(len(Z))
    close(fit.loss, twin_loss(terms, Z), tolerance, 1.0)
    close(fit.alpha, twin_alpha(terms, Z), tolerance)
    # Where a move changes nothing, JᵀJ and g vanish up to rounding.
    size, length = float(N.abs().max()) + 1e-3, float(g.abs().max()) + 1e-4
    close(dense.N, N, tolerance, size)
    close(dense.gradient, g, tolerance, length)
    close(dense.gradient, geometry.tangent(Z, twin_slope(terms, Z)) / 2, tolerance, length)
    v = points(*Z.shape, 4)
    moved = (N @ v.reshape(-1)).reshape(Z.shape)
    close(dense.product(v), moved, tolerance, size * float(v.norm()))
    close(dense.scales, N.diagonal().reshape(Z.shape).mean(1), tolerance, size)
    # The same equations without the matrix.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_file, "DENSE_UNKNOWNS", 0)
        free, implicit = objective.linearise(Z, geometry)
        assert not objective.dense(len(Z))
    assert isinstance(implicit, ImplicitNormal)
    close(free.loss, fit.loss, tolerance, 1.0)
    close(implicit.product(v), moved, tolerance, size * float(v.norm()))
    close(implicit.gradient, g, tolerance, length)
    assert implicit.tolerance == normal_file.forcing(free.loss)
    assert implicit.scales.shape == (len(Z),)
    assert implicit.matrix is None
    # Steps by products, and variances from the matrix.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(normal_file, "STEPS_BY_PRODUCTS", 0)
        assert objective.dense(len(Z))
        _, deferred = objective.linearise(Z, geometry)
    assert isinstance(deferred, ImplicitNormal)
    close(deferred.product(v), moved, tolerance, size * float(v.norm()))
    torch.testing.assert_close(deferred.variances(), dense.variances())


@every_exact_form
@given(shape=exact_shapes)
def test_a_cost_is_what_leaving_the_point_out_adds_to_the_loss(
    form: Form, shape: ExactShape
) -> None:
    terms, Z = shape.build(form)
    precision(terms, Z)
    costs, loss = exact_objective_of(terms).costs(Z), twin_loss(terms, Z)
    for i, cost in enumerate(costs):
        without = twin_loss(terms, torch.cat([Z[:i], Z[i + 1 :]]))
        assert abs(float(cost) - float(without - loss)) < 1e-7


@every_exact_form
@given(shape=exact_shapes)
def test_a_gain_is_what_adding_the_point_takes_off_the_loss(form: Form, shape: ExactShape) -> None:
    terms, Z = shape.build(form)
    new = shape.geometry.project(points(2, shape.d, shape.seed + 8)).requires_grad_()
    gains = exact_objective_of(terms).gains(Z)(new)
    (slopes,) = torch.autograd.grad(gains.sum(), new)
    loss = twin_loss(terms, Z)
    for z, gain, slope in zip(new.detach(), gains, slopes, strict=True):
        more = torch.cat([Z, z[None]])
        precision(terms, more)
        assert abs(float(gain.detach()) - float(loss - twin_loss(terms, more))) < 1e-7
        close(slope, -twin_slope(terms, more)[-1], 1e-6, 1.0)


@every_exact_form
@given(shape=lifted_shapes)
def test_the_sign_system_compares_linear_parts(form: Form, shape: ExactShape) -> None:
    """‖Ms − t‖ is the distance between the linear part that signs s make and the free one."""
    terms, Z = shape.build(form)
    tolerance = 100 * precision(terms, Z)
    M, t = exact_objective_of(terms).sign_system(Z)
    V, v = twin_signs(terms, Z)
    ours, theirs = torch.cat([M, t[:, None]], dim=1), torch.cat([V, v[:, None]], dim=1)
    close(ours.T @ ours, theirs.T @ theirs, tolerance)


@every_exact_form
def test_without_lifting_there_are_no_signs_to_find(form: Form) -> None:
    terms, Z = Shape(3, 1, 2, 20, 2, False, "relu", 0).build(form)
    with pytest.raises(ValueError, match="lifted"):
        exact_objective_of(terms).sign_system(Z)


@pytest.mark.parametrize("kind", ["last layer", "dense", "implicit", "layerwise", "sum"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_loss_is_zero_at_the_true_data_of_random_features(
    kind: str, bias: bool, activation: str
) -> None:
    victim, data = interpolated(bias=bias, activation=activation)
    terms = [Term("last layer" if kind == "sum" else kind, "last", evidence(victim))]
    if kind == "sum":  # a second victim that has learned the same data
        second, _ = interpolated(bias=bias, activation=activation, features=8)
        terms.append(Term("layerwise", "last", evidence(second)))
    objective = objective_of(terms)
    assert float(objective.fit(data.inputs).loss) < 1e-20
    other = torch.randn(data.inputs.shape, generator=generator(1), dtype=F64)
    assert float(objective.fit(other).loss) > 1e-2


def test_the_residual_form_keeps_digits_that_the_papers_difference_loses() -> None:
    victim, data = interpolated(n=40, d=20, r=10, p=1000)
    X = data.inputs.float()
    fit = LastLayerObjective(evidence(victim), device=CPU, dtype=torch.float32).fit(X)
    assert float(fit.loss) < 1e-10
    H = victim.network.features({name: value.float() for name, value in victim.theta_f.items()}, X)
    delta = victim.delta(["theta"])["theta"].float()
    difference = 1 - ((delta @ H.T) @ fit.alpha).sum() / delta.square().sum()
    assert abs(float(difference)) > 100 * float(fit.loss)


def test_the_last_layer_never_holds_the_dense_jacobian() -> None:
    n, c, p = 20, 10, 300
    known = evidence(perturbed(mlp(6, p, c), 0))
    objective = LastLayerObjective(known, device=CPU, dtype=F64)
    X = torch.randn(n, 6, generator=generator(0), dtype=F64)
    with Largest() as largest:
        objective.fit(X)
    assert 0 < largest.size <= n * p
    with Largest() as largest:
        DenseObjective(known, select(known.network, "last"), device=CPU, dtype=F64).fit(X)
    # This twin does hold the Jacobian, so the measure above can fail.
    assert largest.size >= (n * c) * (c * p)


def test_cg_says_how_many_iterations_it_took() -> None:
    victim = perturbed(mlp(5, 40, 1), 0)
    objective = ImplicitObjective(evidence(victim), victim.select("all"), device=CPU, dtype=F64)
    X = torch.randn(6, 5, generator=generator(0), dtype=F64)
    objective.fit(X)
    assert objective.iterations[0] > 1
    assert "conjugate gradients" in objective.notes[0]
    twice = torch.cat([X, X])  # a singular Gram: CG still finds the same residual
    torch.testing.assert_close(
        objective.fit(twice).loss, objective.fit(X).loss, rtol=1e-6, atol=1e-9
    )


@pytest.mark.parametrize("kind", ["dense", "implicit"])
def test_an_objective_with_one_node_takes_the_right_one_or_refuses(kind: str) -> None:
    known, X = Evidence.change(perturbed(mlp(4, 30, 2), 0)), points(2, 4, 1)
    for endpoints in (Endpoints.FINAL, Endpoints.INITIAL):
        term = Term(kind, "all", known.at(endpoints))
        close(term.objective().fit(X).loss, twin_loss([term], X), 1e-9)
    with pytest.raises(OptionError, match="use final"):
        Term(kind, "all", known.at(Endpoints.BOTH)).objective()


def test_a_singular_gram_is_nan_and_jitter_mends_it() -> None:
    objective = LastLayerObjective(evidence(perturbed(mlp(5, 40, 1), 0)), device=CPU, dtype=F64)
    x = torch.randn(1, 5, generator=generator(0), dtype=F64)
    alone = objective.fit(x).loss
    # Whether two equal rows can be factored depends on rounding; the result is their loss or NaN.
    rounded = objective.fit(torch.cat([x, x, 0 * x])).loss
    assert torch.isnan(rounded) or float(rounded) == pytest.approx(float(alone), rel=1e-6)
    mended = objective.fit(torch.cat([x, x]), jitter=torch.tensor(1e-8, dtype=F64))
    torch.testing.assert_close(mended.loss, alone, rtol=1e-6, atol=1e-9)
    singular, one = torch.ones(2, 2, dtype=F64), torch.ones(2, 1, dtype=F64)
    assert torch.isnan(Gram(singular).solve(one)).all()
    torch.testing.assert_close(Gram(singular, torch.tensor(1e-8, dtype=F64)).solve(one), one / 2)


def test_a_row_of_zeros_changes_nothing() -> None:
    A = torch.randn(4, 9, generator=generator(0), dtype=F64)
    B = torch.cat([A[:2], torch.zeros(1, 9, dtype=F64), A[2:]])
    t = torch.randn(9, 2, generator=generator(1), dtype=F64)
    full, holed = Gram(A @ A.T).solve(A @ t), Gram(B @ B.T).solve(B @ t)
    torch.testing.assert_close(holed[[0, 1, 3, 4]], full)
    assert float(holed[2].abs().max()) == 0
    stacked = Gram(torch.stack([B @ B.T, 4 * B @ B.T])).solve(torch.stack([B @ t, B @ t]))
    torch.testing.assert_close(stacked, torch.stack([holed, holed / 4]))
