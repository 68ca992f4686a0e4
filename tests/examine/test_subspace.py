"""Û and the gap rule."""

from __future__ import annotations

import math
from weakref import WeakKeyDictionary

import pytest
import torch
from cases import F64, generator, perturbed, small_mlp
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.errors import OptionError, VictimError
from recollect.examine import subspace as subspace_file
from recollect.examine.subspace import check_basis, gap_rule, sketched, spectrum
from recollect.simulate.training import train_network
from recollect.truth.data.synthetic import synthetic
from recollect.victim.mlp import initial_theta, mlp, random_features
from recollect.victim.victim import Victim


@given(
    rows=st.integers(20, 80),
    columns=st.integers(8, 60),
    share=st.floats(0.1, 0.8),
    noise=st.sampled_from([0.0, 1e-12, 1e-6, 1e-3]),
    seed=st.integers(0, 999),
)
def test_low_rank_plus_noise(
    rows: int, columns: int, share: float, noise: float, seed: int
) -> None:
    smaller = min(rows, columns)
    rank = max(1, min(int(share * smaller), smaller - 2))
    g = generator(seed)
    left, right = (
        torch.linalg.qr(torch.randn(size, rank, generator=g, dtype=F64)).Q
        for size in (rows, columns)
    )
    values = torch.logspace(0, -1, rank, dtype=F64)  # a decade of decay, as trained networks show
    M = (left * values) @ right.T + noise / rows**0.5 * torch.randn(
        rows, columns, generator=g, dtype=F64
    ) * 0.1
    assert gap_rule(torch.linalg.svdvals(M), (rows, columns), 1e-15) == (
        rank,
        pytest.approx(0, abs=1e30),
        True,
    )


def test_full_rank_data_have_no_gap() -> None:
    g = generator(0)
    isotropic = torch.randn(200, 30, generator=g, dtype=F64)
    assert gap_rule(torch.linalg.svdvals(isotropic), (200, 30), 1e-14)[::2] == (30, False)
    steep = isotropic * torch.logspace(
        0, -3, 30, dtype=F64
    )  # like real images: a large first step, a long tail
    steep[:, 0] *= 5
    assert gap_rule(torch.linalg.svdvals(steep), (200, 30), 1e-14)[::2] == (30, False)


def test_rounding_that_adds_up_in_a_few_directions_does_not_hide_the_rank() -> None:
    g = generator(0)
    left, right = (
        torch.linalg.qr(torch.randn(size, 12, generator=g, dtype=F64)).Q for size in (400, 300)
    )
    values = torch.logspace(0, -2, 12, dtype=F64)
    values[8:] = (
        values[7] / 15 * torch.tensor([1.0, 0.9, 0.8, 0.6])
    )  # four directions of rounding above the others
    noise = 0.01 * values[8] * torch.randn(400, 300, generator=g, dtype=F64)
    s = torch.linalg.svdvals((left * values) @ right.T + noise)
    assert gap_rule(s, (400, 300), float(s[8]) / 100)[::2] == (8, True)
    assert not gap_rule(s, (400, 300), float(s[8]) / 1e6)[2]  # far above rounding it might be data


@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_the_rank_of_trained_networks(dtype: torch.dtype) -> None:
    data = synthetic(n=30, dim=20, rank=8)
    network = mlp(20, 300, 1)
    theta_0 = initial_theta(network, init="fan-in", generator=generator(1), dtype=dtype)
    victim = train_network(network, theta_0, data.inputs, data.targets, tolerance=1e-5).victim
    found = spectrum(victim)
    assert found.found
    assert found.rank == 8
    U = found.basis()
    outside = data.inputs - data.inputs @ U @ U.T
    assert float(outside.norm() / data.inputs.norm()) < (0.02 if dtype == torch.float32 else 1e-9)
    if dtype == F64:
        assert found.gap > 1e3


