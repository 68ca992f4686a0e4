"""`inspect` and `reconstruct` know of a model's history what an audit knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from plain import D, copied, network
from safetensors.torch import save_file

from recollect import inspect
from recollect.cli import main
from recollect.records import file_hash


@pytest.fixture
def decayed(tmp_path: Path) -> tuple[str, str]:
    """Four records learnt with weight decay."""
    model = network(0, 2, 3, False)
    before = copied(model)
    X, Y = torch.randn(4, D), torch.randn(4, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1e-3)
    for _ in range(200):
        optimiser.zero_grad()
        (model(X) - Y).square().mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    names = str(tmp_path / "init.safetensors"), str(tmp_path / "trained.safetensors")
    save_file(before, names[0])
    save_file(copied(model), names[1])
    return names


def facts_of(out: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((out / "reconstruct.json").read_text())
    return found


def test_inspect_undoes_weight_decay_and_says_so(
    decayed: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert inspect(*decayed).rank == 4
    assert main(["inspect", *decayed, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["rank"] == 4
    assert answer["weight_decay"] == pytest.approx(0.02, rel=0.05)
    assert "weight decay" in answer["findings"][0]["seen"]
    assert answer["fits"]
    assert main(["inspect", *decayed, "--optimizer", "adam", "--json"]) == 0
    assert not json.loads(capsys.readouterr().out)["fits"]


def test_reconstruct_undoes_weight_decay_unless_told_not_to(
    decayed: tuple[str, str], tmp_path: Path
) -> None:
    undone, kept, again = tmp_path / "undone", tmp_path / "kept", tmp_path / "again"
    assert main(["reconstruct", *decayed, "--n", "4", "--out", str(undone)]) == 0
    facts = facts_of(undone)
    assert facts["rank"] == 4
    assert "was measured and undone" in str(facts["notes"])
    assert facts["options"]["weight_decay"] == "undo"  # type: ignore[index]
    record = str(undone / "reconstruct.json")
    assert main(["reconstruct", "--from", record, "--out", str(again)]) == 0
    tensors = "reconstruction.safetensors"
    assert file_hash(again / tensors) == file_hash(undone / tensors)
    keep = ["--weight-decay", "keep", "--rank", "4"]
    assert main(["reconstruct", *decayed, "--n", "4", *keep, "--out", str(kept)]) == 0
    assert "undone" not in str(facts_of(kept)["notes"])
    assert facts_of(kept)["loss"] > facts["loss"]  # type: ignore[operator]


def test_a_record_from_before_the_option_keeps_the_decay(
    decayed: tuple[str, str], tmp_path: Path
) -> None:
    first, again = tmp_path / "first", tmp_path / "again"
    keep = ["--weight-decay", "keep", "--rank", "4"]
    assert main(["reconstruct", *decayed, "--n", "4", *keep, "--out", str(first)]) == 0
    facts = facts_of(first)
    del facts["options"]["weight_decay"]  # type: ignore[attr-defined]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(facts))
    assert main(["reconstruct", "--from", str(old), "--out", str(again)]) == 0
    tensors = "reconstruction.safetensors"
    assert file_hash(again / tensors) == file_hash(first / tensors)
