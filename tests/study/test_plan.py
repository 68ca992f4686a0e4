"""Plans and jobs: what a file expands to, what names a job, what is refused."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.attacks.options import Basis, Exact, FullSpace, Projection, Subspace
from recollect.errors import FileError, OptionError
from recollect.solve.gradient_descent import GradientDescent
from recollect.study.job import Job, column_kinds
from recollect.study.plan import expand, read_plan
from recollect.study.store import is_of
from recollect.study.table import read_table
from recollect.truth.recipe import Recipe

ROOT = Path(__file__).parents[2]
PLANS = ROOT / "plans"
TABLES = [path for path in sorted(ROOT.glob("docs/results/*.csv")) if path.stem != "guarantees"]
SMALL = {"dataset": "synthetic", "n": 6, "width": 60}


def job(**options: object) -> Job:
    return Job.of({**SMALL, **options})


def test_a_grid_is_the_product_of_its_lists_victim_by_victim() -> None:
    plan = {
        "common": {**SMALL, "training_seed": [0, 1]},
        "grid": [
            {"solver": "gd", "method": ["full", "subspace"], "reconstruction_seed": [0, 1, 2]},
            {"solver": "auto"},
        ],
    }
    jobs = expand(plan)
    assert len(jobs) == 2 * (2 * 3 + 1)
    assert [one.recipe.seed for one in jobs] == [0] * 7 + [1] * 7
    first = [
        (one.study.method, one.columns()["solver"], one.reconstruction_seed) for one in jobs[:7]
    ]
    assert first == [
        *((m, "gd", s) for m in ("full", "subspace") for s in range(3)),
        ("subspace", "auto", 0),
    ]


def test_a_job_named_twice_is_run_once() -> None:
    assert len(expand({"grid": [SMALL, {**SMALL, "width": [60, 70]}]})) == 2
    for plan in ([SMALL, {**SMALL, "keep_points": True}], [{**SMALL, "keep_points": True}, SMALL]):
        (one,) = expand({"grid": plan})
        assert one.keep_points


@pytest.mark.parametrize("path", sorted(PLANS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_plan_of_the_repository_expands(path: Path) -> None:
    assert read_plan(path)


def test_names_follow_what_a_job_is_and_defaults_do_not_count() -> None:
    one = job()
    assert one.name == job(depth=2, momentum=0.9).name
    others = [
        job(width=61),
        job(training_seed=1),
        job(reconstruction_seed=1),
        job(method="full"),
        job(solver="gd"),
        job(parameters="all"),
        job(endpoints="both"),
        job(subspace_rank=3),
    ]
    assert len({one.name, *(other.name for other in others)}) == 9
    # What has no effect on the result does not count either.
    assert one.name == job(keep_points=True).name
    assert others[3].name == job(method="full", subspace_rank=3).name
    assert (
        one.victim_name
        == job(method="full", reconstruction_seed=3).victim_name
        != others[0].victim_name
    )
    # Written down: a change of these renames every result that people have.
    assert one.name == "ecb4e7d1fd42364e"
    assert one.victim_name == "46018e08049f24c9"


@given(
    dataset=st.sampled_from(["synthetic", "photos", "some/path.npz"]),
    n=st.integers(1, 1000),
    width=st.integers(1, 10**6),
    noise=st.floats(0, 1e6),
    learning_rate=st.none() | st.floats(1e-9, 1.0),
    depth=st.integers(2, 9),
    bias=st.booleans(),
    training_seed=st.integers(0, 2**32 - 1),
    method=st.sampled_from(["full", "subspace", "true"]),
    solver=st.sampled_from(["auto", "lm", "gd"]),
    subspace_rank=st.sampled_from(["auto", "known"]) | st.integers(1, 99),
    iterations=st.none() | st.integers(1, 10**5),
    reconstruction_seed=st.integers(0, 2**32 - 1),
    keep_points=st.booleans(),
)
def test_a_job_is_its_columns(**options: object) -> None:
    one = Job.of(options)
    assert tuple(one.columns()) == tuple(column_kinds())
    assert options.items() <= one.columns().items()
    assert one.columns()["attack"] == ("exact" if options["solver"] == "auto" else "projection")
    assert Job.of(one.columns()) == one


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_jobs_of_version_0_1_0_keep_their_names(path: Path) -> None:
    """Most rows of the studies' tables were made by that version: every row is the job that it was.

    Two of the tables have rows of later versions as well, and columns that 0.1.0 did not have.
    """
    with path.open(newline="") as stream:
        header = next(csv.reader(stream))
    options = [name for name in header if name in column_kinds()]
    assert ("group_seconds" in header) == ("attack" not in header)
    rows = read_table(path)
    assert rows
    for row in rows:
        one = Job.of({name: row[name] for name in options})
        assert one.name == row["job"]
        # What such a table does not say is what it was at the time.
        assert one.columns() == {name: row[name] for name in column_kinds()}


def test_the_attack_gets_of_the_data_what_its_method_says() -> None:
    U = torch.eye(5, dtype=torch.float64)[:, :3]
    assert isinstance(job(method="full").attack(U).space, FullSpace)
    assert job(subspace_rank="known").attack(U).space == Subspace(rank=3)
    assert job(subspace_rank=2).attack(U).space == Subspace(rank=2)
    assert job().attack(U).space == Subspace()
    true = job(method="true").attack(U).space
    assert isinstance(true, Basis)
    assert true.U is U
    assert job(rounds=3, iterations=7).attack(U) == Exact(rounds=3, iterations=7)
    descent = job(solver="gd", step=3, iterations=7).attack(U)
    assert descent == Projection(solver=GradientDescent(step_size=3.0, iterations=7))


def test_an_attack_is_written_in_one_way() -> None:
    assert job(attack="exact") == job(attack="auto") == job(solver="auto") == job()
    assert job(attack="projection") == job(solver="gd")
    assert job(attack="projection", solver="lm") == job(solver="lm")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "expected width between"),
        ({"width": 2.5}, "width to be a whole number"),
        ({"width": True}, "width to be a whole number"),
        ({"width": "many"}, "width to be a whole number"),
        ({"bias": 1}, "bias to be true or false"),
        ({"method": "best"}, "expected method full, subspace or true"),
        ({"solver": "adam"}, "expected solver auto, gd or lm"),
        ({"endpoints": "all"}, "expected endpoints auto, final, initial, both or path"),
        (
            {"subspace_rank": "large"},
            "expected subspace_rank to be auto or known or a whole number",
        ),
        ({"step": 20.0}, "expected step with solver gd, got it with attack exact"),
        ({"solver": "lm", "step": 20.0}, "--step with --solver gd, got it with --solver lm"),
        ({"momentum": 0.5}, "expected momentum with solver gd"),
        ({"gram": "cg"}, "expected gram with attack projection, got it with attack exact"),
        ({"attack_dtype": "float64"}, "expected attack_dtype with attack projection"),
        ({"solver": "gd", "rounds": 3}, "expected rounds with attack exact"),
        ({"attack": "exact", "solver": "gd"}, "expected solver auto with attack exact"),
        ({"attack": "projection", "solver": "auto"}, "expected solver gd or lm"),
        ({"attack": "exakt"}, "expected --attack exact, projection or package.module:name"),
        ({"attack": 3}, "expected attack to be text"),
        # Options whose names in a plan are not those of the command line are called by the former.
        ({"attack_tolerance": -1.0}, "expected attack_tolerance of at least 0"),
        ({"solver": "gd", "attack_dtype": "float16"}, "expected attack_dtype auto, float32 or"),
        ({"solver": "gd", "step": -1}, "step"),
        ({"solver": "gd", "iterations": 0}, "iterations"),
        ({"noise": float("nan")}, "noise"),
        ({"training_seed": -1}, "expected training_seed between"),
        (
            {"reconstruction_seed": 2**32},
            "expected reconstruction_seed between .*, got 4294967296;",
        ),
        ({"activation": "swoosh"}, "activation"),
        ({"dtype": "float16"}, "dtype float32 or float64"),
        ({"restarts": 0}, "restarts"),
        ({"widht": 60}, "check the name"),
        ({"width": 10**400}, "400 digits|401 digits"),
        ({"noise": 10**400}, "digits"),
        ({"restarts": 10**9}, "restarts"),
        ({"depth": 1}, "depth"),
        ({"rank": 61}, "rank of at most --dim 60, got 61"),
        ({"parameters": "banana"}, "choose from those"),
        ({"victim": "rf"}, "method full or true"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    change: dict[str, object], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        expand({"grid": [{**SMALL, **change}]})


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"grid": []},
        {"grid": [3]},
        {"grid": {"width": 3}},
        {"common": SMALL},
        {"grid": [SMALL], "grids": []},
        {"common": 3, "grid": [SMALL]},
        {"grid": [{**SMALL, "width": []}]},
        {
            "grid": [
                {**SMALL, "width": list(range(1, 1000)), "reconstruction_seed": list(range(1000))}
            ]
        },
    ],
)
def test_bad_plans_are_refused(content: dict[str, object]) -> None:
    with pytest.raises(FileError, match="expected"):
        expand(content)


def test_a_plan_needs_what_has_no_default() -> None:
    with pytest.raises(OptionError, match="expected width to be given"):
        expand({"grid": [{"dataset": "synthetic", "n": 3}]})


@pytest.mark.parametrize(
    "content",
    [
        *(b"[[grid", b"\xff\xfe", b"", b"a = 1", b"a = " + b"9" * 1900),
        b"a." * 50_000 + b"a = 1",  # would take twenty gigabytes
        b"#\n" * 200_000,
        b'"\\u001b[2J" = 1',
    ],
)
def test_bad_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_bytes(content)
    with pytest.raises(FileError, match="expected") as error:
        read_plan(tmp_path / "plan.toml")
    assert str(error.value).isprintable()
    with pytest.raises(FileError, match="check the path"):
        read_plan(tmp_path / "none.toml")


def test_absurd_numbers_are_refused_too() -> None:
    with pytest.raises(OptionError, match="hundreds of digits"):
        Recipe(dataset="synthetic", n=10**400, width=10)
    assert not is_of(
        Recipe(dataset="synthetic", n=5, width=10),
        {"dataset": "synthetic", "n": -(10**400), "width": 10},
    )


def test_a_recipe_is_replaced_not_changed() -> None:
    recipe = Recipe(dataset="synthetic", n=5, width=10)
    assert replace(recipe, width=11) != recipe
