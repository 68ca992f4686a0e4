"""Checkpoints are hostile until proven otherwise: every damaged or mismatched file is one named
error."""

from __future__ import annotations

import argparse
import collections
import datetime
import json
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import small_mlp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from recollect.errors import CheckpointError
from recollect.victim.read.checkpoint import load_checkpoint, read_checkpoint
from recollect.victim.victim import Victim


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: value.float() for name, value in small_mlp(seed).theta_f.items()}


def test_both_formats_give_the_same_victim(tmp_path: Path) -> None:
    save_file(weights(0), tmp_path / "a.safetensors")
    torch.save(weights(0), tmp_path / "a.pt")
    torch.save(
        {"state_dict": {f"module.{name}": value for name, value in weights(1).items()}},
        tmp_path / "b.pt",
    )
    from_safetensors = Victim.load(tmp_path / "a.safetensors", tmp_path / "b.pt")
    from_torch = Victim.load(tmp_path / "a.pt", tmp_path / "b.pt")
    assert from_safetensors.network == from_torch.network
    for name, change in from_torch.delta(from_torch.network.trained).items():
        assert torch.equal(change, from_safetensors.delta([name])[name])


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_damage_in_a_compressed_member_is_a_named_error(tmp_path: Path, method: int) -> None:
    """Each method of compression raises errors of its own."""
    torch.save(weights(), tmp_path / "whole.pt")
    with zipfile.ZipFile(tmp_path / "whole.pt") as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(tmp_path / "w.pt", "w", method) as archive:
        for name, content in members:
            archive.writestr(name, content)
        start = archive.infolist()[-1].header_offset
    content = bytearray((tmp_path / "w.pt").read_bytes())
    for damage in (bytes(8), b"\xff" * 8):
        for place in (*range(40, 200, 20), *range(start + 30, start + 120, 20)):
            damaged = content[:place] + damage + content[place + len(damage) :]
            (tmp_path / "w.pt").write_bytes(damaged)
            with pytest.raises(CheckpointError, match="expected"):
                load_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize("flag", [0x1, 0x40])
def test_an_encrypted_member_is_a_named_error(tmp_path: Path, flag: int) -> None:
    torch.save(weights(), tmp_path / "w.pt")
    content = bytearray((tmp_path / "w.pt").read_bytes())
    for mark, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = content.find(mark)
        while place >= 0:
            content[place + offset] |= flag
            place = content.find(mark, place + 1)
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(CheckpointError, match="expected a whole"):
        load_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize(
    "name", ["last.ckpt", "checkpoint.pth.tar", "model.pkl", "model.PT", "w.bin", "noname", "w.pt"]
)
def test_a_file_is_what_it_holds_and_not_what_it_is_called(tmp_path: Path, name: str) -> None:
    for save in (
        torch.save,
        save_file,
        lambda state, path: torch.save(state, path, pickle_protocol=4),
    ):
        save(weights(), tmp_path / name)
        found = read_checkpoint(tmp_path / name).tensors
        assert all(torch.equal(found[key], value) for key, value in weights().items())
    torch.save(weights(), tmp_path / name, _use_new_zipfile_serialization=False, pickle_protocol=4)
    assert set(read_checkpoint(tmp_path / name).tensors) == set(weights())
    for other in (b"", b"\x08\x07\x12\x07pytorch", b"version https://git-lfs.github.com/spec/v1\n"):
        (tmp_path / name).write_bytes(other)
        with pytest.raises(CheckpointError, match="begins like neither"):
            read_checkpoint(tmp_path / name)


def test_headers_of_safetensors_may_have_any_length(tmp_path: Path) -> None:
    """One of 128 or 640 bytes begins with the first byte of a pickle."""
    path, seen = tmp_path / "w.safetensors", set()
    for length in range(1, 200):
        save_file({"n" * length: torch.arange(3.0)}, path)
        seen.add(path.read_bytes()[0])
        assert torch.equal(read_checkpoint(path).tensors["n" * length], torch.arange(3.0))
    assert 0x80 in seen


