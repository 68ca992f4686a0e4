"""The audit: null victims, what is called, the verdict, the command."""

from __future__ import annotations

import hashlib
import inspect as inspect_module
import json
import math
import runpy
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect import Exact, Reconstruction, Status, Withheld, audit, reconstruct
from recollect.attacks.problem import Problem
from recollect.auditing.attempt import Setting
from recollect.auditing.forecast import outlook
from recollect.auditing.nulls import ALL_NULLS, NULLS, shuffled
from recollect.auditing.options import AuditOptions
from recollect.auditing.run import run_audit
from recollect.auditing.trying import attempt_at
from recollect.auditing.verdict import Verdict, called, caveats, judge, judge_by_truth
from recollect.cli import main
from recollect.errors import OptionError
from recollect.examine.history import History
from recollect.examine.inspection import inspect
from recollect.examine.subspace import spectrum
from recollect.objective.endpoints import Endpoints
from recollect.options import schema
from recollect.shapes import Tensor
from recollect.system.device import Machine, memory_limit, total_memory
from recollect.system.progress import quiet
from recollect.truth.metrics import evaluate
from recollect.truth.recipe import Recipe
from recollect.victim.options import NetworkOptions
from recollect.victim.read.infer import infer_network
from recollect.victim.victim import Victim

CPU = torch.device("cpu")
EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_pytorch.py"


@cache
def easy() -> tuple[Victim, Tensor]:
    recipe = Recipe(dataset="digits", n=6, width=300, dtype="float64")
    data = recipe.data()
    return recipe.make(data, CPU).victim, data.inputs


@cache
def tiny() -> tuple[Victim, Tensor]:
    """A victim on which an attack ends soon even where there is nothing to find."""
    recipe = Recipe(dataset="synthetic", n=3, dim=6, rank=3, width=30, dtype="float64")
    data = recipe.data()
    return recipe.make(data, CPU).victim, data.inputs


@pytest.mark.parametrize("name", ALL_NULLS)
def test_null_victims_have_the_sizes_and_nothing_of_the_data(name: str) -> None:
    victim, _ = easy()
    null = ALL_NULLS[name](victim, 0)
    again = ALL_NULLS[name](victim, 0)
    other = ALL_NULLS[name](victim, 1)
    assert null.theta_0 is not None
    assert victim.theta_0 is not None
    names = victim.network.trained
    for one in names:
        assert null.delta(names)[one].shape == victim.delta(names)[one].shape
        assert torch.equal(null.delta(names)[one], again.delta(names)[one])
        assert not torch.equal(null.delta(names)[one], other.delta(names)[one])
    if name in ("shuffled", "paired"):
        kept, mine = (spectrum(one).singular_values for one in (victim, null))
        assert torch.allclose(kept[:6], mine[:6], rtol=1e-6)
    if name != "wrong start":
        for one in names:
            assert float(null.delta(names)[one].norm()) == pytest.approx(
                float(victim.delta(names)[one].norm())
            )


def test_a_paired_null_moves_rows_and_columns_of_the_same_units() -> None:
    victim, _ = easy()
    null = NULLS["paired"](victim, 0)
    first, last = victim.network.trained
    mine, moved = victim.delta((first, last)), null.delta((first, last))
    order = torch.cdist(moved[first], mine[first]).argmin(1)
    assert not torch.equal(order, torch.arange(300))
    assert torch.allclose(moved[first], mine[first][order])
    assert torch.allclose(moved[last], mine[last][:, order])


def test_one_entry_of_each_layer_meets_the_others_in_one_unit() -> None:
    victim, _ = easy()
    null = ALL_NULLS["one entry"](victim, 0)
    first, last = null.delta(victim.network.trained).values()
    assert first.count_nonzero() == last.count_nonzero() == 1
    assert torch.equal(first.any(1), last.any(0))


