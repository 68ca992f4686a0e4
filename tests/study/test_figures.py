"""Figures and claims: drawn and judged from made-up tables whose answer is known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from recollect.cli import main
from recollect.errors import OptionError
from recollect.study import catalogue
from recollect.study.claims import (
    CLAIMS,
    CONFIRMED,
    OPEN,
    QUALIFIED,
    REFUTED,
    judge_claims,
    markdown,
)
from recollect.study.figures import LINES, line_of, spectral_decay
from recollect.study.job import Job, column_kinds
from recollect.study.plan import read_plan
from recollect.study.store import RESULTS
from recollect.study.table import SECONDS, Row, csv_bytes

METHODS = (("full", "gd"), ("subspace", "gd"), ("true", "gd"), ("subspace", "auto"))


def row(rho: float, **columns: Any) -> Row:
    known = {name: columns.pop(name) for name in list(columns) if name in (*RESULTS, *SECONDS)}
    job = Job.of(
        {"dataset": "synthetic", "n": 100, "width": 100, "subspace_rank": "auto", **columns}
    )
    made: Row = {"job": job.name, **job.columns(), **dict.fromkeys((*RESULTS, *SECONDS))}
    made |= dict.fromkeys(("rho", "rho_up_to_sign", "rho_closest"), rho)
    made |= {
        "chance_span": 1.0,
        "chance_span_up_to_sign": 0.8,
        "chance_other_points": 1.0,
        "attack_seconds": 1.0,
    }
    return {
        **made,
        "outputs": 1 if job.recipe.dataset == "synthetic" else 10,
        "gap_rank": 30,
        **known,
    }


def table(rho: Any, **grid: list[Any]) -> list[Row]:
    """A row for each method, seed and value of the grid; `rho` says what each scored."""
    rows = []
    for (method, solver), *values in itertools.product(METHODS, *grid.values()):
        options = dict(zip(grid, values, strict=True))
        for seed in (0, 1):
            columns = {"method": method, "solver": solver, "reconstruction_seed": seed, **options}
            rows.append(row(rho(method, solver, **options), **columns))
    return rows


WIDTHS = [1000, 2000, 4000, 8000]


def paper_like(method: str, solver: str, width: int, **_: Any) -> float:
    """Full space is where the subspace methods are at half the width."""
    effective = width / 2 if method == "full" else width
    return 0.01 if solver == "auto" else min(1.0, 1000 / effective)


def verdict(sentence: str, rows: list[Row]) -> str:
    return next(found.verdict for claim, found in judge_claims(rows) if sentence in claim.sentence)


def test_the_claims_on_synthetic_data() -> None:
    rows = table(paper_like, width=WIDTHS, training_seed=[0, 1])
    assert verdict("shows the 30-dimensional", rows) == CONFIRMED
    assert verdict("as well as with the true", rows) == CONFIRMED
    assert verdict("better than full space", rows) in (CONFIRMED, QUALIFIED)
    assert verdict("about half the width", rows) == CONFIRMED
    wrong = [{**one, "gap_rank": 29} for one in rows]
    assert verdict("shows the 30-dimensional", wrong) == REFUTED
    some = [{**one, "gap_rank": 29 if one["width"] == 1000 else 30} for one in rows]
    assert verdict("shows the 30-dimensional", some) == QUALIFIED
    worse = table(lambda m, s, width: 0.9 if m == "subspace" and s == "gd" else 0.2, width=WIDTHS)
    assert verdict("as well as with the true", worse) == REFUTED
    assert verdict("better than full space", worse) == REFUTED
    equal = table(lambda m, s, width: 1000 / width, width=WIDTHS)
    assert verdict("about half the width", equal) == REFUTED
    never = table(lambda m, s, width: 0.99, width=WIDTHS)
    assert verdict("about half the width", never) == REFUTED
    single = table(paper_like, width=[1000])
    assert verdict("about half the width", single) == OPEN
    stuck = table(lambda m, s, width: 0.99 if m == "full" else 1000 / width, width=WIDTHS)
    assert verdict("about half the width", stuck) == QUALIFIED
    gone = [{**one, "rho": None} for one in rows]
    assert verdict("better than full space", gone) == OPEN
    small = table(lambda m, s, width: 0.045 if m == "true" else 0.001, width=WIDTHS)
    assert verdict("as well as with the true", small) == REFUTED
    other = [{**one, "n": 20} for one in rows]  # of another size: not the paper's data
    assert verdict("about half the width", other) == OPEN


def test_the_claims_on_images() -> None:
    def rho(method: str, solver: str, width: int, parameters: str, **_: Any) -> float:
        if parameters == "all":
            return 0.3
        return min(1.0, 500 / width)

    rows = table(
        rho, dataset=["cifar10"], n=[100], width=WIDTHS, depth=[2, 3, 5], parameters=["last", "all"]
    )
    slow = [{**one, "attack_seconds": 5.0} if one["parameters"] == "all" else one for one in rows]
    assert verdict("improve as the network", rows) == CONFIRMED
    assert verdict("Five-layer", rows) == CONFIRMED
    # Where two layers only guess, five layers that guess say nothing about depth.
    chance = rows[0]["chance_span"]
    last = [one for one in rows if one["parameters"] == "last"]
    guessed = [{**one, "job": one["job"] + "g", "n": 10, "rho": chance} for one in last]
    assert verdict("Five-layer", guessed) == OPEN
    assert verdict("Five-layer", [*rows, *guessed]) == CONFIRMED
    assert verdict("moderate widths", rows) == CONFIRMED
    # Times of a GPU and of a CPU do not compare.
    apart = [{**one, "device": "cuda"} if one["parameters"] == "all" else one for one in slow]
    assert verdict("considerably faster", apart) == OPEN
    assert verdict("considerably faster", rows) == REFUTED
    assert verdict("considerably faster", slow) == CONFIRMED
    assert verdict("as any method on all", rows) == CONFIRMED
    assert verdict("recognisable", rows) == CONFIRMED
    flat = [{**one, "rho": 0.9, "rho_closest": 0.9} for one in rows]
    assert verdict("improve as the network", flat) == REFUTED
    assert verdict("Five-layer", flat) == OPEN
    lost = [{**one, "rho": 0.9} if one["depth"] == 5 else one for one in rows]
    assert verdict("Five-layer", lost) == REFUTED
    assert verdict("recognisable", flat) == REFUTED
    assert verdict("recognisable", [one for one in flat if one["parameters"] == "last"]) == OPEN
    good = [{**one, "rho_closest": 0.1} for one in rows if one["parameters"] == "last"]
    assert verdict("recognisable", good) == CONFIRMED
    assert verdict("recognisable", [one for one in rows if one["solver"] == "auto"]) == OPEN


def test_the_claims_of_the_appendix() -> None:
    def rho(method: str, solver: str, width: int, parameters: str, dataset: str) -> float:
        return 0.9 if dataset == "synthetic" and parameters == "all" and method == "full" else 0.3

    grid: dict[str, list[Any]] = {"width": [1000, 2000], "parameters": ["last", "all"]}
    cifar = [
        {**one, "n": 10} for one in table(lambda *a, **k: rho(*a, **k), dataset=["cifar10"], **grid)
    ]
    rows = [*cifar, *table(lambda *a, **k: rho(*a, **k), dataset=["synthetic"], **grid)]
    assert verdict("with the last layer and with both", rows) == CONFIRMED
    assert verdict("and not on synthetic", rows) == CONFIRMED
    # Half of a claim confirms no more than half of it.
    assert verdict("and not on synthetic", cifar) == QUALIFIED
    assert verdict("with the last layer and with both", cifar) == QUALIFIED
    alike = [{**one, "rho": 0.3} for one in rows]
    assert verdict("and not on synthetic", alike) == QUALIFIED
    # Where nothing is found, nothing is compared.
    failed = [
        {**one, "rho": 0.95 * one["chance_span"]} if one["dataset"] == "synthetic" else one
        for one in rows
    ]
    assert verdict("with the last layer and with both", failed) == QUALIFIED
    assert verdict("and not on synthetic", failed) == QUALIFIED
    assert (
        verdict("and not on synthetic", [one for one in failed if one["dataset"] == "synthetic"])
        == OPEN
    )


def test_what_was_not_run_is_not_judged_and_a_page_holds_every_claim() -> None:
    nothing = [row(0.5, dataset="photos", n=10)]
    assert {found.verdict for _, found in judge_claims(nothing)} == {OPEN}
    page = markdown(judge_claims(table(paper_like, width=WIDTHS)), 32, ["t.csv"])
    lines = [line for line in page.splitlines() if line.startswith("| ") and "---" not in line]
    assert len(lines) == len(CLAIMS) + 1
    assert all(line.count(" | ") == 4 for line in lines)


def test_a_line_is_the_mean_and_deviation_over_seeds() -> None:
    rows = [
        row(rho, method="subspace", solver="gd", training_seed=k)
        for k, rho in enumerate((0.1, 0.2, 0.6))
    ]
    rows.append(row(9.0, method="full", solver="gd"))
    (point,) = line_of(rows, LINES[1], "rho")
    assert point.x == 100
    assert point.mean == pytest.approx(0.3)
    assert point.deviation == pytest.approx(0.2645751)
    assert point.runs == 3
    (alone,) = line_of(rows, LINES[0], "rho")
    assert (alone.mean, alone.deviation, alone.runs) == (9.0, 0.0, 1)


def test_the_size_of_images_is_ten_times_the_width() -> None:
    (point,) = line_of([row(0.1, dataset="cifar10", method="full", solver="gd")], LINES[0], "rho")
    assert point.x == 1000


@pytest.mark.parametrize("name", sorted(catalogue.DRAWINGS))
def test_every_drawing_is_a_picture_and_a_vector_image_and_the_same_each_time(name: str) -> None:
    data = {"appendix": ["cifar10", "synthetic"], "synthetic": ["synthetic"]}.get(name, ["cifar10"])
    rows = table(
        lambda m, s, **_: 0.2,
        dataset=data,
        depth=[2, 5],
        parameters=["last", "all"],
        width=[50, 99],
    )
    files = catalogue.DRAWINGS[name].draw(rows)
    assert set(files) == {".png", ".svg", "-up-to-sign.png", "-up-to-sign.svg"}
    assert files[".png"].startswith(b"\x89PNG")
    text = files[".svg"].decode()
    for label in ("Full space", "True subspace", "auto", "guessing in the span", "mean and std"):
        assert label in text
    assert ("not run" in text) == any(
        panel.where.get("depth") == 3 for panel in catalogue.DRAWINGS[name].panels
    )
    assert catalogue.DRAWINGS[name].draw(rows) == files


def test_runs_of_two_studies_do_not_become_one_mean_and_none_counts_twice() -> None:
    rows = table(lambda m, s, **_: 0.2, dataset=["cifar10"], width=[50, 99])
    drawing = catalogue.DRAWINGS["n100"]
    assert drawing.draw([*rows, *rows]) == drawing.draw(rows)
    others = table(lambda m, s, **_: 0.2, dataset=["cifar10"], width=[50, 99], n=[10])
    with pytest.raises(OptionError, match="tables of one study"):
        drawing.draw([*rows, *others])
    only = [{**one, "solver": "lm"} for one in rows]
    assert b"not run" in drawing.draw(only)[".svg"]


def test_an_attack_of_ones_own_is_none_of_the_methods_that_are_compared() -> None:
    rows = table(paper_like, width=WIDTHS, training_seed=[0, 1])
    own = [
        {**row(0.9, attack="mine:Guess", method=method, width=width), "gap_rank": 29}
        for method in ("full", "subspace", "true")
        for width in WIDTHS
    ]
    assert all(line_of(own, line, "rho") == [] for line in LINES)
    for mixed in ([*rows, *own], [*own, *rows]):
        for line in LINES:
            assert line_of(mixed, line, "rho") == line_of(rows, line, "rho")
        assert verdict("better than full space", mixed) == verdict("better than full space", rows)


def test_spectra_of_one_seed_or_several() -> None:
    for count in (1, 3):
        assert spectral_decay({seed: [3.0, 1.0, 1e-15] for seed in range(count)}, 2, 10)[
            ".svg"
        ].count(b"training seed")


def test_figures_have_plans_and_plans_have_what_their_panels_show() -> None:
    for name in (*catalogue.DRAWINGS, *catalogue.PICTURES):
        for quick in (True, False):
            jobs = [
                job for plan in catalogue.plans_of(name, quick=quick) for job in read_plan(plan)
            ]
            shown = [
                {**job.columns(), "outputs": 1 if job.recipe.dataset == "synthetic" else 10}
                for job in jobs
            ]
            if name in catalogue.DRAWINGS:
                for panel in catalogue.DRAWINGS[name].panels:
                    rows = panel.rows(shown)
                    for line in LINES:
                        assert any(
                            all(one[k] == v for k, v in line.where.items()) for one in rows
                        ), (
                            name,
                            quick,
                            panel,
                        )
            else:
                assert all(job.keep_points for job in jobs)
    with pytest.raises(OptionError, match="choose one of those"):
        catalogue.check_name("fig9")


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_bytes(
        csv_bytes(table(paper_like, width=WIDTHS, training_seed=[0, 1]))
    )
    assert (
        main(
            [
                "figure",
                "synthetic",
                "--table",
                str(tmp_path / "t.csv"),
                "--out",
                str(tmp_path / "f"),
            ]
        )
        == 0
    )
    assert {path.name for path in (tmp_path / "f").iterdir()} == {
        f"synthetic{ending}" for ending in (".png", ".svg", "-up-to-sign.png", "-up-to-sign.svg")
    }
    assert (
        main(["claims", str(tmp_path / "t.csv"), "--out", str(tmp_path / "claims.md"), "--json"])
        == 0
    )
    assert "confirmed" in (tmp_path / "claims.md").read_text()
    assert main(["figure", "spectrum", "--quick", "--out", str(tmp_path / "s")]) == 0
    assert (tmp_path / "s" / "spectrum.csv").read_text().count("\n") == 61
    capsys.readouterr()
    for bad in (
        ["figure", "fig9", "--out", str(tmp_path)],
        ["figure", "grid", "--table", str(tmp_path / "t.csv"), "--out", str(tmp_path)],
        ["figure", "spectrum", "--table", str(tmp_path / "t.csv"), "--out", str(tmp_path)],
        ["claims", "--out", str(tmp_path / "c.md")],
        ["claims", str(tmp_path / "none.csv"), "--out", str(tmp_path / "c.md")],
    ):
        assert main(bad) == 2
        assert "expected" in capsys.readouterr().err


def test_figures_from_the_folder_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def plan(dataset: str, more: str) -> Path:
        path = tmp_path / f"{dataset}.toml"
        path.write_text(
            f'[[grid]]\ndataset = "{dataset}"\nn = 10\nwidth = [20, 30]\ndtype = "float64"\n'
            f'tolerance = 1e-3\nsolver = "gd"\niterations = 3\n{more}'
        )
        return path

    shown = plan("digits", "keep_points = true")
    monkeypatch.setattr(catalogue, "plans_of", lambda name, quick: (shown,))
    part = tmp_path / "part.toml"
    part.write_text(shown.read_text().replace("[20, 30]", "30"))
    runs = tmp_path / "runs"
    figure = ["figure", "images", "--out", str(tmp_path / "f")]
    assert main([*figure, "--runs", str(runs)]) == 2
    assert "got none; run `recollect sweep` first" in capsys.readouterr().err
    assert main(["sweep", str(part), "--out", str(runs), "--device", "cpu", "--workers", "1"]) == 0
    before = sorted(runs.rglob("*"))
    assert main([*figure, "--runs", str(runs)]) == 0
    svg = (tmp_path / "f" / "images.svg").read_text()
    assert ("p = 30" in svg, "p = 20" in svg) == (True, False)  # what is there, and nothing is run
    assert sorted(runs.rglob("*")) == before
    assert main(["figure", "n100", "--runs", str(runs), "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "n100.csv").read_text().count("\n") == 2
    part.write_text(
        shown.read_text().replace("iterations = 3", "iterations = 2")
    )  # of another study
    assert main(["sweep", str(part), "--out", str(runs), "--device", "cpu", "--workers", "1"]) == 0
    assert main(["figure", "n100", "--runs", str(runs), "--out", str(tmp_path / "f")]) == 0
    assert (tmp_path / "f" / "n100.csv").read_text().count("\n") == 2
    for bad in (
        ["figure", "spectrum"],
        ["figure", "n100", "--table", str(tmp_path / "f" / "n100.csv")],
    ):
        assert main([*bad, "--out", str(tmp_path), "--runs", str(runs)]) == 2
        assert "expected no --runs" in capsys.readouterr().err


def test_columns_do_not_hide_one_another() -> None:
    names = ["job", *column_kinds(), *RESULTS, *SECONDS]
    assert len(set(names)) == len(names)
