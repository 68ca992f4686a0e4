"""Streams that are closed, readers that leave, and names that would steer a terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cases import small_mlp

from recollect.cli import main
from recollect.cli.console import Terminal
from recollect.errors import FileError
from recollect.system.files import check_name, read_json, tensor_bytes

RECOLLECT = f"{shlex.quote(sys.executable)} -m recollect"
TRAIN = "train --dataset synthetic --n 3 --dim 4 --rank 2 --width 20 --tolerance 1e-2 --out made"


def shell(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, check=False
    )


def test_a_reader_that_leaves_does_not_end_the_command(tmp_path: Path) -> None:
    done = shell(f"{RECOLLECT} {TRAIN} --json | true; exit ${{PIPESTATUS[0]}}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert (tmp_path / "made" / "train.json").is_file()


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(closed: str, tmp_path: Path) -> None:
    done = shell(f"{RECOLLECT} {TRAIN} --json {closed}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "made" / "train.json").is_file()


def test_an_answer_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    done = shell(f"{RECOLLECT} {TRAIN} --json > /dev/full", tmp_path)
    assert done.returncode == 1
    assert "expected to write to stdout, got: No space left" in done.stderr
    assert (tmp_path / "made" / "train.json").is_file()


def test_names_do_not_steer_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    terminal.say("a\x1b[2J\nb :smile: \u202e")
    terminal.note("c\x07")
    terminal.table({"\x1b]0;x": "\x1b[31m"})
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0] == "a\\x1b[2J\\nb :smile: \\u202e"
    assert shown.err == "c\\x07\n"
    assert "\x1b" not in shown.out
    path = tmp_path / "a\x1b[31m.pt"
    path.write_bytes(b"nothing")
    assert main(["inspect", str(path), str(path)]) == 2
    assert "\\x1b[31m.pt" in capsys.readouterr().err


def test_paths_that_are_not_utf_8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"odd\xff.safetensors")
    weights = small_mlp().theta_f
    Path(name).write_bytes(tensor_bytes(weights))
    for path in (Path("a\0b"), Path(os.fsdecode(b"\xff"))):
        with pytest.raises(FileError, match="expected"):
            read_json(path)
        with pytest.raises(FileError, match="in UTF-8"):
            check_name(path)
    check_name(Path("ü.pt"))
    for arguments in (
        ["inspect", name, name],
        ["reconstruct", "init.pt", name, "--n", "3", "--out", "found"],
        ["train", *TRAIN.split()[1:-1], os.fsdecode(b"out\xff")],
    ):
        assert main(arguments) == 2
        shown = capsys.readouterr()
        assert "expected a path in UTF-8" in shown.err
        assert "\\xff" in shown.err
        assert "rename" in shown.err
        assert shown.out == ""
    Terminal(json=True).answer({"out": name})
    assert capsys.readouterr().out == '{"out": "odd\\udcff.safetensors"}\n'
