"""An audit in a release pipeline: inputs are kept, the exit code says the verdict, nothing that was
recovered is left where that is not wanted, and an interrupted audit leaves what it has found."""

from __future__ import annotations

import importlib
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect import Reconstruction, Status, audit, reconstruct
from recollect.auditing.nulls import shuffled
from recollect.auditing.verdict import Verdict
from recollect.cli import main
from recollect.truth.recipe import Recipe
from recollect.victim.victim import Victim

CPU = torch.device("cpu")
OUTPUTS = ("report.html", "audit.json", "reconstruction.safetensors", "reconstruct.json")


@cache
def easy() -> tuple[Victim, torch.Tensor]:
    recipe = Recipe(dataset="digits", n=6, width=300, dtype="float64")
    data = recipe.data()
    return recipe.make(data, CPU).victim, data.inputs


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The two checkpoints of a victim whose data come back at once, and null victims left out."""
    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    return saved(tmp_path, easy()[0])


def saved(folder: Path, victim: Victim) -> list[str]:
    assert victim.theta_0 is not None
    torch.save(dict(victim.theta_0), folder / "init.pt")
    torch.save(dict(victim.theta_f), folder / "trained.pt")
    return [str(folder / "init.pt"), str(folder / "trained.pt")]


FEW = ["--n", "6", "--activation", "relu", "--device", "cpu"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("name", OUTPUTS)
@pytest.mark.parametrize("which", ["init", "trained", "truth"])
@pytest.mark.parametrize("link", [None, os.symlink, os.link])
def test_inputs_are_never_written_to(
    which: str,
    name: str,
    link: Callable[[Path, Path], None] | None,
    tmp_path: Path,
    files: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    np.savez(tmp_path / "truth.npz", inputs=easy()[1].numpy())
    given = dict(zip(("init", "trained"), map(Path, files), strict=True))
    given["truth"] = tmp_path / "truth.npz"
    if link is None:
        given[which] = given[which].rename(out / name)
    else:
        link(given[which], out / name)
    before = {path: path.read_bytes() for path in given.values()}
    options = ["--out", str(out), "--truth", str(given["truth"]), *FEW]
    assert main(["audit", str(given["init"]), str(given["trained"]), *options]) == 2
    assert "--out elsewhere" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in given.values()} == before
    assert sorted(path.name for path in out.iterdir()) == [name]


@pytest.mark.parametrize("name", ["reconstruction.safetensors", "report.html", "audit.json"])
def test_results_of_another_command_are_kept(
    name: str, tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    if name == "reconstruction.safetensors":
        few = ["--n", "6", "--iterations", "3", "--rounds", "0", "--device", "cpu"]
        assert main(["reconstruct", *files, *few, "--out", str(out)]) == 0
    else:
        out.mkdir()
        (out / name).write_text("{}")
    before = {path: path.read_bytes() for path in out.iterdir()}
    capsys.readouterr()
    assert main(["audit", *files, "--out", str(out), *FEW]) == 2
    assert "another command" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_a_reconstruction_does_not_replace_the_points_of_an_audit(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["audit", *files, "--out", str(out), *FEW]) == 0
    before = {path: path.read_bytes() for path in out.iterdir()}
    assert main(["reconstruct", *files, "--n", "6", "--out", str(out)]) == 2
    assert "another --out" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in out.iterdir()} == before
    assert main(["audit", *files, "--out", str(out), *FEW]) == 0  # its own it does replace


def test_a_report_does_not_replace_the_truth(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out, truth = tmp_path / "out", tmp_path / "truth.npz"
    few = ["--n", "6", "--iterations", "3", "--rounds", "0", "--device", "cpu"]
    assert main(["reconstruct", *files, *few, "--out", str(out)]) == 0
    np.savez(truth, inputs=easy()[1].numpy())
    truth.rename(out / "report.html")
    truth.symlink_to(out / "report.html")
    before = truth.read_bytes()
    assert main(["report", str(out), "--truth", str(truth)]) == 2
    assert truth.read_bytes() == before


def test_the_exit_code_says_the_verdict(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def code(fail_on: str | None, given: list[str], name: str, *options: str) -> int:
        gate = [] if fail_on is None else ["--fail-on", fail_on]
        found = main(["audit", *given, "--out", str(tmp_path / name), *options, *gate])
        assert (tmp_path / name / "report.html").exists()
        return found

    assert code(None, files, "a", *FEW) == 0
    assert code("exposed", files, "b", *FEW) == 3
    assert code("unknown,partly", files, "c", *FEW) == 0
    facts = json.loads((tmp_path / "b" / "audit.json").read_text())
    assert (facts["verdict"], facts["options"]["fail_on"]) == ("exposed", "exposed")
    unknown = ["--n", "100000", *FEW[2:]]
    assert code("unknown", files, "d", *unknown) == 3
    assert code("exposed,partly", files, "e", *unknown) == 0
    module = ["--model", "recollect.victim.architectures:residual", "--input-shape", "1,28,28"]
    assert code(None, files, "f", *module) == 2
    assert code(None, [files[0], files[0]], "g", *FEW) == 2
    assert code("unknown", files, "h", "--model", "nowhere:make") == 2
    assert "nowhere" in (tmp_path / "h" / "report.html").read_text()
    torch.save({"0.weight": torch.ones(3, 2), "2.weight": torch.ones(1, 3)}, tmp_path / "other.pt")
    assert code(None, [files[0], str(tmp_path / "other.pt")], "i", *FEW) == 2


@pytest.mark.parametrize("words", ["", "bad", "exposed,", "exposed,none", "auto"])
def test_verdicts_that_there_are_not(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["audit", "a.pt", "b.pt", "--out", str(out), f"--fail-on={words}"]) == 2
    assert "exposed, partly, unknown" in capsys.readouterr().err
    assert not out.exists()


def test_nothing_that_was_recovered_is_left(
    tmp_path: Path, files: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "truth.npz", inputs=easy()[1].numpy())
    known = ["--truth", str(tmp_path / "truth.npz"), *FEW, "--json"]
    out, all_of_it = tmp_path / "out", tmp_path / "all"
    capsys.readouterr()
    assert main(["audit", *files, "--out", str(all_of_it), *known]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert main(["audit", *files, "--out", str(out), *known]) == 0
    assert main(["audit", *files, "--out", str(out), *known, "--no-inputs"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert sorted(path.name for path in out.iterdir()) == ["audit.json", "report.html"]
    assert (said["n"], said["recovered"], said["called_right"]) == (6, 1.0, 6)
    assert said["points_sha256"] == whole["points_sha256"]
    assert said["errors"] == whole["errors"]
    page = (out / "report.html").read_text()
    assert "base64" not in page
    assert "private data" not in page
    text = (out / "audit.json").read_text() + page + json.dumps(said)
    points = torch.cat([easy()[1].flatten(), torch.zeros(1)])
    assert not any(f"{value:.6g}" in text for value in points.tolist() if abs(value) > 1e-3)

    assert "base64" in (all_of_it / "report.html").read_text()
    assert "private data" in (all_of_it / "report.html").read_text().splitlines()[0]
    assert mode(all_of_it / "report.html") == mode(all_of_it / OUTPUTS[2]) == 0o600
    assert mode(all_of_it / "audit.json") & 0o044


def test_python_returns_no_inputs_either(files: list[str]) -> None:
    victim, inputs = easy()
    assert victim.theta_0 is not None
    options: dict[str, Any] = {"n": 6, "activation": "relu", "device": "cpu"}
    done = audit(*files, truth=inputs, no_inputs=True, **options)
    assert done.verdict is Verdict.EXPOSED
    assert done.truth is None
    assert done.record() is None
    assert done.score is not None
    assert done.score.recovered == 1
    assert done.facts()["n"] == 6
    for attempt in done.attempts:
        assert attempt.found is not None
        assert attempt.found.inputs.numel() == 0
        assert attempt.found.predictions is attempt.found.coefficients is None


def test_only_the_owner_reads_what_was_recovered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = tmp_path / "run", tmp_path / "run" / "found"
    small = ["--n", "3", "--width", "60", "--tolerance", "1e-3"]
    assert main(["train", "--dataset", "digits", *small, "--out", str(run)]) == 0
    few = ["--n", "3", "--solver", "gd", "--iterations", "5"]
    assert main(["reconstruct", str(run), *few, "--out", str(out)]) == 0
    truth = run / "truth.safetensors"
    assert main(["report", str(out), "--truth", str(truth)]) == 0
    for path in (truth, out / OUTPUTS[2], out / "resume.safetensors", out / "report.html"):
        assert mode(path) == 0o600, path
    assert mode(run / "trained.safetensors") & 0o044
    assert "private data" in (out / "report.html").read_text().splitlines()[0]


def hiding(interrupt: Callable[[], None], status: Status) -> Callable[..., Reconstruction]:
    """An attack that is interrupted, and returns its points as if something else had ended it."""

    def attack(*arguments: Any, **options: Any) -> Reconstruction:
        found = reconstruct(*arguments, **options)
        try:
            interrupt()
        except KeyboardInterrupt:
            return replace(found, status=status)
        return found

    return attack


@pytest.fixture
def ctrl_c() -> Iterator[None]:
    """SIGINT does what it does at a terminal. Where tests run in the background it is ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("status", [Status.TIME, Status.INTERRUPTED, Status.STATIONARY])
