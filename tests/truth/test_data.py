"""Data sets: what they promise, and what they refuse."""

from __future__ import annotations

import io
import math
import pickle
import shutil
import subprocess
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from recollect.errors import DataError, OptionError
from recollect.truth.data.builtin import digits, photos
from recollect.truth.data.cifar10 import download_cifar10, load_cifar10
from recollect.truth.data.dataset import equal_counts, from_arrays
from recollect.truth.data.files import load_npz
from recollect.truth.data.load import load_dataset
from recollect.truth.data.synthetic import synthetic


@given(
    n=st.integers(1, 20),
    dim=st.integers(1, 15),
    data=st.data(),
    noise=st.floats(0, 2),
    seed=st.integers(0, 99),
)
def test_synthetic_data_are_the_papers(
    n: int, dim: int, data: st.DataObject, noise: float, seed: int
) -> None:
    rank = data.draw(st.integers(1, dim))
    made = synthetic(n=n, dim=dim, rank=rank, noise=noise, seed=seed)
    torch.testing.assert_close(
        made.inputs.norm(dim=1), torch.full((n,), math.sqrt(dim), dtype=torch.float64)
    )
    torch.testing.assert_close(made.basis.T @ made.basis, torch.eye(rank, dtype=torch.float64))
    torch.testing.assert_close(made.inputs @ made.basis @ made.basis.T, made.inputs)
    assert torch.equal(
        made.targets, synthetic(n=n, dim=dim, rank=rank, noise=noise, seed=seed).targets
    )


def test_synthetic_labels_are_linear_plus_noise() -> None:
    clean, noisy = (synthetic(n=500, dim=10, rank=10, noise=noise, seed=4) for noise in (0.0, 0.5))
    g = torch.linalg.lstsq(clean.inputs, clean.targets).solution
    torch.testing.assert_close(clean.inputs @ g, clean.targets)
    assert float((noisy.targets - clean.targets).std()) == pytest.approx(0.5, rel=0.1)


def test_photos_are_many_spread_and_distinct() -> None:
    images, labels = photos()
    assert images.shape[1:] == (32, 32, 3)
    assert len(images) >= 200
    assert set(labels) == {0, 1}
    flat = images.reshape(len(images), -1).astype(float)
    flat -= flat.mean()
    flat /= np.linalg.norm(flat, axis=1, keepdims=True)
    likeness = np.abs(flat @ flat.T) - np.eye(len(flat))
    assert likeness.max() < 0.92
    assert likeness[:20, :20].max() < 0.6


def test_images_become_inputs_and_come_back() -> None:
    data = load_dataset("photos", 11)
    assert data.inputs.shape == (11, 3072)
    assert data.targets.sum(0).tolist() == [6, 5]
    torch.testing.assert_close(
        data.inputs.norm(dim=1), torch.full((11,), math.sqrt(3072), dtype=torch.float64)
    )
    assert data.basis.shape == (3072, 11)
    assert data.pixel_space is not None
    images, labels = photos()
    first = [image for image, label in zip(images, labels, strict=True) if label == 0][:6]
    assert np.array_equal(data.pixel_space.pixels(data.inputs, data.norms)[:6], np.stack(first))
    kept = load_dataset("photos", 11, keep_norms=True)
    torch.testing.assert_close(kept.inputs.norm(dim=1), kept.norms)
    assert load_dataset("digits", 20).inputs.shape == (20, 64)


def test_digits_are_bytes() -> None:
    images, labels = digits()
    assert images.dtype == np.uint8
    assert images.max() == 255
    assert len(images) == len(labels) == 1797


def cifar(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (n, 3072), dtype=np.uint8), np.arange(n) % 10