def test_an_easy_victim_is_exposed_and_a_null_victim_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {"shuffled": shuffled})
    recipe = Recipe(dataset="synthetic", n=4, dim=8, rank=4, width=80, dtype="float64")
    data = recipe.data()
    victim, inputs = recipe.make(data, CPU).victim, data.inputs
    done = run_audit(victim, budget=120.0, device="cpu")
    assert done.verdict is Verdict.EXPOSED
    assert done.best is not None
    assert done.best.found is not None
    assert len(done.best.found.inputs) == 4
    assert evaluate(done.best.found, inputs).recovered == 1
    assert done.false_alarm_test
    assert done.null_points == 4
    assert done.null_called == 0
    assert len(done.attempts) == 2  # one found the points, and one confirmed them


def test_where_training_biases_what_is_found_no_point_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take time, and are tested above
    victim, _ = easy()
    assert victim.theta_0 is not None
    before = {
        name: 10 * value for name, value in victim.theta_0.items()
    }  # as if nine tenths had decayed
    decayed = Victim(victim.network, before, victim.theta_f)
    done = run_audit(decayed, 6, budget=20.0, device="cpu", past=History(0.9, ()))
    assert done.best is not None
    assert done.best.called == 0
    assert done.best.likely == 6
    assert done.verdict is Verdict.PARTLY
    assert len(done.attempts) == 2  # nothing is to be gained by more


def test_in_networks_that_are_no_mlps_no_point_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take time, and are tested above
    victim, _ = easy()
    module = torch.nn.Sequential(
        torch.nn.Linear(64, 300, bias=False), torch.nn.ReLU(), torch.nn.Linear(300, 10, bias=False)
    )
    names = dict(zip(victim.network.trained, ("0.weight", "2.weight"), strict=True))
    assert victim.theta_0 is not None
    theta_0, theta_f = (
        {names[name]: theta[name].double() for name in names}
        for theta in (victim.theta_0, victim.theta_f)
    )
    same = Victim(module, theta_0, theta_f)
    done = run_audit(same, 6, budget=20.0, device="cpu")
    assert done.best is not None
    assert done.best.called == 0
    assert done.verdict is Verdict.PARTLY
    assert "not a plain MLP" in caveats(same)[0].seen
    assert caveats(victim) == []


def test_an_activation_that_nobody_said_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take time, and are tested above
    recipe = Recipe(dataset="digits", n=6, width=400, dtype="float64", activation="tanh", bias=True)
    data = recipe.data()
    victim = recipe.make(data, CPU).victim
    assert victim.theta_0 is not None
    bare = Victim(infer_network(victim.theta_f), victim.theta_0, victim.theta_f)
    assert "relu (assumed)" in bare.describe()
    assert "activation" in caveats(bare)[0].seen
    done = run_audit(bare, budget=600.0, device="cpu")
    assert done.verdict is Verdict.EXPOSED
    assert done.best is not None
    assert done.best.found is not None
    assert "tanh" in done.best.setting.victim.describe()
    assert "tanh" in done.inspection.description
    assert evaluate(done.best.found, data.inputs).recovered == 1
    said = Victim(infer_network(victim.theta_f, "relu"), victim.theta_0, victim.theta_f)
    assert not any(
        "instead of" in one.setting.name
        for one in run_audit(said, 6, budget=6.0, device="cpu").attempts
    )


def test_nothing_is_called_of_an_attack_that_was_cut_off() -> None:
    victim, _ = easy()
    setting = Setting("last layer", victim, Exact(), 6, 0)
    whole = attempt_at(setting, CPU, quiet, math.inf)
    assert (whole.called, whole.likely) == (6, 6)
    assert whole.found is not None
    assert whole.found.withheld == ()
    cut = attempt_at(setting, CPU, quiet, time.monotonic() - 1)
    assert cut.found is not None
    assert cut.found.status is Status.TIME
    assert [one.points for one in cut.found.withheld] == [tuple(range(6))]
    # However high confidence is, and it stays what was measured, nothing is called.
    sure = replace(cut.found, confidence=torch.ones(6, dtype=torch.float64))
    assert replace(cut, found=sure).called == 0
    assert replace(cut, found=sure).likely == 0