def test_what_people_save_with_their_weights_is_let_be(tmp_path: Path) -> None:
    """Most of it `torch.load(weights_only=True)` refuses, because it would have to build it."""
    beside: dict[str, object] = {
        "args": argparse.Namespace(
            lr=0.1, out=Path("/x"), shape=slice(1, 2), names=frozenset("ab")
        ),
        "best": np.float64(0.9),
        "history": [
            np.arange(3.0),
            collections.defaultdict(list, losses=[0.1]),
            collections.Counter("aab"),
        ],
        "when": datetime.datetime.now(datetime.UTC),
        "scores": {0.5: 1.0, None: 2, True: 3, (1, 2): 4, b"a": 5, 7: 6, np.int64(3): 7},
        "raw": (b"abc\xff", b"", bytearray(b"a"), 1j, {1, 2}, 2**80),
        "types": (torch.float32, torch.device("cpu"), torch.Size([1]), int, str, range(3)),
    }
    for archive in (True, False):
        path = tmp_path / "w.pt"
        torch.save({"model": weights(), **beside}, path, _use_new_zipfile_serialization=archive)
        found = load_checkpoint(path)
        assert all(torch.equal(found.tensors[name], value) for name, value in weights().items())
        assert found.beside == {*beside, "model", "lr", "out", "shape", "names", "losses", *"ab"}


@pytest.mark.parametrize("name", ["state_dict", "model", "network", "params_ema"])
def test_a_state_dict_under_any_name(tmp_path: Path, name: str) -> None:
    more = {"epoch": 3, "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}, "param_groups": []}}
    torch.save({**more, name: weights()}, tmp_path / "w.pt")
    found = read_checkpoint(tmp_path / "w.pt")
    assert set(found.tensors) == set(weights())
    assert "exp_avg" in found.beside
    assert not found.beside & set(weights())


def test_of_several_state_dicts_none_is_taken(tmp_path: Path) -> None:
    torch.save({"G": weights(0), "epoch": 3, "D": weights(1)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match=r"expected one state dict in \S+, got G, D; "):
        read_checkpoint(tmp_path / "w.pt")


def test_what_a_state_dict_holds_besides_weights(tmp_path: Path) -> None:
    """Counters, positions, masks, numbers alone, nothing at all; but no quantised weights."""
    kept = {
        "n_averaged": torch.tensor(3),
        "position_ids": torch.arange(4)[None],
        "mask": torch.ones(2, 2) > 0,
        "scale": torch.tensor(1.5),
        "empty": torch.empty(0, 5),
    }
    more = {
        "a._extra_state": {"any": "thing"},
        "_extra_state": torch.ones(2, dtype=torch.uint8),
        "c.bias": None,
    }
    torch.save({**weights(), **kept, **more}, tmp_path / "w.pt")
    assert set(load_checkpoint(tmp_path / "w.pt").tensors) == {*weights(), *kept}
    save_file(
        {**weights(), **kept, "_extra_state": torch.ones(2, dtype=torch.uint8)},
        tmp_path / "w.safetensors",
    )
    assert set(load_checkpoint(tmp_path / "w.safetensors").tensors) == {*weights(), *kept}
    for dtype in (torch.int8, torch.uint8, torch.int32):
        save_file({**weights(), "a": torch.ones(2, 2, dtype=dtype)}, tmp_path / "w.safetensors")
        with pytest.raises(CheckpointError, match="dequantise"):
            load_checkpoint(tmp_path / "w.safetensors")
    torch.save({**weights(), "scale": torch.tensor(torch.nan)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="1 NaN or infinite in scale"):
        load_checkpoint(tmp_path / "w.pt")
    torch.save({**weights(), "pair": (torch.ones(2), torch.ones(2))}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="state dict"):
        load_checkpoint(tmp_path / "w.pt")


@given(
    prefixes=st.lists(st.sampled_from(["module.", "_orig_mod."]), max_size=4),
    safe=st.booleans(),
    all_=st.booleans(),
)
def test_what_stands_before_every_name_is_taken_off(
    tmp_path_factory: pytest.TempPathFactory, prefixes: list[str], safe: bool, all_: bool
) -> None:
    path, before = tmp_path_factory.mktemp("prefix") / "w", "".join(prefixes)
    state = {f"{before}{name}": value for name, value in weights().items()}
    if not all_:
        state["layers.0.weight"] = torch.zeros(3, 3)
    (save_file if safe else torch.save)(state, path)
    found = read_checkpoint(path).tensors
    expected = weights() if all_ else state
    assert set(found) == set(expected)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_no_tensor_takes_the_place_of_another(tmp_path: Path) -> None:
    torch.save({0: torch.ones(3, 3), "0": torch.zeros(3, 3)}, tmp_path / "w.pt")
    with pytest.raises(CheckpointError, match="got 0 and '0'; name them apart"):
        read_checkpoint(tmp_path / "w.pt")


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Sequential(
            torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def test_a_model_may_have_those_names_itself(tmp_path: Path) -> None:
    before, after = Wrapped().state_dict(), Wrapped().state_dict()
    for save, suffix in ((torch.save, "pt"), (save_file, "safetensors")):
        save(before, tmp_path / f"a.{suffix}")
        save(after, tmp_path / f"b.{suffix}")
        victim = Victim.load(tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}", model=Wrapped())
        assert set(victim.theta_f) == set(after)
        assert victim.theta_0 is not None
        assert torch.equal(victim.theta_0["module.0.weight"], before["module.0.weight"])
        bare = Victim.load(
            tmp_path / f"a.{suffix}", tmp_path / f"b.{suffix}", model=Wrapped().module
        )
        assert torch.equal(bare.theta_f["0.weight"], after["module.0.weight"])


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_pickled_code_is_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    torch.save({"layers.0.weight": torch.ones(2, 2), "x": Payload(marker)}, tmp_path / "evil.pt")
    with pytest.raises(CheckpointError, match="not run"):
        load_checkpoint(tmp_path / "evil.pt")
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Payload(marker)))
    with pytest.raises(CheckpointError):
        load_checkpoint(tmp_path / "plain.pt")
    assert not marker.exists()


def test_truncated_and_absurd_files(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(weights(), path)
    whole = path.read_bytes()
    for content in (
        b"",
        whole[:4],
        whole[:20],
        whole[:-1],
        struct.pack("<Q", 2**62) + whole[8:],
        b"\xff" * 64,
    ):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="safetensors"):
            load_checkpoint(path)
    torch.save(weights(), tmp_path / "w.pt")
    whole = (tmp_path / "w.pt").read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 10):
        (tmp_path / "w.pt").write_bytes(whole[:cut])
        with pytest.raises(CheckpointError):
            load_checkpoint(tmp_path / "w.pt")


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".safetensors", ".pt"]))
def test_any_bytes_are_one_named_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_zip_bomb_is_refused_before_unpacking(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(2**22))
    with pytest.raises(CheckpointError, match="unpacks to"):
        load_checkpoint(tmp_path / "bomb.pt")