def test_cifar10_binary_and_python_batches_agree(tmp_path: Path) -> None:
    rows, labels = cifar(40)
    (tmp_path / "bin").mkdir()
    (tmp_path / "py" / "cifar-10-batches-py").mkdir(parents=True)
    for k, part in enumerate((slice(0, 20), slice(20, 40)), start=1):
        records = np.concatenate([labels[part, None].astype(np.uint8), rows[part]], axis=1)
        (tmp_path / "bin" / f"data_batch_{k}.bin").write_bytes(records.tobytes())
        batch = {
            b"data": rows[part],
            b"labels": labels[part].tolist(),
            b"batch_label": b"x",
            b"filenames": [b"a.png"],
        }
        protocol = 2 if k == 1 else 4
        (tmp_path / "py" / "cifar-10-batches-py" / f"data_batch_{k}").write_bytes(
            pickle.dumps(batch, protocol)
        )
    for folder in ("bin", "py"):
        images, found = load_cifar10(tmp_path / folder)
        assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(40, -1), rows)
        assert np.array_equal(found, labels)
        assert load_dataset(str(tmp_path / folder), 10).targets.shape == (10, 10)


def test_cifar10_from_python_2(tmp_path: Path) -> None:
    """The published batches were pickled by python 2: protocol 2, byte strings, `numpy.core`."""
    rows, labels = cifar(3)
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR(I1\n(I3\nI3072\ntcnumpy\ndtype\n"
        b"(S'u1'\nI0\nI1\ntR(I3\nS'|'\nNNNI-1\nI-1\nI0\ntbI00\n"
        + b"T"
        + len(rows.tobytes()).to_bytes(4, "little")
        + rows.tobytes()
        + b"tb"
    )
    content = b"(dS'data'\n" + array + b"sS'labels'\n(lI0\naI1\naI2\nas."
    (tmp_path / "data_batch_1").write_bytes(content)
    images, found = load_cifar10(tmp_path)
    assert np.array_equal(images.transpose(0, 3, 1, 2).reshape(3, -1), rows)
    assert np.array_equal(found, labels)


def test_hostile_cifar10_batches_run_nothing(tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[object, ...]:
            return (subprocess.check_call, (["touch", str(tmp_path / "ran")],))

    rows, labels = cifar(10)
    objects = np.array([{"a": 1}], dtype=object)
    for bad in (
        Payload(),
        {"data": Payload()},
        {"data": objects, "labels": [0]},
        {"data": rows, "labels": [99] * 10},
        [1],
        {"data": rows[:5], "labels": labels.tolist()},
        {10**5000: 1},
        {"data": rows, "labels": [10**5000] * 10},
        {(1, 2): rows},
    ):
        (tmp_path / "data_batch_1").write_bytes(pickle.dumps(bad))
        with pytest.raises(DataError, match="expected"):
            load_cifar10(tmp_path)
    whole = pickle.dumps({b"data": rows, b"labels": labels.tolist()}, 2)
    sizes = b"K\x0aM\x00\x0c\x86"
    assert whole.count(sizes) == 1
    infinite = b"G\x7f\xf0" + bytes(6)
    deep = b"\x80\x02})" + b"\x85" * 200_000 + b"Ns."
    for code in (
        whole.replace(sizes, b"J\xf6\xff\xff\xffJ\x00\xf4\xff\xff\x86"),  # −10 × −3072
        whole.replace(sizes, infinite + b"K\x01\x86"),
        whole.replace(sizes, b"G\x40\x24" + bytes(6) + b"M\x00\x0c\x86"),  # 10.0 × 3072
        b"\x80\x02]r\xff\xff\xff\x7f.",  # the 2³¹st place of a table
        b"c_codecs\nencode\n}X\x0c\x00\x00\x00__defaults__)sb.",
        b"\x80\x02P1\n.",
        deep,
    ):
        (tmp_path / "data_batch_1").write_bytes(code)
        with pytest.raises(DataError, match="expected"):
            load_cifar10(tmp_path)
    assert not (tmp_path / "ran").exists()
    (tmp_path / "data_batch_1").unlink()
    (tmp_path / "data_batch_1.bin").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="3073"):
        load_cifar10(tmp_path)


def test_a_download_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer(io.BytesIO):
        pass

    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: Answer(b"not the archive"))
    with pytest.raises(DataError, match="SHA-256"):
        download_cifar10(tmp_path)
    assert not list(tmp_path.iterdir())

    def offline(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    with pytest.raises(DataError, match="photos"):
        download_cifar10(tmp_path)


def test_npz_files(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (12, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", images=images, labels=np.arange(12) % 3)
    data = load_dataset(str(tmp_path / "images.npz"), 6)
    assert data.targets.shape == (6, 3)
    np.savez(tmp_path / "arrays.npz", inputs=rng.normal(size=(9, 4)), targets=rng.normal(size=9))
    assert load_dataset(str(tmp_path / "arrays.npz"), 5).inputs.shape == (5, 4)
    np.savez(tmp_path / "big.npz", images=images, labels=(np.arange(12) % 3).astype(">i8"))
    assert torch.equal(load_dataset(str(tmp_path / "big.npz"), 6).targets, data.targets)
    np.savez(tmp_path / "hollow.npz", inputs=np.zeros((3, 0)), targets=np.zeros(3))
    np.savez(tmp_path / "flat.npz", images=np.zeros((12, 0, 8), np.uint8), labels=np.arange(12) % 3)
    np.savez(tmp_path / "scalar.npz", images=np.uint8(3), labels=np.arange(12) % 3)
    np.savez(tmp_path / "objects.npz", images=np.array([{}], dtype=object), labels=np.zeros(1, int))
    np.savez(tmp_path / "names.npz", x=images)
    np.savez(tmp_path / "labels.npz", images=images, labels=np.full(12, -1))
    np.savez(tmp_path / "floats.npz", images=images.astype(float), labels=np.arange(12) % 3)
    np.savez(tmp_path / "nan.npz", inputs=np.full((3, 4), np.nan), targets=np.zeros(3))
    np.savez_compressed(
        tmp_path / "long.npz", inputs=np.ones((3, 5 * 10**6), np.int8), targets=np.zeros(3)
    )
    np.savez_compressed(
        tmp_path / "large.npz", images=np.ones((3, 5000, 1000), np.uint8), labels=np.arange(3)
    )
    np.savez(tmp_path / "zero.npz", inputs=np.zeros((3, 4)), targets=np.zeros(3))
    np.savez(tmp_path / "times.npz", images=images, labels=(np.arange(12) % 3).astype("m8[s]"))
    np.savez(
        tmp_path / "spans.npz", inputs=rng.normal(size=(3, 4)), targets=np.arange(3).astype("m8[s]")
    )
    with zipfile.ZipFile(tmp_path / "screen.npz", "w") as archive:
        archive.writestr("\x1b[2J.npy", saved(images))
    (tmp_path / "broken.npz").write_bytes(b"PK\x03\x04 no")
    for name in (
        "hollow",
        "flat",
        "scalar",
        "objects",
        "names",
        "labels",
        "floats",
        "nan",
        "long",
        "large",
        "zero",
        "times",
        "spans",
        "screen",
        "broken",
        "missing",
    ):
        with pytest.raises((DataError, OptionError), match="expected"):
            load_dataset(str(tmp_path / f"{name}.npz"), 3)
    with pytest.raises(OptionError, match="--n"):
        load_dataset(str(tmp_path / "arrays.npz"), 10)


def saved(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(6, dtype=">i4"),
        np.array(3.0),
        np.zeros((0, 4)),
        np.array(["a", "bc"]),
    ],
)
def test_arrays_are_those_of_numpy(tmp_path: Path, array: np.ndarray) -> None:
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "a.npz", a=array)
        found = load_npz(tmp_path / "a.npz")["a"]
        assert np.array_equal(found, array)
        assert found.dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize("limit", ["_LIMIT", "_ALWAYS"])
def test_an_npz_bomb_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    monkeypatch.setattr(f"recollect.truth.data.files.{limit}", 2**16)
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", bytes(2**20))
    with pytest.raises(DataError, match="unpacks to"):
        load_dataset(str(tmp_path / "bomb.npz"), 1)


@pytest.mark.parametrize("shape", ["(70000, 70000)", "(1099511627776,)", "(-1, -12)"])
def test_a_header_is_not_believed(tmp_path: Path, shape: str) -> None:
    """An array of that shape would be made before its data were missed."""
    whole = saved(np.zeros((3, 4)))
    header = whole[10 : whole.index(b"\n")].replace(b"(3, 4)", shape.encode())
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr(
            "a.npy",
            whole[:8]
            + (len(header) + 1).to_bytes(2, "little")
            + header
            + whole[whole.index(b"\n") :],
        )
    with pytest.raises(DataError, match="bytes"):
        load_npz(tmp_path / "a.npz")


def test_many_classes_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(np, "flatnonzero", lambda mask: looked.append(1) or mask.nonzero()[0])
    assert equal_counts(np.arange(9000), 3, 9000).tolist() == [0, 1, 2]
    assert len(looked) == 3


def test_folders_of_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "b/1.png", "b/2.png"):
        path = tmp_path / "good" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (9, 7, 3), dtype=np.uint8)).save(path)
    data = load_dataset(str(tmp_path / "good"), 4)
    assert data.inputs.shape == (4, 9 * 7 * 3)
    assert data.targets.sum(0).tolist() == [2, 2]
    shutil.copytree(tmp_path / "good" / "a", tmp_path / "flat")
    (tmp_path / "flat" / "notes").mkdir()
    assert load_dataset(str(tmp_path / "flat"), 2).targets.tolist() == [[1], [1]]
    (tmp_path / "good" / "b" / "3.png").write_bytes(b"not needed")
    assert torch.equal(load_dataset(str(tmp_path / "good"), 4).inputs, data.inputs)
    with pytest.raises(OptionError, match="class 0"):
        load_dataset(str(tmp_path / "good"), 6)
    Image.fromarray(np.zeros((5, 5, 3), np.uint8)).save(tmp_path / "good" / "b" / "2.png")
    with pytest.raises(DataError, match=r"got 5×5 in 2\.png after 7×9"):
        load_dataset(str(tmp_path / "good"), 4)
    (tmp_path / "good" / "b" / "2.png").write_bytes(b"no image")
    with pytest.raises(DataError, match="expected an image"):
        load_dataset(str(tmp_path / "good"), 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="got none"):
        load_dataset(str(tmp_path / "empty"), 4)


