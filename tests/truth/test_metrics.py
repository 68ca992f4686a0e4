"""Scores: by brute force, by symmetry, and against scikit-image."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from cases import F64, generator
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from recollect.errors import DataError
from recollect.truth.metrics import evaluate, psnr, ssim


@dataclass(frozen=True)
class Guess:
    inputs: torch.Tensor
    norms_identifiable: bool = False


def points(n: int, d: int, seed: int) -> torch.Tensor:
    X = torch.randn(n, d, generator=generator(seed), dtype=F64)
    return math.sqrt(d) * X / X.norm(dim=1, keepdim=True)


@given(n=st.integers(1, 5), d=st.integers(1, 6), seed=st.integers(0, 999))
def test_rho_is_the_papers_formula(n: int, d: int, seed: int) -> None:
    X, X_hat = points(n, d, seed), points(n, d, seed + 1)

    def rho(signs: bool) -> float:
        best = math.inf
        for order in itertools.permutations(range(n)):
            distances = [
                min(
                    float((X[i] - X_hat[j]).norm()),
                    float((X[i] + X_hat[j]).norm()) if signs else math.inf,
                )
                for i, j in enumerate(order)
            ]
            best = min(best, sum(distances) / n / math.sqrt(d))
        return best

    score = evaluate(Guess(X_hat), X)
    assert score.rho == pytest.approx(rho(signs=False))
    assert score.rho_up_to_sign == pytest.approx(rho(signs=True))
    assert score.rho_up_to_sign <= score.rho + 1e-12
    assert score.rho_closest <= score.rho + 1e-12
    assert score.rho == pytest.approx(float(score.errors.mean()))


@given(
    n=st.integers(1, 6), d=st.integers(2, 6), seed=st.integers(0, 999), scale=st.floats(0.01, 100)
)
def test_a_permuted_rescaled_copy_scores_zero(n: int, d: int, seed: int, scale: float) -> None:
    X = points(n, d, seed)
    order = torch.randperm(n, generator=generator(seed))
    score = evaluate(Guess(scale * X[order]), X)
    assert score.rho < 1e-7
    assert score.recovered == 1
    assert torch.equal(order[score.matching.found], torch.arange(n))
    flipped = evaluate(Guess(-X[order]), X)
    assert flipped.rho_up_to_sign < 1e-7


def test_identifiable_norms_count() -> None:
    X = points(3, 4, 0)
    for size in (1.0, 0.01, 30.0):  # whatever the norm, the error is relative to it
        score = evaluate(Guess(1.5 * size * X, norms_identifiable=True), size * X)
        assert score.rho == pytest.approx(0.5)
        assert score.chance["sphere"] > 0.5
    assert evaluate(Guess(1.5 * X), X).rho < 1e-12


def test_missed_and_spurious() -> None:
    X = points(5, 8, 0)
    few = evaluate(Guess(X[[3, 1]]), X)
    assert (few.missed, few.spurious, few.recovered) == (3, 0, 0.4)
    assert few.rho < 1e-12
    assert torch.isinf(few.errors).tolist() == [True, False, True, False, True]
    many = evaluate(Guess(torch.cat([points(2, 8, 1), X])), X)
    assert (many.missed, many.spurious, many.recovered) == (0, 2, 1.0)
    assert many.rho_closest > 0.1  # the two that match nothing are far from everything


def test_chance_levels_are_what_guessing_scores() -> None:
    """Known for the paper's synthetic data: about 1.18 in the full space and 1.08 in the
    subspace."""
    Z = torch.randn(100, 30, generator=generator(0), dtype=F64)
    U = torch.linalg.qr(torch.randn(60, 30, generator=generator(1), dtype=F64)).Q
    X = math.sqrt(60) * Z / Z.norm(dim=1, keepdim=True) @ U.T
    score = evaluate(Guess(points(100, 60, 5)), X)
    assert score.chance["sphere"] == pytest.approx(1.18, abs=0.02)
    assert score.chance["span"] == pytest.approx(1.08, abs=0.02)
    assert score.rho == pytest.approx(score.chance["sphere"], abs=0.02)
    assert score.chance["sphere_up_to_sign"] < score.chance["sphere"]
    assert score.chance["other_points"] == pytest.approx(1.08, abs=0.03)


@given(
    channels=st.sampled_from([1, 3]),
    side=st.integers(11, 40),
    seed=st.integers(0, 99),
    noise=st.floats(0, 80),
)
def test_ssim_and_psnr_agree_with_scikit_image(
    channels: int, side: int, seed: int, noise: float
) -> None:
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 256, (side, side, channels), dtype=np.uint8)
    b = np.clip(a + noise * rng.normal(size=a.shape), 0, 255).astype(np.uint8)
    expected = structural_similarity(
        a,
        b,
        channel_axis=2,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=255,
    )
    assert ssim(a, b) == pytest.approx(float(expected), abs=1e-6)
    if (a != b).any():
        assert psnr(a, b) == pytest.approx(float(peak_signal_noise_ratio(a, b, data_range=255)))
    else:
        assert psnr(a, b) == math.inf


def test_small_images_have_an_ssim() -> None:
    a = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert ssim(a, a) == pytest.approx(1)
    assert ssim(a, 255 - a) < 0.5


@pytest.mark.parametrize(
    "bad", [torch.zeros(3, 4), torch.full((3, 4), torch.nan), torch.ones(3, 5), torch.ones(0, 4)]
)
def test_truth_that_cannot_be_scored(bad: torch.Tensor) -> None:
    with pytest.raises(DataError, match="expected"):
        evaluate(Guess(points(3, 4, 0)), bad)
