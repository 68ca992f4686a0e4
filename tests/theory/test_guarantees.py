"""The figure of bounds beside measurements, in the small."""

from __future__ import annotations

import csv
import io
import math

import jaxtyping
import numpy as np
import pytest
import torch

from recollect.study.guarantees import Sizes, _promised, _victim, csv_of, draw, measure
from recollect.system.progress import quiet
from recollect.theory.constant import log_C
from recollect.theory.kernel import k_infinity

TINY = Sizes(
    dims=(2, 3),
    widths=(300, 500),
    draws=3,
    failure_draws=10,
    failure_width=300,
    n=2,
    spaces=((2, 2), (5, 2)),
    seeds=1,
    iterations=300,
)


def test_the_bounds_are_kept_and_practice_needs_far_less(monkeypatch: pytest.MonkeyPatch) -> None:
    # These are 40,000 tiny steps; other tests check the shapes on their way.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    rows = measure(quiet, TINY)
    for row in rows:
        if row["part"] in (
            "deviation",
            "failure",
        ):  # a bound that says something, kept by a margin and not idle
            assert row["promised"] < 1.2
            assert row["promised"] / 50 < row["measured"] < row["promised"] / 5
    widths = [row for row in rows if row["part"] == "width" and row["solver"] == "auto"]
    assert [(row["d"], row["r"]) for row in widths] == [(2, 2), (5, 2)]
    for row in widths:
        assert 4 <= row["measured"] < 40  # four unknowns
        assert row["log10_promised"] > 6
        assert row["log10_promised"] == pytest.approx(widths[0]["log10_promised"], rel=1e-6)
        assert row["c"] <= row["alpha"]
    files = draw(rows)
    assert files[".png"].startswith(b"\x89PNG")
    assert b"<svg" in files[".svg"][:2000]
    table = list(csv.DictReader(io.StringIO(csv_of(rows).decode())))
    assert len(table) == len(rows)
    assert {row["part"] for row in table} == {"deviation", "failure", "width"}


@pytest.mark.parametrize("r", [2, 3])
def test_a_subspace_has_the_same_points(r: int) -> None:
    """Up to a rotation and the radius, so that the corollary's rows are the theorem's."""
    (_, X, _), (_, Y, U) = _victim(4, r, r, 30, 1), _victim(4, 10, r, 30, 1)
    torch.testing.assert_close(X @ X.T / r, Y @ Y.T / 10)
    torch.testing.assert_close(Y @ U @ U.T, Y)
    one, other = _promised(X, r), _promised(Y, r)
    assert other.pop("separation") == pytest.approx(math.sqrt(10 / r) * one.pop("separation"))
    assert other == pytest.approx(one, rel=1e-6)


def test_what_the_theorem_is_asked() -> None:
    """Three points in a plane of five dimensions: α, c, Δ and the width put together by hand."""
    angle, d = np.array([0.0, 1.0, 2.5]), 5
    X = torch.zeros(3, d, dtype=torch.float64)
    X[:, 1], X[:, 3] = (math.sqrt(d) * torch.from_numpy(f(angle)) for f in (np.cos, np.sin))
    K = np.array([[k_infinity("tanh", math.cos(a - b)) for b in angle] for a in angle])
    alpha = np.abs(np.linalg.solve(K, [1.0, -1.0, 1.0]))
    l1, c, apart = alpha.sum(), alpha.min(), 2 * math.sin(0.5)  # on the unit circle
    log_constant = log_C("tanh", 2, math.sqrt(2) * apart, float(c / (4 * (l1 + l1))))
    C, ratio = math.exp(log_constant), 2 * l1 / c
    width = (
        128
        * C**2
        * 5
        * ratio**4
        * (math.log(10 / 0.05) + 0.8 * math.log(24 * C * ratio**2 / math.sqrt(2)))
    )
    expected = {
        "alpha": l1,
        "c": c,
        "separation": math.sqrt(d) * apart,
        "log10_C": log_constant / math.log(10),
        "log10_promised": math.log10(width),
    }
    assert _promised(X, 2) == pytest.approx(expected, rel=1e-6)