def test_an_interrupt_is_never_swallowed(
    status: Status,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Also where it arrives just before the deadline of an attempt, which then says that its time
    was over."""
    victim = shuffled(easy()[0], 0)
    files, out = saved(tmp_path, victim), tmp_path / "out"
    press = hiding(lambda: os.kill(os.getpid(), signal.SIGINT), status)
    monkeypatch.setattr("recollect.auditing.trying.reconstruct", press)
    before = signal.getsignal(signal.SIGINT)
    assert main(["audit", *files, "--out", str(out), *FEW, "--budget", "60s"]) == 130
    assert signal.getsignal(signal.SIGINT) is before
    said = capsys.readouterr()
    assert "nothing was written" not in said.err
    facts = json.loads((out / "audit.json").read_text())
    assert facts["interrupted"]
    assert facts["verdict"] == "interrupted"
    assert len(facts["attempts"]) == 1
    assert facts["nulls"] == []
    assert "interrupted before its end" in (out / "report.html").read_text()


def test_what_was_found_before_an_interrupt_counts(
    tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(victim: Victim, seed: int) -> Victim:
        raise KeyboardInterrupt

    monkeypatch.setattr("recollect.auditing.run.NULLS", {"shuffled": interrupted})
    done = audit(*files, n=6, activation="relu", device="cpu")
    assert done.verdict is Verdict.EXPOSED
    assert done.interrupted
    assert "interrupted" in done.answer
    assert done.facts()["interrupted"]


def test_an_interrupt_before_the_first_attack_leaves_a_report(
    tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(victim: Victim, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recollect.auditing.call.history", interrupted)
    assert main(["audit", *files, "--out", str(tmp_path / "out"), *FEW]) == 130
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert facts["verdict"] == "interrupted"


@pytest.mark.parametrize("where", ["call.history", "run.inspect", "trying.reconstruct"])
def test_an_interrupt_before_anything_was_found_keeps_an_earlier_audit(
    where: str,
    tmp_path: Path,
    files: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    command = ["audit", *files, "--out", str(out), *FEW]
    assert main(command) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    assert set(before) == set(OUTPUTS)

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"recollect.auditing.{where}", interrupted)
    capsys.readouterr()
    assert main([*command, "--json"]) == 130
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    said = capsys.readouterr()
    assert "keeps the earlier audit" in said.err
    assert json.loads(said.out)["verdict"] == "interrupted"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("report.audit", "render_audit"),
        ("auditing.run", "conclude"),
        ("auditing.run", "marked"),
        ("auditing.call", "_delivered"),
        ("auditing.call", "unseen_number"),
    ],
)
def test_an_interrupt_after_the_last_attack_loses_nothing(
    where: str, name: str, tmp_path: Path, files: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module(f"recollect.{where}")
    plain, calls = getattr(module, name), []

    def pressed(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return plain(*arguments, **options)

    monkeypatch.setattr("recollect.auditing.run.NULLS", {})
    monkeypatch.setattr(module, name, pressed)
    assert main(["audit", *files, "--out", str(tmp_path / "out"), *FEW]) == 130
    assert calls
    facts = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert facts["verdict"] == "exposed"
    assert facts["attempts"]
    assert facts["points_sha256"]
    assert (tmp_path / "out" / "report.html").is_file()


def test_names_that_are_not_utf8_do_not_lock_the_folder(tmp_path: Path, files: list[str]) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/bad\xff.pt")
    from recollect.victim.read.checkpoint import read_checkpoint

    torch.save(read_checkpoint(Path(files[1])).tensors, odd)
    for _ in range(2):
        arguments = ["audit", files[0], odd, "--out", str(tmp_path / "out"), *FEW]
        assert main([*arguments, "--budget", "1s"]) == 0
    names = [
        one["name"] for one in json.loads((tmp_path / "out" / "audit.json").read_text())["files"]
    ]
    assert names[1] == "bad?.pt"
