"""The figure of bounds beside measurements, in the small."""

from __future__ import annotations

import csv
import io

from recollect.experiments.guarantees import Sizes, csv_of, draw, measure
from recollect.progress import quiet

TINY = Sizes(
    dims=(2, 3),
    widths=(50, 100),
    draws=3,
    failure_draws=10,
    failure_width=50,
    n=2,
    spaces=((2, 2), (5, 2)),
    seeds=1,
    iterations=300,
)


def test_the_bounds_are_kept_and_practice_needs_far_less() -> None:
    rows = measure(quiet, TINY)
    assert all(row["measured"] <= row["promised"] for row in rows if row["part"] in ("deviation", "failure"))
    widths = [row for row in rows if row["part"] == "width" and row["solver"] == "auto"]
    assert [(row["d"], row["r"]) for row in widths] == [(2, 2), (5, 2)]
    for row in widths:
        assert 4 <= row["measured"] < 40  # four unknowns
        assert row["log10_promised"] > 6
        assert row["c"] <= row["alpha"]
    files = draw(rows)
    assert files[".png"].startswith(b"\x89PNG")
    assert b"<svg" in files[".svg"][:2000]
    table = list(csv.DictReader(io.StringIO(csv_of(rows).decode())))
    assert len(table) == len(rows)
    assert {row["part"] for row in table} == {"deviation", "failure", "width"}
