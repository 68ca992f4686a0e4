"""Files: written whole or not at all, read with suspicion, resumed only by the run they belong
to."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from cases import small_mlp

from recollect import FullSpace, GradientDescent, Projection, Reconstruction, Victim, reconstruct
from recollect.attacks.problem import Problem
from recollect.errors import DataError, FileError
from recollect.records import (
    FACTS,
    RESUME,
    TENSORS,
    ResumeFile,
    read_record,
    record_of,
    write_record,
)
from recollect.study.plan import read_plan
from recollect.study.table import read_table
from recollect.system.files import (
    check_writable,
    read_json,
    read_tensors,
    tensor_bytes,
    write_files,
)
from recollect.truth.data.files import load_npz
from recollect.truth.files import read_truth
from recollect.victim.read.checkpoint import load_checkpoint

ATTACK = Projection(space=FullSpace(), solver=GradientDescent(iterations=20, step_size=0.1))


def test_a_reconstruction_comes_back(tmp_path: Path) -> None:
    found = reconstruct(small_mlp(), 3, ATTACK)
    facts = write_record(
        tmp_path / "new" / "folder", record_of(found, small_mlp(), options={"n": 3})
    )
    record = read_record(tmp_path / "new" / "folder")
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


def test_a_folder_in_the_way_stops_all_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    with pytest.raises(FileError, match="b is a folder"):
        write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert [path.name for path in tmp_path.iterdir()] == ["b"]
    (tmp_path / ".a.recollect-killed").write_bytes(b"half")
    (tmp_path / ".a.bak").write_bytes(b"not ours")
    write_files({tmp_path / "a": b"1"})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.bak", "a", "b"]


def test_two_that_write_one_file_do_not_fail_each_other(tmp_path: Path) -> None:
    write = (
        "import sys; from pathlib import Path; from recollect.system.files import write_bytes\n"
        "for k in range(200): write_bytes(Path(sys.argv[1]), b'x' * 1000)"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", write, str(tmp_path / "a")]) for _ in range(3)
    ]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_files_of_two_runs_are_not_read_as_one(tmp_path: Path) -> None:
    victim = small_mlp()
    for n in (2, 3):
        write_record(tmp_path / str(n), record_of(reconstruct(victim, n, ATTACK), victim))
    (tmp_path / "2" / TENSORS).write_bytes((tmp_path / "3" / TENSORS).read_bytes())
    with pytest.raises(FileError, match="do not belong together"):
        read_record(tmp_path / "2")


def test_probing_a_folder_leaves_no_trace(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    check_writable(tmp_path)
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--out"):
        check_writable(tmp_path / "file")


def test_writing_where_one_may_not(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(FileError, match="choose another --out"):
        write_files({tmp_path / "file" / "x": b""})


def test_checkpoints_of_other_runs_and_damaged_ones_are_ignored(tmp_path: Path) -> None:
    victim = small_mlp()

    def attacked(**options: object) -> Reconstruction:
        arguments = {
            "victim": victim,
            "n": 3,
            "attack": ATTACK,
            "resume": ResumeFile(tmp_path),
            **options,
        }
        return reconstruct(**arguments)  # type: ignore[arg-type]

    first = attacked()
    assert first.resumed_at == 0
    again = attacked()
    assert again.resumed_at == 20
    assert torch.equal(again.inputs, first.inputs)
    # Another seed, number of points, victim, activation, step or a shorter run: another
    # computation.
    whole = (tmp_path / RESUME).read_bytes()
    network = replace(victim.network, activation="tanh")  # type: ignore[type-var]
    shorter = replace(ATTACK, solver=replace(ATTACK.solver, iterations=10))
    for other in (
        {"seed": 9},
        {"n": 2},
        {"victim": small_mlp(1)},
        {"victim": Victim(network, victim.theta_0, victim.theta_f)},
        {"attack": replace(ATTACK, solver=replace(ATTACK.solver, step_size=0.2))},
        {"attack": shorter},
    ):
        (tmp_path / RESUME).write_bytes(whole)
        assert attacked(**other).resumed_at == 0, other
    for damage in (
        b"",
        whole[: len(whole) // 2],
        b"\x00" * 100,
        tensor_bytes({"x": torch.ones(1)}, {"run": "{}"}),
    ):
        (tmp_path / RESUME).write_bytes(damage)
        broken = attacked()
        assert torch.equal(broken.inputs, first.inputs)
        assert broken.resumed_at == 0
    assert attacked(resume=ResumeFile(tmp_path, resume=False)).resumed_at == 0
    tensors, metadata = read_tensors(tmp_path / RESUME)
    facts = json.loads(metadata["run"])
    for bad in (
        tensor_bytes({**tensors, "trace": torch.tensor(1.0, dtype=torch.float64)}, metadata),
        *(
            tensor_bytes(tensors, {"run": json.dumps({**facts, "seconds": seconds})})
            for seconds in (10**400, float("nan"), float("inf"), -1.0)
        ),
    ):
        (tmp_path / RESUME).write_bytes(bad)
        fresh = attacked()
        assert fresh.resumed_at == 0
        assert all(stage.seconds >= 0 for stage in fresh.stages)


def test_another_number_of_threads_is_another_computation(tmp_path: Path) -> None:
    """It changes the order of sums. The record says how many there were."""
    search = FullSpace()
    one = Problem.of(small_mlp(), Projection(space=search), torch.device("cpu"))
    names = set()
    for threads in (1, 2):
        torch.set_num_threads(threads)
        names.add(one.fingerprint(3, 0))
        found = reconstruct(small_mlp(), 3, ATTACK)
        assert record_of(found, small_mlp()).facts["threads"] == threads
    assert len(names) == 2


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe would be waited for without end, and a device has no end."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("pipe", "zero"):
        for suffix in ("", ".npz", ".safetensors", ".csv", ".toml"):
            path = tmp_path / (name + suffix)
            if suffix:
                path.symlink_to(tmp_path / name)
            for read in (
                read_json,
                read_tensors,
                read_plan,
                read_table,
                load_npz,
                load_checkpoint,
                *((read_truth,) if suffix in (".npz", ".safetensors") else ()),
            ):
                with pytest.raises(FileError, match=r"got a (pipe|device)"):
                    read(path)
        folder = tmp_path / f"{name}-record"
        folder.mkdir()
        (folder / FACTS).symlink_to(tmp_path / name)
        with pytest.raises(FileError, match=r"got a (pipe|device)"):
            read_record(folder)


def test_damaged_records_are_named_errors(tmp_path: Path) -> None:
    found = reconstruct(small_mlp(), 3, ATTACK)
    write_record(tmp_path, record_of(found, small_mlp()))
    good = read_json(tmp_path / FACTS)
    for bad in (
        "",
        "[1]",
        "{",
        json.dumps({**good, "loss": "x"}),
        json.dumps({**good, "mismatch": []}),
        json.dumps({**good, "stages": 3}),
        json.dumps({**good, "rank": "x"}),
        json.dumps({**good, "stages": [{"name": 1}]}),
        json.dumps({**good, "stages": [{"name": "a", "iterations": 1, "seconds": 1.0}]}),
        json.dumps({**good, "notes": ["\ud800"]}),
    ):
        (tmp_path / FACTS).write_text(bad)
        with pytest.raises(FileError, match="expected"):
            read_record(tmp_path)
    tensors, _ = read_tensors(tmp_path / TENSORS)
    for name, odd in (
        ("singular_values", torch.ones([1] * 70, dtype=torch.float64)),
        ("trace", torch.ones(2, 2, dtype=torch.float64)),
        ("confidence", torch.tensor(1.0, dtype=torch.float64)),
        ("inputs", torch.ones(3, dtype=torch.float64)),
    ):
        packed = tensor_bytes({**tensors, name: odd})
        sha256 = hashlib.sha256(packed).hexdigest()
        write_files(
            {
                tmp_path / TENSORS: packed,
                tmp_path / FACTS: json.dumps({**good, "sha256": sha256}).encode(),
            }
        )
        with pytest.raises(FileError, match="expected finite"):
            read_record(tmp_path)
    (tmp_path / FACTS).unlink()
    with pytest.raises(FileError, match="check the path"):
        read_record(tmp_path)


def test_truth_files(tmp_path: Path) -> None:
    import numpy as np

    X = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    (tmp_path / "t.safetensors").write_bytes(tensor_bytes({"inputs": X}, {"pixels": "hostile"}))
    np.savez(tmp_path / "t.npz", inputs=X.numpy())
    assert torch.equal(
        read_truth(tmp_path / "t.safetensors").inputs, read_truth(tmp_path / "t.npz").inputs
    )
    assert read_truth(tmp_path / "t.safetensors").pixel_space is None
    (tmp_path / "empty.safetensors").write_bytes(tensor_bytes({"x": X}))
    np.savez(tmp_path / "text.npz", inputs=np.array([["a", "b"]]))
    (tmp_path / "t.txt").write_text("")
    header = json.dumps(
        {"inputs": {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}}
    ).encode()
    (tmp_path / "f4.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    for name in (
        "empty.safetensors",
        "f4.safetensors",
        "text.npz",
        "t.txt",
        "none.npz",
        "none.safetensors",
    ):
        with pytest.raises(DataError, match="expected"):
            read_truth(tmp_path / name)