@given(
    shapes=st.lists(st.lists(st.integers(0, 4), max_size=4), min_size=1, max_size=5),
    dtype=st.sampled_from(
        [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool]
    ),
    archive=st.booleans(),
    seed=st.integers(0, 99),
)
def test_tensors_are_those_of_torch(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[list[int]],
    dtype: torch.dtype,
    archive: bool,
    seed: int,
) -> None:
    """Also views, tied weights and parameters, in an archive and as before torch 1.6."""
    generator = torch.Generator().manual_seed(seed)
    state = {
        f"{k}": torch.randn(shape, generator=generator).to(dtype) for k, shape in enumerate(shapes)
    }
    first = state["0"]
    state |= {
        "tied": first,
        "turned": first.T if first.dim() == 2 else first,
        "late": torch.arange(9).to(dtype)[3:7:2],
    }
    state["wide"] = torch.ones(1, dtype=dtype).expand(3, 5)
    if dtype.is_floating_point:
        state["parameter"] = torch.nn.Parameter(first)
    state["told"] = first.clone()
    state["told"].origin = "a tensor with an attribute"  # type: ignore[attr-defined]
    path = tmp_path_factory.mktemp("torch") / "w.pt"
    torch.save({"epoch": 3, "model": state}, path, _use_new_zipfile_serialization=archive)
    expected = torch.load(path, weights_only=True)["model"]
    found = read_checkpoint(path).tensors
    assert list(found) == list(expected)
    assert all(
        torch.equal(found[name], expected[name]) and found[name].dtype is dtype for name in expected
    )


class Asks:
    """Pickled as a call."""

    def __init__(self, *asked: object) -> None:
        self.asked = asked

    def __reduce__(self) -> tuple[object, ...]:
        return (self.asked[0], self.asked[1:])


