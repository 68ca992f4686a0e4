"""A handful of the cases of `python tests/kills.py`, and that it reports what is wrong."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from pathlib import Path

import pytest
from kills import main

from recollect.system import files


def test_a_few_kills_do_no_harm(capsys: pytest.CaptureFixture[str]) -> None:
    few = ["--only", "train", "--only", "reconstruct", "--sample", "4", "--random", "2"]
    assert main(few) == 0, capsys.readouterr().out
    shown = capsys.readouterr().out
    assert "train: 15 events" in shown
    assert "6 cases" in shown


def _at_once(contents: Mapping[Path, bytes], private: Container[Path]) -> None:
    """Writes without temporary files."""
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as stream:
            stream.write(content)


def test_files_that_are_half_written_are_findings(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(files, "_write", _at_once)
    assert main(["--only", "train", "--sample", "12", "--random", "0", "--seed", "1"]) == 1
    assert "is not whole" in capsys.readouterr().out
