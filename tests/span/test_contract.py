"""One suite over all spans: each against a slow float64 twin written from the definition, values and gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from cases import CPU, F64, Largest, generator, interpolated, perturbed
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from recollect.span import DenseSpan, ImplicitSpan, LastLayerSpan, LayerwiseSpan, Span
from recollect.span.gram import Gram
from recollect.victim import Victim, mlp, random_features

Make = Callable[[Victim, str], Span]


def last_layer(victim: Victim, parameters: str) -> Span:
    return LastLayerSpan(victim, device=CPU, dtype=F64)


def dense(victim: Victim, parameters: str) -> Span:
    return DenseSpan(victim, victim.select(parameters), device=CPU, dtype=F64)


def implicit(victim: Victim, parameters: str) -> Span:
    return ImplicitSpan(victim, victim.select(parameters), device=CPU, dtype=F64, tolerance=1e-13)


def layerwise(victim: Victim, parameters: str) -> Span:
    return LayerwiseSpan(victim, victim.select(parameters), device=CPU, dtype=F64)


CASES = [
    (last_layer, "last"),
    (dense, "last"),
    (dense, "all"),
    (implicit, "last"),
    (implicit, "all"),
    (layerwise, "last"),
    (layerwise, "all"),
]


def gradients(victim: Victim, parameters: str, X: Tensor) -> Tensor:
    """G row by row, by plain backpropagation of every output of every point; differentiable in X."""
    names = victim.select(parameters)
    theta = {name: value.clone().requires_grad_(name in names) for name, value in victim.theta_f.items()}
    rows = []
    for x in X:
        for output in victim.network(theta, x[None])[0]:
            parts = torch.autograd.grad(output, [theta[name] for name in names], create_graph=True)
            rows.append(torch.cat([part.reshape(-1) for part in parts]))
    return torch.stack(rows)


def twin(victim: Victim, parameters: str, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """L, α and ∇_X L from the definition: least squares by SVD, and autograd through the projection itself."""
    X = X.clone().requires_grad_()
    delta = torch.cat([part.reshape(-1) for part in victim.delta(victim.select(parameters)).values()])
    G = gradients(victim, parameters, X)
    alpha = torch.linalg.lstsq(G.detach().T, delta[:, None], driver="gelsd").solution
    projected = G.T @ torch.linalg.solve(G @ G.T, G @ delta)
    loss = (delta - projected).square().sum() / delta.square().sum()
    (slope,) = torch.autograd.grad(loss, X)
    return loss.detach(), alpha.reshape(len(X), -1), slope


def precision(victim: Victim, parameters: str, X: Tensor) -> float:
    """The relative error that a solve with this Gram allows; draws for which it allows nothing are thrown away."""
    G = gradients(victim, parameters, X).detach()
    condition = float(torch.linalg.cond(G @ G.T))
    assume(condition < 1e7)
    return 1e-13 * max(condition, 1e2)


@dataclass(frozen=True)
class Shape:
    """A victim to be: drawn as plain numbers, built inside the test."""

    d: int
    c: int
    n: int
    spare: int
    depth: int
    bias: bool
    activation: str
    seed: int

    def build(self) -> tuple[Victim, Tensor]:
        width = self.n + self.spare
        if self.depth == 1:
            network = random_features(self.d, width, self.c, bias=self.bias, activation=self.activation)
        else:
            network = mlp(self.d, width, self.c, depth=self.depth, bias=self.bias, activation=self.activation)
        X = torch.randn(self.n, self.d, generator=generator(self.seed + 3), dtype=F64)
        return perturbed(network, self.seed), X


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


@pytest.mark.parametrize(("make", "parameters"), CASES)
@given(shape=shapes)
def test_values_and_gradients_match_the_definition(make: Make, parameters: str, shape: Shape) -> None:
    victim, X = shape.build()
    tolerance = precision(victim, parameters, X)
    fit = make(victim, parameters).fit(X)
    loss, alpha, slope = twin(victim, parameters, X)
    assert fit.gradient is not None
    torch.testing.assert_close(fit.loss, loss, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(fit.alpha, alpha, rtol=tolerance, atol=tolerance * float(alpha.abs().max()))
    torch.testing.assert_close(fit.gradient, slope, rtol=tolerance, atol=tolerance * float(slope.abs().max() + 1e-12))


@pytest.mark.parametrize(("make", "parameters"), CASES)
@given(shape=shapes, seed=st.integers(0, 99))
def test_permuting_the_points_permutes_the_answer(make: Make, parameters: str, shape: Shape, seed: int) -> None:
    victim, X = shape.build()
    tolerance = precision(victim, parameters, X)
    order = torch.randperm(len(X), generator=generator(seed))
    span = make(victim, parameters)
    a, b = span.fit(X), span.fit(X[order])
    assert a.gradient is not None
    assert b.gradient is not None
    torch.testing.assert_close(a.loss, b.loss, rtol=tolerance, atol=tolerance)
    size = float(a.gradient.abs().max() + 1e-12)
    torch.testing.assert_close(a.gradient[order], b.gradient, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize(("make", "parameters"), CASES)
@given(shape=shapes, factor=st.floats(0.01, 100))
def test_scaling_the_change_scales_alpha_and_leaves_the_loss(
    make: Make, parameters: str, shape: Shape, factor: float
) -> None:
    victim, X = shape.build()
    tolerance = precision(victim, parameters, X)
    assert victim.theta_0 is not None
    # θf stays, θ0 moves: the gradients are the same and Δθ is `factor` times as long, so ‖P⊥Δθ‖² is factor² as large.
    theta_0 = {name: value - factor * (value - victim.theta_0[name]) for name, value in victim.theta_f.items()}
    a, b = make(victim, parameters).fit(X), make(Victim(victim.network, theta_0, victim.theta_f), parameters).fit(X)
    tolerance *= max(1, 1 / factor)  # a short Δθ is a difference of nearly equal weights
    torch.testing.assert_close(a.loss, b.loss, rtol=tolerance, atol=tolerance)
    size = factor * float(a.alpha.abs().max())
    torch.testing.assert_close(factor * a.alpha, b.alpha, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize(("make", "parameters"), CASES)
@given(shape=shapes, seed=st.integers(0, 99))
def test_a_restriction_is_the_lift_to_the_subspace(make: Make, parameters: str, shape: Shape, seed: int) -> None:
    """L(Z; restricted to U) = L(ZUᵀ), with gradient (∇L)U; for a square U this is a rotation of the full space."""
    victim, X = shape.build()
    r = 2 + seed % (victim.d - 1)
    U = torch.linalg.qr(torch.randn(victim.d, r, generator=generator(seed), dtype=F64)).Q
    Z = torch.randn(len(X), r, generator=generator(seed + 1), dtype=F64)
    tolerance = precision(victim, parameters, Z @ U.T)
    low, high = make(victim.restrict(U), parameters).fit(Z), make(victim, parameters).fit(Z @ U.T)
    assert low.gradient is not None
    assert high.gradient is not None
    torch.testing.assert_close(low.loss, high.loss, rtol=tolerance, atol=tolerance)
    size = float(high.gradient.abs().max() + 1e-12)
    torch.testing.assert_close(low.gradient, high.gradient @ U, rtol=tolerance, atol=tolerance * size)


@pytest.mark.parametrize("make", [last_layer, dense, implicit, layerwise])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_the_loss_is_zero_at_the_true_data_of_random_features(make: Make, bias: bool, activation: str) -> None:
    victim, data = interpolated(bias=bias, activation=activation)
    span = make(victim, "last")
    assert float(span.fit(data.inputs).loss) < 1e-20
    other = torch.randn(data.inputs.shape, generator=generator(1), dtype=F64)
    assert float(span.fit(other).loss) > 1e-2


def test_the_residual_form_keeps_digits_that_the_papers_difference_loses() -> None:
    victim, data = interpolated(n=40, d=20, r=10, p=1000)
    fit = LastLayerSpan(victim, device=CPU, dtype=torch.float32).fit(data.inputs.float())
    assert float(fit.loss) < 1e-10
    H = victim.network.features({name: value.float() for name, value in victim.theta_f.items()}, data.inputs.float())
    delta = victim.delta(["theta"])["theta"].float()
    difference = 1 - ((delta @ H.T) @ fit.alpha).sum() / delta.square().sum()
    assert abs(float(difference)) > 100 * float(fit.loss)


def test_the_last_layer_never_holds_the_dense_jacobian() -> None:
    n, c, p = 20, 10, 300
    victim = perturbed(mlp(6, p, c), 0)
    span = LastLayerSpan(victim, device=CPU, dtype=F64)
    X = torch.randn(n, 6, generator=generator(0), dtype=F64)
    with Largest() as largest:
        span.fit(X)
    assert 0 < largest.size <= n * p
    with Largest() as largest:
        DenseSpan(victim, victim.select("last"), device=CPU, dtype=F64).fit(X)
    assert largest.size >= (n * c) * (c * p)  # the twin that does hold it, so the measure above can fail


def test_cg_says_how_many_iterations_it_took() -> None:
    victim = perturbed(mlp(5, 40, 1), 0)
    span = ImplicitSpan(victim, victim.select("all"), device=CPU, dtype=F64)
    X = torch.randn(6, 5, generator=generator(0), dtype=F64)
    span.fit(X)
    assert span.iterations[0] > 1
    assert "conjugate gradients" in span.notes[0]
    twice = torch.cat([X, X])  # a singular Gram: CG still finds the same residual
    torch.testing.assert_close(span.fit(twice).loss, span.fit(X).loss, rtol=1e-6, atol=1e-9)


def test_a_singular_gram_is_nan_and_jitter_mends_it() -> None:
    victim = perturbed(mlp(5, 40, 1), 0)
    span = LastLayerSpan(victim, device=CPU, dtype=F64)
    x = torch.randn(1, 5, generator=generator(0), dtype=F64)
    alone = span.fit(x).loss
    # Whether two equal rows can be factored is up to rounding; what comes of it is their loss or none.
    rounded = span.fit(torch.cat([x, x, 0 * x])).loss
    assert torch.isnan(rounded) or float(rounded) == pytest.approx(float(alone), rel=1e-6)
    mended = span.fit(torch.cat([x, x]), jitter=torch.tensor(1e-8, dtype=F64))
    torch.testing.assert_close(mended.loss, alone, rtol=1e-6, atol=1e-9)
    singular, one = torch.ones(2, 2, dtype=F64), torch.ones(2, 1, dtype=F64)
    assert torch.isnan(Gram(singular).solve(one)).all()
    torch.testing.assert_close(Gram(singular, torch.tensor(1e-8, dtype=F64)).solve(one), one / 2)


def test_a_row_of_zeros_changes_nothing() -> None:
    A = torch.randn(4, 9, generator=generator(0), dtype=F64)
    B, t = torch.cat([A[:2], torch.zeros(1, 9, dtype=F64), A[2:]]), torch.randn(9, 2, generator=generator(1), dtype=F64)
    full, holed = Gram(A @ A.T).solve(A @ t), Gram(B @ B.T).solve(B @ t)
    torch.testing.assert_close(holed[[0, 1, 3, 4]], full)
    assert float(holed[2].abs().max()) == 0
    stacked = Gram(torch.stack([B @ B.T, 4 * B @ B.T])).solve(torch.stack([B @ t, B @ t]))
    torch.testing.assert_close(stacked, torch.stack([holed, holed / 4]))
