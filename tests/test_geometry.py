"""Invariants of every geometry."""

from __future__ import annotations

import math

import pytest
import torch
from cases import F64, generator
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import OptionError
from recollect.geometry import (
    FreeRadius,
    Geometry,
    SharedSubspace,
    Slice,
    Sphere,
    random_start,
)


@given(
    n=st.integers(1, 5),
    r=st.integers(1, 6),
    radius=st.floats(0.1, 100),
    free=st.booleans(),
    seed=st.integers(0, 99),
)
def test_projection_and_tangent(n: int, r: int, radius: float, free: bool, seed: int) -> None:
    geometry: Geometry = FreeRadius(radius) if free else Sphere(radius)
    Z = torch.randn(n, r, generator=generator(seed), dtype=F64)
    V = torch.randn(n, r, generator=generator(seed + 1), dtype=F64)
    once = geometry.project(Z)
    torch.testing.assert_close(geometry.project(once), once)
    tangent = geometry.tangent(once, V)
    torch.testing.assert_close(geometry.tangent(once, tangent), tangent)
    if free:
        assert geometry.free_dimensions(r) == r
    else:
        torch.testing.assert_close(once.norm(dim=1), torch.full((n,), radius, dtype=F64))
        assert float((once * tangent).sum(1).abs().max()) < 1e-9 * radius**2
        assert geometry.free_dimensions(r) == r - 1
    start = random_start(geometry, n, r, generator(seed))
    torch.testing.assert_close(start.norm(dim=1), torch.full((n,), radius, dtype=F64))


@given(n=st.integers(1, 5), r=st.integers(2, 6), s=st.floats(0.1, 100), seed=st.integers(0, 99))
def test_a_slice(n: int, r: int, s: float, seed: int) -> None:
    a = torch.randn(r, generator=generator(seed + 2), dtype=F64)
    geometry = Slice(a / a.norm().clamp_min(1.0), s)
    a = geometry.a
    Z, V = (torch.randn(n, r, generator=generator(seed + k), dtype=F64) for k in (0, 1))
    once = geometry.project(Z)
    torch.testing.assert_close(once @ a, torch.full((n,), s, dtype=F64))
    torch.testing.assert_close(geometry.project(once), once)
    # No allowed point is nearer: what the projection adds is orthogonal to every allowed move.
    moves = geometry.tangent(once, V)
    torch.testing.assert_close(moves @ a, torch.zeros(n, dtype=F64), atol=1e-9, rtol=0)
    torch.testing.assert_close(
        ((once - Z) * moves).sum(1), torch.zeros(n, dtype=F64), atol=1e-9 * (1 + s), rtol=0
    )
    torch.testing.assert_close(geometry.project(once + moves), once + moves)
    assert geometry.free_dimensions(r) == r - 1
    start = random_start(geometry, n, r, generator(seed))
    torch.testing.assert_close(start @ a, torch.full((n,), s, dtype=F64))


@given(n=st.integers(1, 5), d=st.integers(2, 5), r=st.integers(2, 5), seed=st.integers(0, 99))
def test_a_slice_of_a_subspace_is_the_subspace_of_the_slice(
    n: int, d: int, r: int, seed: int
) -> None:
    """(x, s) with x = (Uz) without its last coordinate; norms are those of x."""
    r, s = min(r, d + 1), 1.7
    a = torch.zeros(d + 1, dtype=F64)
    a[-1] = 1.0
    U = torch.linalg.qr(torch.randn(d + 1, r, generator=generator(seed), dtype=F64)).Q
    within = Slice(a, s).restricted(U)
    Z = within.project(torch.randn(n, r, generator=generator(seed + 1), dtype=F64))
    X = Z @ U.T
    torch.testing.assert_close(X[:, -1], torch.full((n,), s, dtype=F64))
    torch.testing.assert_close(within.norms(Z), X[:, :-1].norm(dim=1))


@given(
    n=st.integers(2, 6),
    d=st.integers(2, 6),
    rank=st.integers(1, 3),
    kind=st.sampled_from(["sphere", "free", "slice"]),
    seed=st.integers(0, 99),
)
def test_points_that_share_a_subspace(n: int, d: int, rank: int, kind: str, seed: int) -> None:
    rank = min(rank, n, d)
    inner: Geometry = FreeRadius(2.0) if kind == "free" else Sphere(2.0)
    if kind == "slice":
        inner = Slice(torch.eye(d, dtype=F64)[-1], 2.0)
    geometry = SharedSubspace(inner, rank)
    Z = geometry.project(torch.randn(n, d, generator=generator(seed), dtype=F64))
    assert int((torch.linalg.svdvals(Z) > 1e-9).sum()) <= rank
    torch.testing.assert_close(geometry.project(Z), Z)
    torch.testing.assert_close(inner.project(Z), Z)
    frame = geometry.frame(Z)
    torch.testing.assert_close(frame.T @ frame, torch.eye(frame.shape[1], dtype=F64))
    assert frame.shape[1] == n * rank + rank * (d - rank)
    # Along the frame the rank stays, to first order: what the move leaves outside is quadratic in
    # its length.
    move = (frame @ torch.randn(frame.shape[1], generator=generator(seed + 1), dtype=F64)).reshape(
        n, d
    )
    beyond = [float(torch.linalg.svdvals(Z + step * move)[rank:].norm()) for step in (1e-3, 1e-4)]
    assert beyond[1] <= 0.02 * beyond[0] + 1e-10


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan, math.inf, 1e200, 1e-200])
def test_absurd_radii_are_refused(radius: float) -> None:
    with pytest.raises(OptionError, match="positive"):
        Sphere(radius)


def test_starts_are_even_on_the_sphere() -> None:
    Z = random_start(Sphere(1.0), 20_000, 3, generator(0))
    assert float(Z.mean(0).abs().max()) < 0.02
    torch.testing.assert_close(Z.T @ Z / len(Z), torch.eye(3, dtype=F64) / 3, atol=0.01, rtol=0)
