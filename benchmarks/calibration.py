"""How far a point's confidence can be trusted: victims whose data are known, and null victims that
have none.

    python benchmarks/calibration.py --out results.jsonl [--seconds 500]
            what is in the file is not run again
    python benchmarks/calibration.py --table results.jsonl [more.jsonl]

Every victim is attacked as an audit would, and each point found is written down with its confidence
and its distance to the closest true point. A point is called recovered from a confidence of
`audit/verdict.py` on.

    python benchmarks/calibration.py --audits [nulls|real] --out audits.jsonl [--half choose|report]
                                     [--only KIND] [--share K/N] [--audits-per-kind 20]
    python benchmarks/calibration.py --audits-table audits.jsonl

Whole audits, of models in which nothing is to be found and of trained ones (`situations.py`). A
verdict on a model of the first sort is a false alarm if it is `exposed` or `partly exposed`, and
any point that is said to be one is none: endpoints that were exchanged still hold their records.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta
from situations import NULLS, REAL

from recollect import Exact, Subspace, audit, reconstruct
from recollect.auditing.nulls import NULLS as NULL_VICTIMS
from recollect.auditing.verdict import RECOGNISABLE, Verdict
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
        victim = NULL_VICTIMS[null](victim, made.seed)
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
            for null in NULL_VICTIMS:
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


BUDGET = 300.0
"""Seconds of an audit at most."""


def audited(kind: str, half: str, number: int, which: str) -> Row:
    """One audit, and how close its points are to the inputs it did not see."""
    draw = random.Random(f"{half}, {kind}, {number}")
    case = {"nulls": NULLS, "real": REAL}[which][kind](draw)
    done = audit(
        case.before,
        case.after,
        truth=case.truth,
        n=case.n,
        activation=case.activation,
        budget=BUDGET,
        seed=number,
    )
    told = done.facts()
    row: Row = {
        "n": len(case.X),
        "verdict": told["verdict"],
        "reason": told["reason"],
        "points": [],
        "whole": sum(one.whole for one in done.attempts),
        "cut off": sum(one.cut_off for one in done.attempts),
        "nulls": [[run.kind, run.points, run.called, run.whole, run.loss] for run in done.nulls],
        "findings": [finding.code for finding in done.findings],
    }
    found = done.reconstruction
    if found is not None and len(found.inputs):
        closest = evaluate(found, case.X.double()).closest.tolist()
        row["points"] = [
            [point["confidence"], point["level"], round(error, 4), point["confirmed"]]
            for point, error in zip(told["points"], closest, strict=True)
        ]
        row["errors"] = [round(e, 4) for e in evaluate(found, case.X.double()).errors.tolist()]
        row["setting"] = done.best.setting.name if done.best else None
        row["mismatch"], row["loss"] = found.mismatch, found.loss
    return row


def audits_table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    nulls, real = ([row for row in rows if row["sort"] == sort] for sort in ("nulls", "real"))
    if nulls:
        print(
            "| nothing to find | audits | exposed | partly | not exposed | cannot be judged "
            "| false alarms |"
        )
        print("|---" * 7 + "|")
    for kind in dict.fromkeys(row["kind"] for row in nulls):
        some = [row for row in nulls if row["kind"] == kind]
        print(f"| {kind} | {len(some)} | {_verdicts(some)} | {sum(map(_false_alarm, some))} |")
    if nulls:
        false = sum(map(_false_alarm, nulls))
        high = beta.ppf(0.95, false + 1, len(nulls) - false) if false < len(nulls) else 1.0
        whole = sum(any(run[3] for run in row["nulls"]) for row in nulls)
        print(
            f"\n{false} of {len(nulls)} are false alarms: at most {high:.1%} with 95 % confidence; "
            f"{whole} had a null attack of their own that ran to its end\n"
        )
    if real:
        print(
            "| trained | audits | exposed | partly | not exposed | cannot be judged | points "
            "| called | of them within 0.1 | recognisable | of them within 0.25 "
            "| of those within 0.1 recognisable | of all inputs within 0.1 |"
        )
        print("|---" * 13 + "|")
    for kind in dict.fromkeys(row["kind"] for row in real):
        some = [row for row in real if row["kind"] == kind]
        points = [point for row in some for point in row["points"]]
        called = [one for one in points if one[1] == "recovered"]
        known = [one for one in points if one[1] != "none"]
        close = [one for one in points if one[2] < 0.1]
        errors = [error for row in some for error in row.get("errors", [math.inf] * row["n"])]
        print(
            f"| {kind} | {len(some)} | {_verdicts(some)} | {len(points)} | {len(called)} | "
            f"{_share(one[2] < 0.1 for one in called)} | {len(known)} | "
            f"{_share(one[2] < NEAR for one in known)} | "
            f"{_share(one[1] != 'none' for one in close)} | "
            f"{_share(error < 0.1 for error in errors)} |"
        )


ALARMS = (Verdict.EXPOSED.value, Verdict.PARTLY.value)


def _false_alarm(row: Row) -> bool:
    """Where the records of another order of checkpoints came back, exposed is the right answer."""
    said = [point for point in row["points"] if point[1] != "none"]
    right = all(point[2] < (0.1 if point[1] == "recovered" else NEAR) for point in said)
    return row["verdict"] in ALARMS and not (said and right)


def _verdicts(rows: list[Row]) -> str:
    verdicts = (Verdict.EXPOSED, Verdict.PARTLY, Verdict.NOT_FOUND, Verdict.UNKNOWN)
    return " | ".join(str(sum(row["verdict"] == one.value for row in rows)) for one in verdicts)


def _share(values: Iterable[bool]) -> str:
    told = list(values)
    return f"{sum(told) / len(told):.1%}" if told else "–"


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
    parser.add_argument("--audits", nargs="?", const="nulls", choices=("nulls", "real"))
    parser.add_argument("--half", choices=("choose", "report"), default="report")
    parser.add_argument("--only", default="", help="part of the name of a kind")
    parser.add_argument("--audits-per-kind", type=int, default=20)
    parser.add_argument("--audits-table", type=Path)
    options = parser.parse_args()
    if options.audits_table:
        audits_table(options.audits_table)
        return
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
    if options.audits:
        torch.set_num_threads(1)
        todo, work = audits(options), run_audit
    else:
        todo, work = jobs(options.first_seed), attacked
    for job in itertools.islice(todo, which - 1, None, of):
        if any(job.items() <= row.items() for row in done):
            continue
        if time.perf_counter() - began > options.seconds:
            print("out of time; run again to go on")
            return
        started = time.perf_counter()
        found = work(job)
        row = {**job, **found, "seconds": round(time.perf_counter() - started, 2)}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(job), told(row), f"{row['seconds']} s", flush=True)


def audits(options: argparse.Namespace) -> Iterator[Row]:
    kinds = {"nulls": NULLS, "real": REAL}[options.audits]
    for number in range(options.audits_per_kind):
        for kind in kinds:
            if options.only in kind:
                sort = options.audits
                yield {"sort": sort, "kind": kind, "half": options.half, "number": number}


def run_audit(job: Row) -> Row:
    return audited(job["kind"], job["half"], job["number"], job["sort"])


def attacked(job: Row) -> Row:
    try:
        return {"points": points(**job)}
    except RecollectError as error:
        return {"points": [], "error": str(error)}


def told(row: Row) -> str:
    if "verdict" in row:
        levels = [point[1] for point in row["points"]]
        return f"{row['verdict']}, {row['reason']}, {levels.count('recovered')} of {len(levels)}"
    return f"{sum(point['error'] < 0.1 for point in row['points'])} of {len(row['points'])}"


if __name__ == "__main__":
    main()
