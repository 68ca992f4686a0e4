"""The report: self-contained, escaped, and right about what it shows."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from recollect.records import Record
from recollect.report.html import image_pairs, render, summary
from recollect.report.pictures import sheet
from recollect.truth.data.load import load_dataset
from recollect.truth.files import Truth
from recollect.truth.images import PixelSpace, guess_shape, stretch
from recollect.truth.metrics import evaluate

FACTS = {
    "victim": "<script>alert(1)</script>",
    "message": "done",
    "loss": 1e-3,
    "rank": 4,
    "notes": ["<b>bold</b>"],
    "options": {"n": 4, "<i>": "<i>"},
    "stages": [{"name": "gradient descent", "loss": 1e-3, "iterations": 5, "seconds": 0.1}],
    "versions": {"python": "3"},
}


@pytest.fixture(scope="module")
def truth() -> Truth:
    data = load_dataset("photos", 4)
    return Truth(data.inputs, data.norms, data.pixel_space)


def record(inputs: torch.Tensor) -> Record:
    return Record(
        inputs, False, torch.logspace(0, -3, 50), torch.logspace(0, -9, 20), None, None, FACTS
    )


def page_of(found: Record, truth: Truth | None) -> str:
    return render(found, truth, None if truth is None else evaluate(found, truth.inputs))


def test_pairs_are_matched_and_sorted(truth: Truth) -> None:
    noise = torch.randn(
        truth.inputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    order = torch.tensor([2, 0, 3, 1])
    found = record((truth.inputs + torch.tensor([0.3, 0.1, 0.0, 0.2])[:, None] * noise)[order])
    pairs = image_pairs(found, truth, evaluate(found, truth.inputs))
    assert [pair.number for pair in pairs] == [3, 2, 4, 1]
    errors = [pair.error for pair in pairs]
    assert errors == sorted(errors, key=lambda error: error or 0)
    assert pairs[0].error is not None
    assert pairs[0].error < 1e-9
    assert pairs[0].true is not None
    assert np.array_equal(pairs[0].true, pairs[0].recovered)
    assert pairs[0].ssim == pytest.approx(1)


def test_the_page_is_self_contained_and_escaped(truth: Truth) -> None:
    page = page_of(record(truth.inputs), truth)
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<b>bold" not in page
    assert "<i>" not in page
    assert not re.search(r"""(src|href)=["'](?!data:|#)""", page)
    assert "url(http" not in page
    images = re.findall(r"data:image/png;base64,([^\"]+)", page)
    assert len(images) == 8
    first = np.asarray(Image.open(io.BytesIO(base64.b64decode(images[0]))))
    assert first.shape == (32, 32, 3)
    assert "4 of 4 training points" in page


def test_without_truth_nothing_is_claimed(truth: Truth) -> None:
    page = page_of(record(truth.inputs), None)
    assert "nobody can say" in page
    assert "training image" not in page
    assert page.count("data:image/png") == 4


def test_points_that_must_not_be_counted_are_not(truth: Truth) -> None:
    sure = torch.tensor([0.9, 0.9, 0.9, 0.1], dtype=torch.float64)
    found = replace(record(truth.inputs), confidence=sure)
    assert "hold 3 of them firmly. Without" in summary(found, None)
    left_out = [
        {"points": (0, 3), "why": "they are <odd>"},
        {"points": (0,), "why": "of another reason"},
    ]
    found = replace(found, facts={**FACTS, "withheld": left_out})
    said = summary(found, None)
    assert "hold 2 of them firmly. 2 are not counted because they are <odd>. 1 are not" in said
    page = page_of(found, None)
    assert "2 are not counted because they are &lt;odd&gt;." in page
    nothing = replace(found, facts={**FACTS, "withheld": [{"points": [], "why": "of nothing"}]})
    assert "hold 3 of them firmly" in summary(nothing, None)


def test_an_attack_need_not_say_in_how_many_coordinates_it_searched(truth: Truth) -> None:
    found = replace(record(truth.inputs), facts={**FACTS, "rank": None})
    page = page_of(found, truth)
    assert page.count("<svg") == 3
    assert "used: " not in page
    assert "used: 4" in page_of(record(truth.inputs), truth)


def test_data_that_are_no_images(truth: Truth) -> None:
    X = torch.randn(5, 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    page = page_of(record(X), Truth(X, X.norm(dim=1), None))
    assert "data:image" not in page
    assert "5 of 5" in page
    assert page.count("<svg") == 3
    few = page_of(record(X[:3]), Truth(X, X.norm(dim=1), None))
    assert "3 of 5" in few
    assert "2 were not looked for" in few


def test_images_that_are_not_square() -> None:
    X = torch.randn(2, 3 * 5 * 7, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = replace(record(X), image_shape=(3, 5, 7))
    assert [
        pair.recovered.shape
        for pair in image_pairs(found, None, None)
        if pair.recovered is not None
    ] == [(5, 7, 3)] * 2


@pytest.mark.parametrize(
    "trace", [torch.zeros(0), torch.zeros(1), torch.full((3,), torch.nan), torch.ones(1)]
)
def test_runs_with_nothing_to_plot(trace: torch.Tensor, truth: Truth) -> None:
    found = replace(record(truth.inputs), trace=trace, singular_values=torch.zeros(3))
    assert page_of(found, truth).count("<svg") == 3


def test_luck_is_called_luck() -> None:
    """Ten times one point, in one dimension: half of all guesses are right."""
    X = torch.ones(10, 8, dtype=torch.float64)
    score = evaluate(record(X), X)
    assert 0.3 < score.chance["span_recovered"] < 0.7
    assert "Guessing within the span" in summary(record(X), score)


def test_summary_counts(truth: Truth) -> None:
    found = record(
        torch.cat([truth.inputs[:2], -truth.inputs[2:], truth.inputs[:1] + truth.inputs[1:2]])
    )
    score = evaluate(found, truth.inputs)
    assert summary(found, score).startswith("2 of 4 training points")
    assert "1 candidates match nothing" in summary(found, score)


def test_pixels() -> None:
    assert guess_shape(3072) == (3, 32, 32)
    assert guess_shape(784) == (1, 28, 28)
    assert guess_shape(60) is None
    assert guess_shape(64) == (1, 8, 8)
    space = PixelSpace((1, 2, 2), 0.5, 0.25)
    pixels = torch.tensor([[0.0, 0.25, 0.5, 1.0]], dtype=torch.float64)
    u = space.standardise(pixels)
    back = space.pixels(3 * u, u.norm(dim=1))
    assert back[0, :, :, 0].tolist() == [[0, 64], [128, 255]]
    assert stretch(u, (1, 2, 2)).max() == 255


def test_a_sheet_of_pairs(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    picture = np.asarray(
        Image.open(io.BytesIO(sheet(images, images[::-1], ["a", "b", "c"], columns=2, zoom=2)))
    )
    assert picture.shape[2] == 3
    assert any((picture[y, x] == images[0, 0, 0]).all() for y in range(20) for x in range(120))
