"""Files: written whole or not at all, read with suspicion, resumed only by the run they belong to."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest
import torch
from cases import small_mlp

from recollect import FullSpace, GradientDescent, Projection, reconstruct
from recollect.errors import DataError, FileError
from recollect.files import read_json, tensor_bytes, write_files
from recollect.records import CHECKPOINT, FACTS, TENSORS, FileCheckpoint, read_reconstruction, write_reconstruction
from recollect.truth import read_truth

ATTACK = Projection(space=FullSpace(), solver=GradientDescent(iterations=20, step_size=0.1))


def test_a_reconstruction_comes_back(tmp_path: Path) -> None:
    found = reconstruct(small_mlp(), 3, ATTACK)
    facts = write_reconstruction(tmp_path / "new" / "folder", found, {"options": {"n": 3}})
    record = read_reconstruction(tmp_path / "new" / "folder")
    assert torch.equal(record.inputs, found.inputs)
    assert torch.equal(record.trace, found.trace)
    assert record.facts == json.loads(json.dumps(facts))
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == [FACTS, TENSORS]


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kept").write_bytes(b"old")
    sync = os.fsync
    calls = 0

    def full(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FileError, match="No space left"):
        write_files({tmp_path / "kept": b"new", tmp_path / "deep" / "er" / "other": b"x"})
    assert (tmp_path / "kept").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_writing_where_one_may_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="choose another --out"):
        write_files({tmp_path / "file" / "x": b""})


def test_checkpoints_of_other_runs_and_damaged_ones_are_ignored(tmp_path: Path) -> None:
    victim = small_mlp()
    checkpoint = FileCheckpoint(tmp_path)
    first = reconstruct(victim, 3, ATTACK, checkpoint=checkpoint)
    again = FileCheckpoint(tmp_path)
    assert torch.equal(reconstruct(victim, 3, ATTACK, checkpoint=again).inputs, first.inputs)
    assert again.resumed_at == 20
    other = FileCheckpoint(tmp_path)
    reconstruct(victim, 3, ATTACK, seed=9, checkpoint=other)
    assert other.resumed_at is None
    whole = (tmp_path / CHECKPOINT).read_bytes()
    for damage in (b"", whole[: len(whole) // 2], b"\x00" * 100, tensor_bytes({"x": torch.ones(1)}, {"run": "{}"})):
        (tmp_path / CHECKPOINT).write_bytes(damage)
        broken = FileCheckpoint(tmp_path)
        assert torch.equal(reconstruct(victim, 3, ATTACK, checkpoint=broken).inputs, first.inputs)
        assert broken.resumed_at is None
    fresh = FileCheckpoint(tmp_path, resume=False)
    reconstruct(victim, 3, ATTACK, checkpoint=fresh)
    assert fresh.resumed_at is None


def test_damaged_records_are_named_errors(tmp_path: Path) -> None:
    found = reconstruct(small_mlp(), 3, ATTACK)
    write_reconstruction(tmp_path, found, {})
    good = read_json(tmp_path / FACTS)
    for bad in (
        "",
        "[1]",
        "{",
        json.dumps({**good, "loss": "x"}),
        json.dumps({**good, "stages": 3}),
        json.dumps({**good, "rank": None}),
        json.dumps({**good, "stages": [{"name": 1}]}),
    ):
        (tmp_path / FACTS).write_text(bad)
        with pytest.raises(FileError, match="expected"):
            read_reconstruction(tmp_path)
    (tmp_path / FACTS).unlink()
    with pytest.raises(FileError, match="check the path"):
        read_reconstruction(tmp_path)


def test_truth_files(tmp_path: Path) -> None:
    import numpy as np

    X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    (tmp_path / "t.safetensors").write_bytes(tensor_bytes({"inputs": X}, {"pixels": "hostile"}))
    np.savez(tmp_path / "t.npz", inputs=X.numpy())
    assert torch.equal(read_truth(tmp_path / "t.safetensors").inputs, read_truth(tmp_path / "t.npz").inputs)
    assert read_truth(tmp_path / "t.safetensors").pixel_space is None
    (tmp_path / "empty.safetensors").write_bytes(tensor_bytes({"x": X}))
    np.savez(tmp_path / "text.npz", inputs=np.array([["a", "b"]]))
    (tmp_path / "t.txt").write_text("")
    for name in ("empty.safetensors", "text.npz", "t.txt", "none.npz", "none.safetensors"):
        with pytest.raises(DataError, match="expected"):
            read_truth(tmp_path / name)