def test_hostile_images(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    Image.new("1", (3000, 3000)).save(path)  # a kilobyte
    with pytest.raises(DataError, match="27000000"):
        load_dataset(str(tmp_path), 1)
    with path.open("wb") as stream:
        stream.truncate(2**27)
    with pytest.raises(DataError, match="128 MiB"):
        load_dataset(str(tmp_path), 1)
    Image.new("RGB", (9, 7)).save(path, "EPS")  # a program, whatever it is called
    with pytest.raises(DataError, match="cannot identify"):
        load_dataset(str(tmp_path), 1)
    Image.fromarray(np.arange(63, dtype=np.uint8).reshape(9, 7)).save(path)
    whole = path.read_bytes()
    place = whole.index(b"IDAT") - 4
    path.write_bytes(
        whole[:place] + b"\x7f\xff\xff\xff" + whole[place + 4 :]
    )  # a chunk of two gigabytes, it says
    tracemalloc.start()
    load_dataset(str(tmp_path), 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


def test_small_images_of_many_pixels_are_not_all_unpacked(tmp_path: Path) -> None:
    for k in range(8):
        Image.new("1", (1100, 1000)).save(tmp_path / f"{k}.png")
    with pytest.raises(DataError, match=r"at most 16 MiB of pixels in \S+, got 25 MiB"):
        load_dataset(str(tmp_path), 8)
    tracemalloc.start()
    with pytest.raises(DataError, match="single colour"):
        load_dataset(str(tmp_path), 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**24


@pytest.mark.parametrize(
    ("dataset", "options"),
    [
        ("nothing-here", {"n": 3}),
        ("photos", {"n": 0}),
        ("photos", {"n": 100_000}),
        ("synthetic", {"n": 5, "rank": 61}),
        ("synthetic", {"n": 5, "rank": 0}),
        ("synthetic", {"n": 5, "noise": math.nan}),
        ("synthetic", {"n": -5}),
    ],
)
def test_absurd_requests_are_refused(dataset: str, options: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="expected"):
        load_dataset(dataset, **options)


def test_arrays_are_scaled_to_the_sphere() -> None:
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    data = from_arrays(X, torch.zeros(4, 1))
    torch.testing.assert_close(
        data.inputs.norm(dim=1), torch.full((4,), 3**0.5, dtype=torch.float64)
    )
    torch.testing.assert_close(data.norms.float(), X.norm(dim=1))
