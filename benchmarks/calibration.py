"""How far a point's confidence can be trusted: victims whose data are known, and null victims that
have none.

    python benchmarks/calibration.py --out results.jsonl [--seconds 500]
            what is in the file is not run again
    python benchmarks/calibration.py --table results.jsonl [more.jsonl]

Every victim is attacked as an audit would, and each point found is written down with its confidence
and its distance to the closest true point. A point is called recovered from a confidence of
`audit/verdict.py` on.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from recollect import Exact, Subspace, reconstruct
from recollect.auditing.nulls import NULLS
from recollect.auditing.verdict import RECOGNISABLE
from recollect.errors import RecollectError, RecollectWarning
from recollect.examine.subspace import spectrum
from recollect.truth.metrics import NEAR, evaluate
from recollect.truth.recipe import Recipe

Row = dict[str, Any]


def victims(first: int) -> Iterator[Row]:
    """From widths at which nothing can be found to widths at which all is; each kind of network and
    of data."""
    for seed, (width, depth, bias) in itertools.product(
        range(first, first + 3), itertools.product((60, 120, 250, 500, 1000), (2, 3), (False, True))
    ):
        yield {
            "dataset": "digits",
            "n": 10,
            "width": width,
            "depth": depth,
            "bias": bias,
            "seed": seed,
        }
    for seed, width in itertools.product(range(first, first + 3), (150, 300, 450, 600, 1000, 2000)):
        yield {"dataset": "synthetic", "n": 20, "dim": 20, "rank": 10, "width": width, "seed": seed}
    for seed, width in itertools.product(range(first, first + 2), (100, 300, 1000)):
        yield {"dataset": "photos", "n": 10, "width": width, "seed": seed}
        yield {
            "dataset": "digits",
            "n": 30,
            "width": 10 * width // 3,
            "seed": seed,
            "dtype": "float64",
        }


def points(recipe: Row, parameters: str, null: str | None) -> list[dict[str, float]]:
    """Confidence and error of each; up to sign where the run says that it could not settle the
    signs."""
    made = Recipe(**recipe)
    data = made.data()
    victim = made.make(data, torch.device("cpu")).victim
    n, rank = made.n, spectrum(victim).rank
    if null is not None:
        victim = NULLS[null](victim, made.seed)
    found = reconstruct(
        victim, n, Exact(parameters=parameters, space=Subspace(rank=rank)), seed=made.seed
    )
    assert found.confidence is not None
    score = evaluate(found, data.inputs)
    closest = score.closest if found.signs_settled else score.closest_up_to_sign
    known = zip(found.confidence.tolist(), closest.tolist(), strict=True)
    return [{"confidence": round(sure, 4), "error": round(error, 4)} for sure, error in known]


def jobs(first: int) -> Iterator[Row]:
    for recipe in victims(first):
        for parameters in ("last", "all"):
            yield {"recipe": recipe, "parameters": parameters, "null": None}
        if recipe["seed"] == first and recipe["width"] in (60, 250, 300, 1000):
            for null in NULLS:
                for parameters in ("last", "all"):
                    yield {"recipe": recipe, "parameters": parameters, "null": null}


def table(paths: list[Path]) -> None:
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    real = [point for row in rows if row["null"] is None for point in row["points"]]
    print(f"{len(real)} points, {sum(point['error'] < 0.1 for point in real)} within 0.1\n")
    print(
        "| called from | called | within 0.1 | of those within 0.05 called | null points called |"
    )
    print("|---|---|---|---|---|")
    null = [point for row in rows if row["null"] is not None for point in row["points"]]
    for level in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99):
        called = [point for point in real if point["confidence"] >= level]
        right = sum(point["error"] < 0.1 for point in called)
        close = [point for point in real if point["error"] < 0.05]
        seen = sum(point["confidence"] >= level for point in close)
        false = sum(point["confidence"] >= level for point in null)
        print(
            f"| {level:g} | {len(called)} | {right / max(1, len(called)):.1%} | "
            f"{seen / max(1, len(close)):.1%} | "
            f"{false} of {len(null)} |"
        )


ENOUGH_RIGHT, FALSE_ALARMS = 0.95, 1 / 500
"""The level of recognisable points is the lowest one, in steps of 0.05, from which on this share of
the points lies within a quarter of a training input, and at most this share of the points of null
victims reaches it."""


def recognisable(paths: list[Path]) -> None:
    """The level of recognisable points: chosen on every other victim, reported on the rest."""
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    recipes = [json.dumps(row["recipe"], sort_keys=True) for row in rows]
    place = {recipe: k for k, recipe in enumerate(dict.fromkeys(recipes))}
    # The seeds and kinds of the victims follow one another, so each half has some of every kind.
    halves = [
        [row for row, recipe in zip(rows, recipes, strict=True) if place[recipe] % 2 == half]
        for half in (0, 1)
    ]
    chosen = None
    print("\n| recognisable from | within 0.25 | of those within 0.25 | null points |" + _HALF)
    print("|---" * 7 + "|")
    for level in (k / 20 for k in range(4, 17)):
        columns = []
        for k, half in enumerate(halves):
            real, null = (
                [one for row in half if (row["null"] is None) is is_real for one in row["points"]]
                for is_real in (True, False)
            )
            near = [one for one in real if one["error"] < NEAR]
            firm = [one for one in real if one["confidence"] >= level]
            right = sum(one["error"] < NEAR for one in firm)
            false = sum(one["confidence"] >= level for one in null)
            columns.append(
                f"{right / len(firm):.1%} of {len(firm)} | {right / len(near):.1%} | "
                f"{false} of {len(null)}"
            )
            good = right >= ENOUGH_RIGHT * len(firm) and false <= FALSE_ALARMS * len(null)
            if k == 0 and good and chosen is None:
                chosen = level
        print(f"| {level:g} | " + " | ".join(columns) + " |")
    print(f"\nchosen on the first half: {chosen}; in use: {RECOGNISABLE}")


_HALF = " other half: within 0.25 | of those within 0.25 | null points |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing new after so long"
    )
    parser.add_argument(
        "--first-seed", type=int, default=0, help="victims that no threshold was chosen on: 3"
    )
    parser.add_argument(
        "--share", default="1/1", help="K/N: every Nth run from the Kth on, for N processes at once"
    )
    parser.add_argument("--table", type=Path, nargs="+")
    options = parser.parse_args()
    if options.table:
        table(options.table)
        recognisable(options.table)
        return
    if options.out is None:
        parser.error("--out or --table is needed")
    warnings.simplefilter("ignore", RecollectWarning)
    done = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    began = time.perf_counter()
    which, of = (int(number) for number in options.share.split("/"))
    for job in itertools.islice(jobs(options.first_seed), which - 1, None, of):
        if any(job.items() <= row.items() for row in done):
            continue
        if time.perf_counter() - began > options.seconds:
            print("out of time; run again to go on")
            return
        started = time.perf_counter()
        try:
            row = {
                **job,
                "points": points(**job),
                "seconds": round(time.perf_counter() - started, 2),
            }
        except RecollectError as error:
            row = {
                **job,
                "points": [],
                "error": str(error),
                "seconds": round(time.perf_counter() - started, 2),
            }
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(
            json.dumps(job),
            f"{sum(point['error'] < 0.1 for point in row['points'])} of {len(row['points'])}, "
            f"{row['seconds']} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
