"""Conjugate gradients against a direct solve, for regular, singular and unsound matrices."""

from __future__ import annotations

import pytest
import torch
from cases import F64, generator
from hypothesis import given
from hypothesis import strategies as st

from recollect.objective import conjugate_gradients as file
from recollect.objective.conjugate_gradients import Directions, conjugate_gradients
from recollect.objective.normal import ImplicitNormal


@given(
    size=st.integers(1, 12), rank=st.integers(1, 12), scaled=st.booleans(), seed=st.integers(0, 99)
)
def test_the_solution_is_that_of_least_norm(size: int, rank: int, scaled: bool, seed: int) -> None:
    rank = min(rank, size)
    B = torch.linalg.qr(torch.randn(size, rank, generator=generator(seed), dtype=F64)).Q
    A = B @ torch.diag(torch.linspace(1, 5, rank, dtype=F64)) @ B.T
    b = A @ torch.randn(size, generator=generator(seed + 1), dtype=F64)
    inverse = 1 / A.diagonal() if scaled and rank == size else 1.0
    found = conjugate_gradients(lambda v: A @ v, b, tolerance=1e-10, most=size + 5, inverse=inverse)
    assert found.converged
    assert found.iterations <= size + 5
    torch.testing.assert_close(found.x, torch.linalg.pinv(A) @ b, rtol=1e-6, atol=1e-8)


def test_it_stops_where_it_is_told_to() -> None:
    diagonal, b = torch.linspace(1, 1e4, 50, dtype=F64), torch.ones(50, dtype=F64)
    found = conjugate_gradients(lambda v: diagonal * v, b, tolerance=1e-12, most=5)
    assert (found.iterations, found.converged) == (5, False)
    rough = conjugate_gradients(lambda v: diagonal * v, b, tolerance=0.5, most=50)
    assert rough.converged
    assert float((diagonal * rough.x - b).norm()) <= 0.5 * float(b.norm())
    nothing = conjugate_gradients(lambda v: diagonal * v, 0 * b, tolerance=1e-12, most=5)
    assert (nothing.iterations, nothing.converged) == (0, True)


def test_an_indefinite_matrix_ends_the_iteration_and_nan_spreads() -> None:
    b = torch.ones(3, dtype=F64)
    found = conjugate_gradients(lambda v: -v, b, tolerance=1e-6, most=10)
    assert not found.converged
    assert bool((found.x == 0).all())
    for unsound in (
        conjugate_gradients(lambda v: torch.nan * v, b, tolerance=1e-6, most=10),
        conjugate_gradients(lambda v: v, torch.nan * b, tolerance=1e-6, most=10),
    ):
        assert not unsound.converged
        assert bool(unsound.x.isnan().all())


@given(
    size=st.integers(1, 12),
    steps=st.integers(1, 12),
    shift=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    seed=st.integers(0, 99),
)
def test_the_directions_of_one_system_solve_another_with_more_on_its_diagonal(
    size: int, steps: int, shift: float, seed: int
) -> None:
    steps = min(steps, size)
    A = positive(size, seed)
    b = torch.randn(size, generator=generator(seed + 1), dtype=F64)
    visited: list[tuple[torch.Tensor, torch.Tensor]] = []
    conjugate_gradients(lambda v: A @ v, b, tolerance=0.0, most=steps, visited=visited)
    shifted, directions = A + shift * torch.eye(size, dtype=F64), Directions.of(visited)
    assert directions is not None
    P = directions.P
    x, residual = directions.shifted(b, shift)
    torch.testing.assert_close(residual, b - shifted @ x, rtol=1e-7, atol=1e-9)
    # Nothing in the span of the directions is nearer in the norm of the matrix.
    assert float((P @ residual).abs().max()) < 1e-7 * float(P.norm() * b.norm())
    if steps == size:
        torch.testing.assert_close(x, torch.linalg.solve(shifted, b), rtol=1e-6, atol=1e-8)
    # From there the iteration ends where it would have ended anyway.
    found = conjugate_gradients(
        lambda v: shifted @ v, b, tolerance=1e-10, most=3 * size, start=(x, residual)
    )
    assert found.converged
    torch.testing.assert_close(found.x, torch.linalg.solve(shifted, b), rtol=1e-6, atol=1e-8)


def positive(size: int, seed: int) -> torch.Tensor:
    """A matrix with eigenvalues between 1 and 50, no two of them alike."""
    Q = torch.linalg.qr(torch.randn(size, size, generator=generator(seed), dtype=F64)).Q
    return Q @ torch.diag(torch.logspace(0, 1.7, size, dtype=F64)) @ Q.T


def test_directions_are_noted_while_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "_ROOM", 3 * 8)
    visited: list[tuple[torch.Tensor, torch.Tensor]] = []
    A, b = positive(8, 0), torch.ones(8, dtype=F64)
    assert Directions.of(visited) is None
    found = conjugate_gradients(lambda v: A @ v, b, tolerance=1e-10, most=20, visited=visited)
    assert (found.converged, len(visited)) == (True, 3)


def test_a_step_that_is_damped_more_needs_few_products() -> None:
    size, calls = 60, 0
    A = positive(size, 0)

    def product(v: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        return (A @ v.reshape(-1)).view(v.shape)

    g = torch.randn(size // 3, 3, generator=generator(1), dtype=F64)
    normal = ImplicitNormal(product, torch.full((size // 3,), 10.0, dtype=F64), g, 0 * g, 1e-6)
    spent = []
    for damping in (0.01, 0.04, 0.16):
        before = calls
        step = normal.step(damping)
        spent.append(calls - before)
        N = A + 10 * damping * torch.eye(size, dtype=F64)
        exact = torch.linalg.solve(N, -g.reshape(-1)).view(g.shape)
        torch.testing.assert_close(step, exact, rtol=0, atol=1e-4 * float(exact.norm()))
    assert spent[0] > 15
    assert max(spent[1:]) <= 2
