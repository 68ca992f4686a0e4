"""The attack of docs/write-an-attack.md, word for word: through every door, and without a change to
the package."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sweeps import without_times

import recollect as rc
from recollect.cli import main

PAGE = Path(__file__).parents[2] / "docs" / "write-an-attack.md"


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)[number]


@pytest.fixture
def guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `guess`, in the current folder as the page has it; workers of a sweep find it
    there too."""
    (tmp_path / "guess.py").write_text(block("python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("guess")
    sys.modules.pop("guess", None)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made = rc.train(dataset="digits", n=4, width=60, dtype="float64", device="cpu")
    made.save(tmp_path / "run")
    return tmp_path / "run"


def test_it_is_short() -> None:
    assert len(block("python").splitlines()) < 40


def test_in_python(guess: Any, run: Path) -> None:
    victim = rc.load(run / "init.safetensors", run / "trained.safetensors")
    one, more = (rc.reconstruct(victim, 4, guess.Guess(draws=draws)) for draws in (1, 40))
    assert more.loss < one.loss
    assert more.status is rc.Status.ITERATIONS
    again = rc.reconstruct(victim, 4, guess.Guess(draws=40))
    assert torch.equal(more.inputs, again.inputs)
    assert rc.evaluate(more, run / "truth.safetensors").rho > 0.3
    with pytest.raises(rc.InputError, match="--n"):
        rc.reconstruct(victim, None, guess.Guess())
    bare = rc.Victim(victim.network, None, victim.theta_f)
    with pytest.raises(rc.InputError, match="before training"):
        rc.reconstruct(bare, 4, guess.Guess())
    with pytest.raises(rc.InputError, match="write-an-attack"):
        rc.reconstruct(victim, 4, object())  # type: ignore[arg-type]


def test_on_the_command_line(guess: Any, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reconstruct", str(run), "--n", "4", "--attack", "guess:Guess", "--device", "cpu"]
    out = run / "guessed"
    assert main([*command, "--set", "draws=30", "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["options"]["attack"] == "guess:Guess"
    assert facts["options"]["draws"] == 30
    assert main(["evaluate", str(out), "--truth", str(run / "truth.safetensors")]) == 0
    assert main(["report", str(out), "--truth", str(run / "truth.safetensors")]) == 0
    assert "of 4 training points" in (out / "report.html").read_text()
    capsys.readouterr()
    again = ["reconstruct", "--from", str(out / "reconstruct.json"), "--out", str(run / "again")]
    # A record is data: the code that it names runs only if it is named again.
    assert main(again) == 2
    assert "--attack guess:Guess" in capsys.readouterr().err
    assert main([*again, "--attack", "other:Guess"]) == 2
    assert main([*again, "--attack", "guess:Guess"]) == 0
    name = "reconstruction.safetensors"
    assert (run / "again" / name).read_bytes() == (out / name).read_bytes()
    capsys.readouterr()
    assert main([*command, "--set", "steps=30", "--out", str(out)]) == 2
    assert "--draws" in capsys.readouterr().err
    for wrong in ("guess:Nothing", "nothing:Guess", "guess", "guess:stream"):
        assert main([*command[:-3], wrong, "--out", str(out)]) == 2


def test_in_a_sweep(guess: Any, tmp_path: Path) -> None:
    victim = 'dataset = "digits"\nn = 4\nwidth = 60\ndtype = "float64"\ntolerance = 1e-4\n'
    plan = tmp_path / "plan.toml"
    plan.write_text(block("toml") + victim)
    out = ["--out", str(tmp_path / "out")]
    assert main(["sweep", str(plan), *out, "--device", "cpu", "--workers", "1"]) == 0
    assert main(["export", str(tmp_path / "out"), "--out", str(tmp_path / "rows.csv")]) == 0
    rows = without_times(tmp_path / "rows.csv")
    assert [row["attack"] for row in rows] == ["guess:Guess"] * 2
    draws = [json.loads(row["attack_options"])["draws"] for row in rows]
    assert sorted(draws) == [100, 500]
    by_draws = dict(zip(draws, (float(row["residual"]) for row in rows), strict=True))
    assert by_draws[500] <= by_draws[100]