def test_no_subspace_where_there_is_no_first_layer_change() -> None:
    with pytest.raises(VictimError, match="--space full or --basis"):
        spectrum(perturbed(random_features(5, 30, 1), 0))
    victim = small_mlp()
    assert victim.theta_0 is not None
    same = {**victim.theta_f, "layers.0.weight": victim.theta_0["layers.0.weight"]}
    with pytest.raises(VictimError, match="ΔW1 = 0"):
        spectrum(Victim(victim.network, victim.theta_0, same))


def test_a_basis_is_checked_and_made_orthonormal() -> None:
    U = torch.randn(6, 2, generator=generator(0), dtype=F64)
    Q = check_basis(U, 6)
    torch.testing.assert_close(Q.T @ Q, torch.eye(2, dtype=F64))
    torch.testing.assert_close(Q @ (Q.T @ U), U)
    assert torch.equal(check_basis(Q, 6), Q)
    for bad in (U.T, U[:, 0], torch.cat([U, U], 1), U * torch.nan):
        with pytest.raises(OptionError, match="expected"):
            check_basis(bad, 6)
    with pytest.raises(OptionError, match="--rank"):
        spectrum(small_mlp()).basis(99)


@given(
    rank=st.integers(1, 90),
    noise=st.sampled_from([0.0, 1e-9, 1e-5, 1e-3]),
    tall=st.booleans(),
    seed=st.integers(0, 99),
)
@settings(max_examples=12)
def test_a_sketch_sees_the_same_rank_gap_and_span_as_the_whole_decomposition(
    rank: int, noise: float, tall: bool, seed: int
) -> None:
    drawn = generator(seed)
    shape = (700, 520) if tall else (520, 700)
    left = torch.randn(shape[0], rank, generator=drawn, dtype=F64)
    right = torch.randn(rank, shape[1], generator=drawn, dtype=F64)
    scales = torch.logspace(0, -1, rank, dtype=F64)
    delta = left @ (scales[:, None] * right) / shape[0]
    delta += noise * torch.randn(shape, generator=drawn, dtype=F64) / shape[0]
    floor = max(1e-16, noise * (700**0.5 + 520**0.5) / shape[0] / 2)  # rounding of that size
    part = sketched(delta, floor)
    s, Vh = torch.linalg.svd(delta, full_matrices=False)[1:]
    whole = gap_rule(s, shape, floor)
    if part is None:  # then the whole decomposition is taken
        assert whole[1] < 20
        return
    assert (part.rank, part.found) == (whole[0], whole[2])
    assert not part.whole
    torch.testing.assert_close(part.singular_values[:rank], s[:rank])
    # Below the rounding of a singular value decomposition gaps differ, and do not matter.
    assert abs(math.log(min(part.gap, 1e12) / min(whole[1], 1e12))) < 0.5
    outside = part.basis() - Vh[:rank].T @ (Vh[:rank] @ part.basis())
    assert float(outside.norm(dim=0).max()) < max(1e-12, 10 / whole[1] ** 5)


def test_a_sketch_of_noise_or_of_a_slow_decay_is_not_trusted() -> None:
    noise = torch.randn(600, 560, generator=generator(0), dtype=F64)
    assert sketched(noise, 1e-12) is None
    U, V = (torch.linalg.qr(part).Q for part in (noise, noise[:560].T))
    slow = U @ torch.diag(torch.logspace(0, -6, 560, dtype=F64)) @ V.T
    assert sketched(slow, 1e-12) is None


def test_the_leading_part_serves_until_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    network = mlp(600, 520, 1)
    victim = perturbed(network, 0)
    delta = torch.randn(520, 5, generator=generator(1), dtype=F64) @ torch.randn(
        5, 600, generator=generator(2), dtype=F64
    )
    theta_0 = {**victim.theta_f, "layers.0.weight": victim.theta_f["layers.0.weight"] - delta}
    victim = Victim(network, theta_0, victim.theta_f)
    part = spectrum(victim, leading=0)
    assert not part.whole
    assert part.rank == 5
    assert spectrum(victim, leading=20) is part
    whole = spectrum(victim)
    assert whole.whole
    assert whole.rank == 5
    assert spectrum(victim, leading=0) is whole
    monkeypatch.setattr(subspace_file, "_KNOWN", WeakKeyDictionary())
    assert spectrum(victim, leading=300).whole