def test_nothing_is_made_because_a_pickle_asks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of these is let through by `weights_only=True`, and takes gigabytes or the process
    itself."""
    monkeypatch.setattr("recollect.victim.read.pickles._MOST", 250_000)
    tuples = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    for name, code in {
        "bytes": pickle.dumps({"a": Asks(bytearray, 2**34)}, 2),
        "tensor": pickle.dumps({"a": Asks(torch.Tensor, 2**17, 2**17)}, 2),
        "storage": pickle.dumps({"a": Asks(torch.FloatStorage, 2**34)}, 2),
        "tuples": tuples,
        "operations": b"\x80\x02" + b"N0" * 150_000 + b"N.",
        "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
        "itself": b"\x80\x02}q\x00X\x05\x00\x00\x00modelh\x00s.",
    }.items():
        with zipfile.ZipFile(tmp_path / f"{name}.pt", "w") as archive:
            archive.writestr("archive/data.pkl", code)
        with pytest.raises(CheckpointError, match="expected"):
            read_checkpoint(tmp_path / f"{name}.pt")


def test_tensors_are_no_larger_than_their_file(tmp_path: Path) -> None:
    wide = torch.ones(1).expand(2**15, 2**15)
    for archive in (True, False):
        torch.save({"a.weight": wide}, tmp_path / "wide.pt", _use_new_zipfile_serialization=archive)
        with pytest.raises(CheckpointError, match="more than the file can hold"):
            read_checkpoint(tmp_path / "wide.pt")
    torch.save(
        {"a.weight": torch.ones(40, 50)}, tmp_path / "w.pt", _use_new_zipfile_serialization=False
    )
    whole = (tmp_path / "w.pt").read_bytes()
    assert whole.count(struct.pack("<h", 2000)) >= 1
    for number in (-1, 2001, 2**31 - 1):
        (tmp_path / "w.pt").write_bytes(
            whole.replace(struct.pack("<q", 2000), struct.pack("<q", number))
        )
        with pytest.raises(CheckpointError, match="end early"):
            read_checkpoint(tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes(
        whole.replace(b"M" + struct.pack("<H", 2000), b"M" + struct.pack("<H", 1999))
    )
    with pytest.raises(CheckpointError, match="beyond the end"):
        read_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize("shape", [[2**63, 0], [0, 2**64], [2**32, 2**32]])
def test_shapes_that_no_tensor_has(tmp_path: Path, shape: list[int]) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(CheckpointError, match="safetensors"):
        read_checkpoint(tmp_path / "w.safetensors")


def test_what_a_file_says_is_made_fit_to_show(tmp_path: Path) -> None:
    for dtype in ("\x1b[2J", "x" * 10**6):
        header = json.dumps({"a": {"dtype": dtype, "shape": [1], "data_offsets": [0, 4]}}).encode()
        (tmp_path / "w.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
        with pytest.raises(CheckpointError) as error:
            read_checkpoint(tmp_path / "w.safetensors")
        assert str(error.value).isprintable()
        assert len(str(error.value)) < 2000
        assert str(error.value).endswith("copy or save it again")


def test_other_bad_weights(tmp_path: Path) -> None:
    broken = weights()
    broken["layers.0.weight"][0, 0] = torch.nan
    save_file(broken, tmp_path / "nan.safetensors")
    with pytest.raises(CheckpointError, match=r"1 NaN or infinite in layers\.0\.weight"):
        load_checkpoint(tmp_path / "nan.safetensors")
    save_file({"a.weight": torch.ones(2, 2, dtype=torch.int8)}, tmp_path / "int.safetensors")
    with pytest.raises(CheckpointError, match="int8"):
        load_checkpoint(tmp_path / "int.safetensors")
    save_file({"a.weight": torch.ones(2, 2).to(torch.float8_e4m3fn)}, tmp_path / "f8.safetensors")
    torch.save({"a.weight": torch.eye(3).to_sparse()}, tmp_path / "sparse.pt")
    for name in ("f8.safetensors", "sparse.pt"):
        with pytest.raises(CheckpointError, match="dequantise"):
            load_checkpoint(tmp_path / name)
    with pytest.raises(CheckpointError, match="nothing there"):
        load_checkpoint(tmp_path / "none.safetensors")
    with pytest.raises(CheckpointError, match="a folder"):
        load_checkpoint(tmp_path)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(CheckpointError, match="state dict"):
        load_checkpoint(tmp_path / "list.pt")
    (tmp_path / "w.onnx").write_bytes(b"")
    with pytest.raises(CheckpointError, match="onnx"):
        load_checkpoint(tmp_path / "w.onnx")


def test_mismatches_are_all_named(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "a.safetensors")
    other = weights()
    other["layers.0.weight"] = torch.ones(7, 5)
    other["extra.weight"] = other.pop("layers.1.weight")
    save_file(other, tmp_path / "b.safetensors")
    with pytest.raises(CheckpointError) as error:
        Victim.load(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    message = str(error.value)
    assert "layers.1.weight only before" in message
    assert "extra.weight only after" in message
    assert "layers.0.weight [30, 5] before and [7, 5] after" in message


def test_identical_weights_are_refused_and_theta_0_may_be_absent(tmp_path: Path) -> None:
    save_file(weights(), tmp_path / "a.safetensors")
    with pytest.raises(CheckpointError, match="the same weights"):
        Victim.load(tmp_path / "a.safetensors", tmp_path / "a.safetensors")
    assert Victim.load(None, tmp_path / "a.safetensors").theta_0 is None