def test_points_are_withheld_one_by_one() -> None:
    victim, _ = easy()
    found = reconstruct(victim, 6, device="cpu")
    some = replace(found, withheld=(Withheld((0, 3), "for a test"),))
    assert called(found).tolist() == [True] * 6
    assert called(some).tolist() == [False, True, True, False, True, True]


def test_a_start_of_another_run_cannot_be_judged() -> None:
    victim, _ = easy()
    assert victim.theta_0 is not None
    generator = torch.Generator().manual_seed(1)
    other = {
        name: value.std() * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in victim.theta_0.items()
    }
    done = run_audit(Victim(victim.network, other, victim.theta_f), 6, budget=5.0, device="cpu")
    assert not done.past.fits
    assert done.verdict is Verdict.UNKNOWN


def test_a_null_victim_is_not_exposed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take time, and are tested above
    null = shuffled(tiny()[0], 0)
    assert run_audit(null, 3, budget=20.0, device="cpu").verdict is Verdict.UNKNOWN
    # As if the files did not show that no training made this change:
    done = run_audit(null, 3, budget=20.0, device="cpu", past=History(0.0, ()))
    assert done.verdict is Verdict.NOT_FOUND
    assert {attempt.setting.name.partition(",")[0] for attempt in done.attempts} == {
        "last layer",
        "all layers",
    }


def test_the_budget_is_kept() -> None:
    victim, _ = easy()
    began = time.monotonic()
    done = run_audit(shuffled(victim, 0), 6, budget=3.0, device="cpu")
    assert time.monotonic() - began < 10
    assert done.verdict in (Verdict.NOT_FOUND, Verdict.UNKNOWN)
    with pytest.raises(OptionError, match="budget"):
        run_audit(victim, budget=0.0)


@given(n=st.integers(1, 200), share=st.floats(0, 1), nulls=st.integers(0, 300))
def test_a_verdict_never_gets_milder_with_more_points_called(
    n: int, share: float, nulls: int
) -> None:
    order = [Verdict.NOT_FOUND, Verdict.PARTLY, Verdict.EXPOSED]
    recovered = int(share * n)
    verdicts = [judge(k, n, 0, nulls) for k in range(recovered, n + 1)]
    assert [order.index(one) for one in verdicts] == sorted(order.index(one) for one in verdicts)
    assert judge(n, n) is Verdict.EXPOSED
    assert judge(0, n) is Verdict.NOT_FOUND


def test_what_null_victims_show_as_well_is_no_evidence() -> None:
    assert judge(10, 10, null_called=3, null_points=30) is Verdict.UNKNOWN
    assert judge(1, 1, null_called=1, null_points=3) is Verdict.UNKNOWN
    assert judge(10, 10, null_called=1, null_points=60) is Verdict.EXPOSED  # as many as are false
    assert judge(1, 100) is Verdict.NOT_FOUND  # one in a hundred is called by chance
    assert judge(3, 100) is Verdict.PARTLY


def test_many_points_that_null_victims_do_not_have_are_evidence_without_a_call() -> None:
    assert judge(0, 20, likely=17) is Verdict.PARTLY
    assert judge(0, 20, likely=1) is Verdict.NOT_FOUND
    assert (
        judge(0, 20, 0, 60, likely=5, null_likely=12) is Verdict.NOT_FOUND
    )  # null victims have them too
    assert judge(12, 20, likely=20) is Verdict.EXPOSED


def test_the_truth_needs_no_chance() -> None:
    assert judge_by_truth(1, 200, 0.0) is Verdict.PARTLY
    assert judge_by_truth(100, 200, 0.0) is Verdict.EXPOSED
    assert judge_by_truth(0, 200, 0.0) is Verdict.NOT_FOUND
    assert judge_by_truth(3, 10, 4.0) is Verdict.NOT_FOUND  # guessing does better


