"""Checkpoints are hostile until proven otherwise: every damaged or mismatched file is one named error."""

from __future__ import annotations

import pickle
import struct
import zipfile
from pathlib import Path

import pytest
import torch
from cases import small_mlp
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from recollect.errors import CheckpointError
from recollect.victim import Victim
from recollect.victim.checkpoint import load_checkpoint


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    return {name: value.float() for name, value in small_mlp(seed).theta_f.items()}


def test_both_formats_give_the_same_victim(tmp_path: Path) -> None:
    save_file(weights(0), tmp_path / "a.safetensors")
    torch.save(weights(0), tmp_path / "a.pt")
    torch.save({"state_dict": {f"module.{name}": value for name, value in weights(1).items()}}, tmp_path / "b.pt")
    from_safetensors = Victim.load(tmp_path / "a.safetensors", tmp_path / "b.pt")
    from_torch = Victim.load(tmp_path / "a.pt", tmp_path / "b.pt")
    assert from_safetensors.network == from_torch.network
    for name, change in from_torch.delta(from_torch.network.trained).items():
        assert torch.equal(change, from_safetensors.delta([name])[name])


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
    for content in (b"", whole[:4], whole[:20], whole[:-1], struct.pack("<Q", 2**62) + whole[8:], b"\xff" * 64):
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
def test_any_bytes_are_one_named_error(tmp_path_factory: pytest.TempPathFactory, content: bytes, suffix: str) -> None:
    path = tmp_path_factory.mktemp("fuzz") / f"x{suffix}"
    path.write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_zip_bomb_is_refused_before_unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recollect.victim.checkpoint._LIMIT", 2**20)
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("data", bytes(2**22))
    with pytest.raises(CheckpointError, match="unpacks to"):
        load_checkpoint(tmp_path / "bomb.pt")


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
