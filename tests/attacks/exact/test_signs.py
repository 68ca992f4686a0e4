"""Signs planted and found again: by least squares, by LLL, or honestly not at all."""

from __future__ import annotations

import pytest
import torch
from cases import CPU, F64, generator, interpolated
from hypothesis import given
from hypothesis import strategies as st

from recollect.attacks.exact import signs as signs_file
from recollect.attacks.exact.signs import find_signs
from recollect.objective.evidence import Evidence
from recollect.objective.last_layer import LastLayerObjective


def planted(
    n: int, equations: int, noise: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    M = torch.randn(equations, n, generator=generator(seed), dtype=F64)
    s = torch.where(torch.rand(n, generator=generator(seed + 1)) < 0.5, -1.0, 1.0).double()
    t = M @ s + noise * torch.randn(equations, generator=generator(seed + 2), dtype=F64)
    return M, t, s


@given(n=st.integers(1, 12), spare=st.integers(4, 20), seed=st.integers(0, 999))
def test_more_equations_than_points_is_least_squares(n: int, spare: int, seed: int) -> None:
    M, t, s = planted(n, n + spare, 1e-3, seed)
    found = find_signs(M, t, 1e-3, lambda values: True)
    assert found.settled
    assert "least squares" in found.how
    assert torch.equal(found.values, s)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("n", "equations", "noise"), [(40, 14, 1e-6), (30, 12, 1e-5), (100, 30, 1e-6)]
)
def test_fewer_equations_is_a_short_vector_of_a_lattice(
    n: int, equations: int, noise: float, seed: int
) -> None:
    pytest.importorskip("flint")
    M, t, s = planted(n, equations, noise, seed)
    found = find_signs(M, t, 1e-6, lambda values: True)
    assert found.settled
    assert "LLL" in found.how
    assert torch.equal(found.values, s)


def test_nothing_is_settled_that_chance_could_have_made_or_the_residual_denies() -> None:
    M, _, s = planted(30, 12, 0, 0)
    found = find_signs(
        M, torch.randn(12, generator=generator(9), dtype=F64), 1e-6, lambda values: True
    )
    assert not found.settled
    assert "no choice of signs" in found.how
    M, t, s = planted(6, 20, 1e-6, 1)
    assert not find_signs(M, t, 1e-6, lambda values: False).settled
    assert find_signs(M, t, 1e-6, lambda values: torch.equal(values, s)).settled
    few, t, _ = planted(30, 2, 0.01, 2)  # millions of choices fit two equations
    assert not find_signs(few, t, 0.01, lambda values: True).settled


@pytest.mark.parametrize(("n", "equations", "size"), [(10, 16, 1.0), (10, 30, 0.3), (6, 40, 0.3)])
def test_the_best_of_all_signs_for_noise_is_not_certain(
    n: int, equations: int, size: float
) -> None:
    """Of all 2ⁿ choices the one that fits pure noise best: it may be called certain once in a
    thousand."""
    choices = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * n)
    certain = 0
    for seed in range(60):
        M = torch.randn(equations, n, generator=generator(seed), dtype=F64)
        t = size * n**0.5 * torch.randn(equations, generator=generator(seed + 500), dtype=F64)
        best = choices[(choices @ M.T - t).square().sum(1).argmin()]
        certain += signs_file._log_accidents(M, t, best) < signs_file._CERTAIN
    assert certain <= 1
    nothing = torch.zeros(4, 3, dtype=F64)
    assert not find_signs(nothing, nothing[:, 0], 1e-6, lambda values: True).settled


def test_without_flint_the_result_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signs_file, "find_spec", lambda name: None)
    M, t, _ = planted(30, 12, 1e-6, 0)
    found = find_signs(M, t, 1e-6, lambda values: True)
    assert not found.settled
    assert "python-flint" in found.how


@pytest.mark.parametrize("seed", range(3))
def test_the_system_holds_at_the_true_data_whatever_their_signs(seed: int) -> None:
    victim, data = interpolated(seed, n=6, d=8, r=4, p=300)
    restricted = Evidence.change(victim).restrict(data.basis)
    Z = data.inputs @ data.basis
    flips = torch.where(torch.rand(6, generator=generator(seed)) < 0.5, -1.0, 1.0).double()
    objective = LastLayerObjective(restricted, device=CPU, dtype=F64, lifted=True)
    M, t = objective.sign_system(flips[:, None] * Z)
    torch.testing.assert_close(M @ flips, t, rtol=1e-8, atol=1e-8 * float(t.abs().max()))
    plain = LastLayerObjective(restricted, device=CPU, dtype=F64)
    with pytest.raises(ValueError, match="lifted"):
        plain.sign_system(Z)


def test_a_pair_that_cancels_does_not_make_the_others_certain() -> None:
    """Two nearly opposite columns a thousand times larger than the rest: nothing is said of the
    small ones."""
    M = torch.randn(12, 8, generator=generator(0), dtype=F64)
    large = 5e3 * torch.randn(12, generator=generator(1), dtype=F64)
    M[:, 0], M[:, 1] = large, -large + 0.1 * torch.randn(12, generator=generator(2), dtype=F64)
    s = torch.where(torch.rand(8, generator=generator(3)) < 0.5, -1.0, 1.0).double()
    s[1] = s[0]
    t = M @ s + 3 * torch.randn(12, generator=generator(4), dtype=F64)
    assert not find_signs(M, t, 1e-3, lambda values: True).settled
    assert find_signs(M, M @ s, 1e-9, lambda values: True).settled