class Page(HTMLParser):
    """What a reader and a browser would look for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.images: list[dict[str, str | None]] = []
        self.foreign: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.scripts += tag == "script"
        if tag == "img":
            self.images.append(given)
        self.foreign += [
            value for value in (given.get("src"), given.get("href")) if value and "//" in value
        ]


@cache
def plain(folder: Path) -> Path:
    """The example, run as its own process: it must not need this package."""
    source = EXAMPLE.read_text()
    assert "import recollect" not in source
    assert "from recollect" not in source
    subprocess.run([sys.executable, str(EXAMPLE), str(folder)], check=True, capture_output=True)
    return folder


def test_a_model_of_plain_pytorch_gives_its_images_back(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = plain(tmp_path_factory.mktemp("plain"))
    out = folder / "audit"
    files = [str(folder / "init.pt"), str(folder / "trained.pt")]
    options = ["--out", str(out), "--n", "20", "--budget", "40s", "--device", "cpu", "--json"]
    assert main(["audit", *files, *options]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "exposed"
    assert (answer["n"], answer["recovered"]) == (20, 1.0)
    assert json.loads((out / "audit.json").read_text())["verdict"] == "exposed"
    page = Page((out / "report.html").read_text())
    assert len(page.images) == 20
    assert all(image["alt"] for image in page.images)
    assert not page.scripts
    assert all(one.startswith("data:") for one in page.foreign)
    files_said = {file["name"]: file["sha256"] for file in answer["files"]}
    assert files_said["init.pt"] == hashlib.sha256((folder / "init.pt").read_bytes()).hexdigest()
    assert files_said["init.pt"] in (out / "report.html").read_text()
    before = (out / "report.html").read_bytes()
    assert main(["report", str(out)]) == 2  # it would replace this one
    assert (out / "report.html").read_bytes() == before
    capsys.readouterr()
    truth = np.load(folder / "inputs.npz")["inputs"]
    assert main(["evaluate", str(out), "--truth", str(folder / "inputs.npz"), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)
    assert score["rho"] < 0.02
    assert len(score["errors"]) == len(truth)


def test_what_stops_an_audit_is_said_all_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(
        {"lora_A.weight": torch.ones(2, 2), "b": torch.full((2, 2), torch.nan)}, tmp_path / "a.pt"
    )
    torch.save({"lora_A.weight": torch.ones(2, 2)}, tmp_path / "b.pt")
    arguments = [
        str(tmp_path / "a.pt"),
        str(tmp_path / "b.pt"),
        "--out",
        str(tmp_path / "out"),
        "--json",
    ]
    assert main(["audit", *arguments]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["verdict"] == "cannot be judged"
    text = json.dumps(answer["findings"], ensure_ascii=False)
    assert all(word in text for word in ("LoRA", "NaN", "only before training"))
    page = (tmp_path / "out" / "report.html").read_text()
    assert "LoRA" in page
    assert "Cannot be judged" in page


def test_signs_that_are_open_are_open_to_the_truth_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = Recipe(dataset="digits", n=6, width=400, dtype="float64", activation="tanh")
    data = recipe.data()
    victim = recipe.make(data, CPU).victim
    assert victim.theta_0 is not None
    torch.save(victim.theta_0, tmp_path / "init.pt")
    torch.save(victim.theta_f, tmp_path / "trained.pt")
    np.savez(tmp_path / "truth.npz", inputs=data.inputs.numpy())
    files = [str(tmp_path / name) for name in ("init.pt", "trained.pt")]
    options = [
        "--out",
        str(tmp_path / "out"),
        "--truth",
        str(tmp_path / "truth.npz"),
        "--n",
        "6",
        "--budget",
        "40s",
    ]
    assert (
        main(["audit", *files, *options, "--activation", "tanh", "--device", "cpu", "--json"]) == 0
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["up_to_sign"]
    assert answer["verdict"] == "exposed"
    assert answer["recovered"] == 1
    assert answer["called_right"] == sum(answer["called"]) == 6
    assert "6 of them are" in (tmp_path / "out" / "report.html").read_text()


def test_nothing_of_an_earlier_audit_is_left_beside_one_that_found_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"lora_A.weight": torch.ones(2, 2)}, tmp_path / "a.pt")
    out = tmp_path / "out"
    out.mkdir()
    points, record = out / "reconstruction.safetensors", out / "reconstruct.json"
    points.write_bytes(b"old")
    record.write_text('{"options": {"audit": "last layer"}}')
    audited = ["audit", str(tmp_path / "a.pt"), str(tmp_path / "a.pt"), "--out", str(out)]
    assert main([*audited, "--n", "0"]) == 2
    assert points.exists()
    assert main(audited) == 2
    assert not points.exists()
    assert not record.exists()


def test_an_optimiser_saved_beside_the_weights_is_no_proof_of_safety(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take time, and are tested above
    nothing = Reconstruction(
        inputs=torch.ones(3, 6).double(),
        loss=0.5,
        status=Status.STATIONARY,
        confidence=torch.zeros(3).double(),
    )
    monkeypatch.setattr("recollect.auditing.trying.reconstruct", lambda *given, **more: nothing)
    victim, _ = tiny()
    assert victim.theta_0 is not None
    null = shuffled(victim, 0)  # in which nothing is found
    adam = {"state": {0: {"exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}}}
    verdicts = []
    for name, beside in (("plain", {}), ("adam", {"optimizer": adam})):
        torch.save({"model": dict(victim.theta_0)}, tmp_path / "init.pt")
        torch.save({"model": dict(null.theta_f), **beside}, tmp_path / f"{name}.pt")
        files = [str(tmp_path / "init.pt"), str(tmp_path / f"{name}.pt")]
        options = [
            "--out",
            str(tmp_path / name),
            "--n",
            "3",
            "--budget",
            "10s",
            "--activation",
            "tanh",
            "--json",
        ]
        assert main(["audit", *files, *options, "--device", "cpu"]) == 0
        verdicts.append(json.loads(capsys.readouterr().out)["verdict"])
    assert verdicts == ["not exposed within budget", "cannot be judged"]


def test_files_that_cannot_be_read_are_bad_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "b.pt").write_bytes(b"nothing")
    assert (
        main(
            [
                "audit",
                str(tmp_path / "a.pt"),
                str(tmp_path / "b.pt"),
                "--out",
                str(tmp_path / "out"),
            ]
        )
        == 2
    )
    error = capsys.readouterr().err
    assert "a.pt" in error
    assert "b.pt" in error
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert facts["verdict"] == "cannot be judged"
    assert "a.pt" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("budget", ["", "soon", "-3m", "0s", "1d"])
def test_budgets_that_are_no_times(
    budget: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["audit", "a.pt", "b.pt", "--out", str(tmp_path / "out"), f"--budget={budget}"]) == 2
    )
    assert "10m" in capsys.readouterr().err


def test_truth_of_another_model_is_refused_before_time_is_spent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, _ = easy()
    assert victim.theta_0 is not None
    torch.save(victim.theta_0, tmp_path / "init.pt")
    torch.save(victim.theta_f, tmp_path / "trained.pt")
    np.savez(tmp_path / "other.npz", inputs=np.ones((3, 5)))
    files = [str(tmp_path / name) for name in ("init.pt", "trained.pt")]
    options = ["--out", str(tmp_path / "out"), "--truth", str(tmp_path / "other.npz")]
    assert main(["audit", *files, *options]) == 2
    assert "64 dimensions" in capsys.readouterr().err


def test_the_example_is_importable_code() -> None:
    assert callable(runpy.run_path(str(EXAMPLE), run_name="example")["main"])


def test_what_cannot_be_is_not_tried_and_the_budget_is_kept() -> None:
    victim, _ = easy()
    machine = Machine(CPU, 1e11, 1e11)
    looked = inspect(victim)
    few, many = (outlook(victim, looked, n, machine) for n in (6, 3000))
    assert [one.against for one in few] == ["", ""]
    assert all("any points would do" in one.against for one in many)
    assert all(a.seconds < b.seconds and a.bytes < b.bytes for a, b in zip(few, many, strict=True))
    with memory_limit(10**6):
        assert all("1 MB may be used" in one.against for one in outlook(victim, looked, 6, machine))
    assert few[0].too_slow(1e-9)
    assert not few[0].too_slow(1e9)
    began = time.monotonic()
    done = run_audit(victim, 100_000, budget=5.0, device="cpu")  # a single step would take days
    assert time.monotonic() - began < 30
    assert done.verdict is Verdict.UNKNOWN
    assert all(attempt.ended.startswith("not tried") for attempt in done.attempts)


def test_memory_is_kept_by_smaller_paths() -> None:
    victim, inputs = easy()
    with pytest.raises(OptionError, match="memory"):
        run_audit(victim, 6, memory=0)
    with memory_limit(2**60):
        assert total_memory(CPU) < 2**60
    with memory_limit(1000):
        assert total_memory(CPU) == 1000
    whole, small = (Problem.of(victim, Exact(), CPU).last_layer(Endpoints.BOTH) for _ in range(2))
    assert whole.dense(6)
    with memory_limit(2 * small.sizes.normal_bytes(6) - 1):
        assert not small.dense(6)
        found = reconstruct(victim, 6, device="cpu")
    assert evaluate(found, inputs).recovered == 1  # the other path leads there too


def test_a_setting_that_runs_out_of_memory_does_not_end_the_audit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    victim, _ = easy()

    def starved(victim: Victim, n: int | None, attack: Exact, **options: Any) -> Reconstruction:
        if attack.parameters == "last":
            torch.empty(2**50)  # what torch raises then is no MemoryError
        return reconstruct(victim, n, attack, **options)

    monkeypatch.setattr("recollect.auditing.trying.reconstruct", starved)
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})  # which take the time that is left
    done = run_audit(victim, 6, budget=40.0, device="cpu")
    assert done.attempts[0].ended == "memory was not enough"
    assert done.verdict is Verdict.EXPOSED


def test_a_whole_audit_is_one_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, state dicts, modules and arrays give the same audit, and the command line prints the
    same facts."""
    monkeypatch.setattr("recollect.auditing.run.NULLS", {"shuffled": shuffled})
    victim, inputs = easy()
    assert victim.theta_0 is not None
    states = [
        {k: v.numpy() for k, v in theta.items()} for theta in (victim.theta_0, victim.theta_f)
    ]
    torch.save(victim.theta_0, tmp_path / "init.pt")
    torch.save(victim.theta_f, tmp_path / "trained.pt")
    files = (tmp_path / "init.pt", str(tmp_path / "trained.pt"))
    options = {"n": 6, "budget": "40s", "activation": "relu", "device": "cpu"}
    done = audit(*states, truth=inputs.numpy(), **options)
    assert done.verdict is Verdict.EXPOSED
    assert done.reconstruction is not None
    assert done.score is not None
    assert done.score.recovered == 1
    assert [run.kind for run in done.nulls] == ["shuffled"]
    assert len(done.attempts) == 2
    assert 0 < done.seconds < 40
    assert "exposed" in repr(done)
    again = audit(*files, **options)
    assert again.score is None
    assert again.reconstruction is not None
    assert torch.equal(again.reconstruction.inputs, done.reconstruction.inputs)
    facts = json.loads(json.dumps(again.facts()))
    assert facts["signs_settled"] is True
    assert facts["withheld"] == []
    assert (facts["n_source"], facts["n_clear"]) == ("given", None)
    assert [file["name"] for file in facts["files"]] == ["init.pt", "trained.pt"]
    assert (
        list(tmp_path.iterdir()) == sorted(map(Path, files)) or len(list(tmp_path.iterdir())) == 2
    )


def test_what_stops_an_audit_is_an_answer_in_python_too() -> None:
    stopped = audit(None, {"layers.0.weight": np.ones((3, 2)), "layers.1.weight": np.ones((1, 3))})
    assert stopped.verdict is Verdict.UNKNOWN
    assert stopped.stopped
    assert stopped.reconstruction is None
    assert "before training" in stopped.findings[0].seen
    with pytest.raises(OptionError, match="budget"):
        audit(None, {"a": np.ones(2)}, budget="soon")


def test_the_call_and_the_command_have_the_same_defaults() -> None:
    defaults = {
        name: one.default for name, one in inspect_module.signature(audit).parameters.items()
    }
    for options in (AuditOptions(), NetworkOptions()):
        for name in schema(type(options)):
            assert defaults[name] == getattr(options, name), name
