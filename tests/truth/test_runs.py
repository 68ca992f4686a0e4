"""The files of a training run say that they belong together, and those of two runs are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from recollect.cli import main
from recollect.errors import DataError
from recollect.system.files import read_json, read_tensors, tensor_bytes
from recollect.truth.files import as_truth, read_truth
from recollect.truth.recipe import train
from recollect.victim.victim import load

SMALL = {"dataset": "synthetic", "n": 3, "dim": 4, "rank": 2, "width": 30, "tolerance": 1e-3}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two training runs, and a reconstruction of the first."""
    folder = tmp_path_factory.mktemp("runs")
    for name, more in (("a", {}), ("b", {"seed": 1})):
        train(**SMALL, **more, out=folder / name)
    few = ["--n", "3", "--iterations", "5", "--rounds", "1"]
    assert main(["reconstruct", str(folder / "a"), *few, "--out", str(folder / "found")]) == 0
    return folder


def test_all_files_of_a_run_hold_its_name(runs: Path) -> None:
    for name in ("a", "b"):
        folder = runs / name
        victim = load(folder / "init.safetensors", folder / "trained.safetensors")
        assert victim.run is not None
        assert victim.run == read_truth(folder / "truth.safetensors").run
        assert victim.run == read_json(folder / "train.json")["run"]
    assert (
        read_json(runs / "found" / "reconstruct.json")["run"]
        == read_truth(runs / "a" / "truth.safetensors").run
    )


def test_the_same_run_is_the_same_bytes(runs: Path, tmp_path: Path) -> None:
    train(**SMALL, out=tmp_path)
    for name in ("init", "trained", "truth", "basis"):
        path = f"{name}.safetensors"
        assert (tmp_path / path).read_bytes() == (runs / "a" / path).read_bytes()


def test_a_run_that_differs_in_training_alone_has_another_name(runs: Path, tmp_path: Path) -> None:
    train(**{**SMALL, "tolerance": 1e-4}, out=tmp_path)
    ours = [read_truth(folder / "truth.safetensors").run for folder in (runs / "a", tmp_path)]
    assert ours[0] != ours[1]


def test_old_truth_beside_a_new_model_is_refused(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As after a `train` that was killed between two renames."""
    shutil.copytree(runs / "a", tmp_path / "mixed")
    for name in ("init", "trained"):
        shutil.copy(runs / "b" / f"{name}.safetensors", tmp_path / "mixed")
    truth = str(tmp_path / "mixed" / "truth.safetensors")
    with pytest.raises(DataError, match="of one training run"):
        as_truth(truth)  # so does an audit read it
    for command in ("evaluate", "report"):
        assert main([command, str(runs / "found"), "--truth", truth]) == 2
        assert "those of two" in capsys.readouterr().err


def test_the_truth_of_another_run_is_refused(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("evaluate", "report"):
        line = [command, str(runs / "found"), "--truth"]
        assert main([*line, str(runs / "b" / "truth.safetensors")]) == 2
        assert "expected the truth of training run" in capsys.readouterr().err
        assert main([*line, str(runs / "a" / "truth.safetensors")]) == 0


def test_files_without_the_name_are_still_read(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tensors, metadata = read_tensors(runs / "a" / "truth.safetensors")
    pixels = {"shape": [1, 2, 2], "mean": 0.5, "std": 0.2}
    old = tmp_path / "truth.safetensors"
    old.write_bytes(tensor_bytes(tensors, {"pixels": json.dumps(pixels)}))
    shutil.copy(runs / "b" / "trained.safetensors", tmp_path)
    found = read_truth(old)
    assert found.run is None
    assert found.pixel_space is not None
    assert main(["evaluate", str(runs / "found"), "--truth", str(old)]) == 0
    for hostile in ("[]", "{", json.dumps({"run": 3, "pixels": []})):
        old.write_bytes(tensor_bytes(tensors, {"recollect": hostile}))
        assert read_truth(old).run is None
    assert metadata
