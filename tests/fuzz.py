"""Every reader of files from outside takes a hostile file or refuses it by a named error, and does
no more.

    python tests/fuzz.py --seconds 600 [--seed S] [--reader NAME] [--keep FOLDER]
    python tests/fuzz.py --reader NAME --seed S --case K        # one case again

A finding is: an exception that is no `RecollectError` (or whose message cannot be shown as it is),
the death of the process, too much time, too much memory, or anything done outside the folder of the
case. Case k of seed s is always the same bytes. Exit status 1 if there is any finding.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import faulthandler
import functools
import hashlib
import io
import itertools
import json
import math
import os
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Memory, small_mlp
from hostile import (
    NUMBERS,
    TEXTS,
    Call,
    Packed,
    Random,
    Stored,
    damaged,
    hostile_pickle,
    json_text,
    odd,
    odd_json,
    odd_npz,
    odd_pickle,
    odd_safetensors,
    odd_tensors,
    odd_torch,
    packed,
    pickled,
    safetensors_file,
    torch_file,
)
from PIL import Image
from sweeps import PLAN

from recollect import Exact, FullSpace, GradientDescent, Projection, Victim, reconstruct
from recollect.attacks.exact.tuning import Tuning
from recollect.attacks.options import attack_options, attack_words
from recollect.attacks.result import SavedRun
from recollect.auditing.verdict import caveats
from recollect.cli.reconstruct import named_attack, repeated
from recollect.errors import RecollectError
from recollect.examine.history import history
from recollect.examine.inspection import inspect
from recollect.examine.validate import validate
from recollect.records import FACTS, RESUME, TENSORS, ResumeFile, read_record, record_of
from recollect.report.html import render
from recollect.study.job import Job
from recollect.study.perform import TOLD, Trained
from recollect.study.plan import read_plan
from recollect.study.store import RESULTS, Store
from recollect.study.table import KINDS, SECONDS, csv_bytes, read_table, scored, table
from recollect.system.files import json_bytes
from recollect.truth.data.load import load_dataset
from recollect.truth.files import Truth, check_run, read_truth
from recollect.truth.metrics import evaluate
from recollect.victim.read.checkpoint import load_checkpoint

Case = dict[str, bytes]
"""The files of a case, by their path in its folder."""


# The readers, and valid files of each.


@dataclass(frozen=True)
class Reader:
    name: str
    make: Callable[[Random], Case]
    read: Callable[[Path], object]
    silent: bool = False
    """Whether it promises to raise nothing at all."""


def _numbers(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _network(seed: int) -> list[Packed]:
    sizes = {
        "layers.0.weight": (8, 5),
        "layers.0.bias": (8,),
        "layers.1.weight": (2, 8),
        "layers.1.bias": (2,),
    }
    return [
        packed(name, _numbers(seed + k, *size), "F32")
        for k, (name, size) in enumerate(sizes.items())
    ]


_ARCHITECTURE = {
    "recollect": json.dumps({"activation": "relu", "input_shape": [1, 1, 5], "run": "abc"})
}


def _weights(rng: Random, seed: int, *, whole: bool = False) -> tuple[str, bytes]:
    """One checkpoint: suffix and content."""
    if rng.random() < 0.5:
        tensors = _network(seed)
        if whole:
            return ".safetensors", safetensors_file(tensors, _ARCHITECTURE)
        return ".safetensors", odd_safetensors(rng, tensors, _ARCHITECTURE)
    return ".pt", torch_file(_network(seed)) if whole else odd_torch(rng, _network(seed))


def _checkpoint(suffix: str) -> Callable[[Random], Case]:
    def make(rng: Random) -> Case:
        if suffix == ".pt":
            return {"w.pt": odd_torch(rng, _network(0))}
        return {"w.safetensors": odd_safetensors(rng, _network(0), _ARCHITECTURE)}

    return make


def _pair(rng: Random) -> Case:
    """Two checkpoints: one odd, or both odd alike, so that they still belong together."""
    if rng.random() < 0.4:
        odd_ones = odd_tensors(rng, _network(0))
        told = odd_json(rng, json.loads(_ARCHITECTURE["recollect"])) if rng.random() < 0.3 else "{}"
        moved = [replace(one, raw=one.raw[4:] + one.raw[:4]) for one in odd_ones]
        return {
            "init.safetensors": safetensors_file(odd_ones, {"recollect": told}),
            "trained.safetensors": safetensors_file(moved, {"recollect": told}),
        }
    which = rng.randrange(2)
    made = {}
    for k, name in enumerate(("init", "trained")):
        suffix, content = _weights(rng, 10 * k, whole=k != which)
        made[name + suffix] = content
    return made


def _paths(folder: Path) -> tuple[Path, Path]:
    init, trained = sorted(folder.iterdir())
    return init, trained


def _load_victim(folder: Path) -> None:
    victim = Victim.load(*_paths(folder))
    victim.describe()
    victim.delta(victim.network.trained)
    victim.delta_W1()


def _validate(folder: Path) -> None:
    """All that an audit does before it attacks."""
    checked = validate(*_paths(folder))
    findings = checked.findings
    if checked.victim is not None:
        inspect(checked.victim)
        findings += (*history(checked.victim).findings, *caveats(checked.victim))
    for finding in findings:
        if not str(finding).isprintable():
            raise AssertionError("a finding that cannot be shown")


def _truth_npz(rng: Random) -> Case:
    return {"truth.npz": odd_npz(rng, {"inputs": _numbers(0, 4, 12), "norms": np.ones(4)})}


def _truth_safetensors(rng: Random) -> Case:
    tensors = [packed("inputs", _numbers(0, 4, 12)), packed("norms", np.ones(4))]
    pixels = {"shape": [3, 2, 2], "mean": 0.5, "std": 0.2}
    about = {"run": "abc", "pixels": pixels}
    if rng.random() < 0.3:
        content = safetensors_file(tensors, {"recollect": odd_json(rng, about)})
    else:
        old = rng.random() < 0.3
        key, told = ("pixels", pixels) if old else ("recollect", about)
        content = odd_safetensors(rng, tensors, {key: json.dumps(told)})
    case = {"truth.safetensors": content}
    if rng.random() < 0.3:  # the model of the same run, or of another one
        beside = json.dumps({"run": rng.choice(("abc", "def"))})
        case["trained.safetensors"] = safetensors_file(_network(0), {"recollect": beside})
    return case


def _data_npz(rng: Random) -> Case:
    pictures = np.random.default_rng(0).integers(0, 256, (6, 5, 4), dtype=np.uint8)
    pairs = (
        {"images": pictures, "labels": np.arange(6) % 3},
        {"inputs": _numbers(0, 6, 5), "targets": _numbers(1, 6)},
    )
    return {"data.npz": odd_npz(rng, rng.choice(pairs))}


@functools.cache
def _cifar() -> tuple[np.ndarray, list[int]]:
    return np.random.default_rng(0).integers(0, 256, (10, 3072), dtype=np.uint8), list(range(10))


@functools.cache
def _cifar_pickles() -> tuple[bytes, ...]:
    rows, labels = _cifar()
    batch = {b"data": rows, b"labels": labels, b"filenames": [b"a.png"] * 10}
    short = {b"data": rows[:4, :], b"labels": labels[:4]}
    return (
        pickled(batch, 2),
        pickled(batch, 4),
        pickled(short, 2),
        pickled({b"data": rows[:0], b"labels": []}, 4),
    )


def _odd_batch(rng: Random) -> Any:
    """A batch that says something odd, or of the wrong type."""
    rows, labels = _cifar()
    shapes = (
        (math.inf, 1),
        (math.nan, 2),
        (-10, -3072),
        (10**30, 1),
        ("10", 3072),
        (10,),
        [10, 3072],
        None,
        (0, 0),
    )
    state = [
        1,
        rng.choice(shapes),
        np.dtype("u1"),
        rng.choice((False, True, None, [])),
        rows.tobytes(),
    ]
    array = Call(np._core.multiarray._reconstruct, np.ndarray, (0,), b"b", state=tuple(state))
    keys: tuple[Any, ...] = (
        10**5000,
        -(10**5000),
        "\x1b[2J",
        "x" * 10**5,
        None,
        1.5,
        (1, (2, 3)),
        b"\xff",
        True,
    )
    return rng.choice(
        (
            {b"data": array, b"labels": labels},
            {
                b"data": rows,
                b"labels": [rng.choice((*NUMBERS[:18], "a", None, True, 10**5000))] * 10,
            },
            {b"data": rows.astype(rng.choice(("<i4", "f8", "?", "S3"))), b"labels": labels},
            {rng.choice(keys): 1},
            {rng.choice(keys): rows, b"data": rows, b"labels": labels},
            {b"data": np.asfortranarray(rows), b"labels": labels},
            {b"data": [rows], b"labels": {1: 2}},
            {b"data": rows, b"labels": np.arange(10)},
            [rows, labels],
            Call(os.system, "touch ran"),
            {b"data": Call(os.system, "touch ran"), b"labels": labels},
            {b"data": Stored("outside"), b"labels": labels},
            Call(np.dtype, "O"),
            odd(rng),
        )
    )


def _data_cifar(rng: Random) -> Case:
    rows, labels = _cifar()
    kind = rng.randrange(10)
    if kind < 2:
        records = np.concatenate([np.array(labels, np.uint8)[:, None], rows], axis=1).tobytes()
        return {"data_batch_1.bin": damaged(rng, records)}
    place = rng.choice(("data_batch_1", "cifar-10-batches-py/data_batch_3"))
    if kind < 4:
        return {place: pickled(_odd_batch(rng), rng.choice((2, 3, 4, 5)))}
    if kind < 6:
        return {place: hostile_pickle(rng)}
    whole = rng.choice(_cifar_pickles())
    return {place: damaged(rng, whole) if kind < 7 else odd_pickle(rng, whole)}


_FORMATS = ("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")


@functools.cache
def _picture(kind: str, k: int) -> bytes:
    stream = io.BytesIO()
    pixels = np.random.default_rng(k).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def _chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content))
        + kind
        + content
        + struct.pack(">I", zlib.crc32(kind + content))
    )


@functools.cache
def _large_picture(width: int, height: int, mode: int) -> bytes:
    """A small file of one colour and many pixels."""
    rows = (width * (3 if mode == 2 else 1) + 1) * height
    pixels = zlib.compress(bytes(rows), 1)
    head = struct.pack(">IIBBBBB", width, height, 8, mode, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"IDAT", pixels)
        + _chunk(b"IEND", b"")
    )


def _odd_picture(rng: Random) -> bytes:
    kind = rng.choice(_FORMATS)
    whole = _picture(kind, 0)
    choice = rng.randrange(12)
    if choice == 0:
        return rng.choice(
            (
                b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 5 6\n%%EndComments\n"
                b"(ran) (w) file closefile\n%%EOF\n",
                b"P6\n99999 99999\n255\n" + bytes(100),
                b"P1\n" + b"9" * 5000 + b" 2\n",
                b"P6\n" + b"#" * 100_000 + b"\n5 6\n255\n" + bytes(90),
                b"BM" + bytes(200),
                b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x08\xff"
                + bytes(300),
                whole[:20],
                b"",
            )
        )
    if choice == 1:
        if rng.random() < 0.1:
            return _large_picture(9000, 9000, rng.choice((0, 2)))
        return _large_picture(
            *rng.choice(((5, 6, 0), (5, 6, 3), (6, 5, 2), (60_000, 1, 0), (1, 60_000, 2)))
        )
    if choice == 2 and rng.random() < 0.1:
        text = _chunk(b"zTXt", b"a\x00\x00" + zlib.compress(bytes(80 << 20), 1))
        return _picture("PNG", 0)[:33] + text * 3 + _picture("PNG", 0)[33:]
    return damaged(rng, whole)


def _data_images(rng: Random) -> Case:
    where = rng.choice(("", "a/"))
    names = [f"{where}{k}.{rng.choice(('png', 'jpg', 'tif', 'gif'))}" for k in range(2)]
    return {names[0]: _picture("PNG", 1), names[1]: _odd_picture(rng)}


@functools.cache
def _record() -> tuple[list[Packed], dict[str, Any]]:
    tensors = [
        packed("inputs", _numbers(0, 3, 12)),
        packed("coefficients", _numbers(1, 3, 2)),
        packed("predictions", _numbers(2, 3, 2)),
        packed("trace", _numbers(3, 7)),
        packed("confidence", np.full(3, 0.5)),
        packed("singular_values", np.ones(4)),
    ]
    stage = {
        "name": "last layer",
        "loss": 0.1,
        "iterations": 7,
        "seconds": 0.5,
        "status": "converged",
    }
    options = {"checkpoints": ["a.pt", "b.pt"], "n": 3, "seed": 0, "device": "cpu"}
    facts = {
        "schema": 2,
        "victim": "2-layer network",
        "input_shape": [3, 2, 2],
        "options": {**options, **attack_words(Exact())},
        "tuning": asdict(Tuning()),
        "files": [],
        "status": "converged",
        "message": "done",
        "loss": 0.1,
        "n": 3,
        "n_source": "given",
        "n_clear": None,
        "signs_settled": True,
        "withheld": [{"points": [0, 2], "why": "the search was cut off"}],
        "rank": 4,
        "equations": 10,
        "unknowns": 8,
        "step_size": None,
        "span": "dense",
        "resumed_at": 0,
        "norms_identifiable": False,
        "confidence": [0.5, 0.5, 0.5],
        "notes": ["a note"],
        "stages": [stage, stage],
        "details": {},
        "versions": {"python": "3"},
    }
    return tensors, facts


def _show(folder: Path) -> None:
    """All that is done with a reconstruction whose truth is not known."""
    render(read_record(folder), None, None)


def _score(folder: Path) -> None:
    """All that is done with a reconstruction whose truth is known."""
    record, truth = read_record(folder), Truth(*_known(), None)
    check_run(truth, record.run)
    score = evaluate(record, truth.inputs)
    json_bytes(score.facts())
    render(record, truth, score)


@functools.cache
def _known() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.from_numpy(_numbers(5, 3, 12))
    return inputs, torch.linalg.vector_norm(inputs, dim=1)


def _repeat(folder: Path) -> None:
    """All that `reconstruct --from` does before it opens checkpoints."""
    _, said, _ = repeated(folder / FACTS, {})
    named_attack({name: said[name] for name in said if name in attack_options()}, [])


def _reconstruction(rng: Random) -> Case:
    tensors, facts = _record()
    chance = rng.random()
    content = odd_safetensors(rng, tensors) if chance < 0.5 else safetensors_file(tensors)
    told = {**facts, "sha256": hashlib.sha256(content).hexdigest()}
    text = odd_json(rng, told) if 0.4 < chance < 0.9 else json_text(told)
    raw = text.encode("utf-8", "surrogatepass")
    return {TENSORS: content, FACTS: damaged(rng, raw) if chance > 0.9 else raw}


_ATTACK = Projection(space=FullSpace(), solver=GradientDescent(iterations=3, step_size=0.1))


@functools.cache
def _interrupted() -> tuple[list[Packed], dict[str, str]]:
    """What an attack saves, with times that are always the same."""
    memory = Memory()
    reconstruct(small_mlp(), 3, _ATTACK, resume=memory)
    ((fingerprint, saved),) = memory.saved.items()
    outcome = saved.outcomes[0] if saved.outcomes else None
    outcomes = () if outcome is None else (replace(outcome, seconds=1.0),)
    with tempfile.TemporaryDirectory() as folder:
        ResumeFile(Path(folder)).save(fingerprint, SavedRun(outcomes, saved.run, 1.0))
        raw = (Path(folder) / RESUME).read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + length])
    data = raw[8 + length :]
    metadata = header.pop("__metadata__")
    tensors = [
        Packed(name, told["dtype"], tuple(told["shape"]), data[slice(*told["data_offsets"])])
        for name, told in sorted(header.items())
    ]
    return tensors, metadata


def _resume(rng: Random) -> Case:
    tensors, metadata = _interrupted()
    if rng.random() < 0.5:
        return {
            RESUME: safetensors_file(tensors, {"run": odd_json(rng, json.loads(metadata["run"]))})
        }
    return {RESUME: odd_safetensors(rng, tensors, metadata)}


def _go_on(folder: Path) -> None:
    """Resume, and make the files of what was found."""
    found = reconstruct(small_mlp(), 3, _ATTACK, resume=ResumeFile(folder))
    json_bytes(record_of(found, small_mlp()).facts)


# fmt: off
_TOML_VALUES = (
    "0", "-1", "1e999", "nan", "inf", "1" * 5000, "999999999999999999999999", "100000000", "1000",
    "0x" + "f" * 3000,
    '""', '"\\u0000"', '"\\u001b[2J"', '"' + "x" * 100_000 + '"',
    '"' + "layers.0," * 20_000 + 'last"', "true", "[]",
    "[[1]]", "[1, 'a']", "{}", "{a = 1}", "1979-05-27T07:32:00Z", "[" * 5000 + "]" * 5000,
    "{a = " * 3000 + "1" + "}" * 3000, "[" + "1," * 200 + "]",
    "[" + ",".join(map(str, range(1, 99))) + "]",
    "[" + "1,\n" * 30_000 + "]", "[" + "1," * 9000 + "]", "'''\n'''", '"rf"', '"gd"', '"exact"',
    '"projection"',
    '"nowhere:Class"', '"json:JSONDecoder"', '"json:nothing"', '":"', '"json:"', '":x"',
    '"..json:x"', '"a.b.c:d.e"',
)
# fmt: on


def _plan(rng: Random) -> Case:
    lines = PLAN.splitlines()
    names = [line.split(" ")[0] for line in lines if "=" in line]
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(lines))
        kind = rng.randrange(8)
        if kind < 4:
            name = rng.choice(
                (
                    *names,
                    *names,
                    "depth",
                    "parameters",
                    "restarts",
                    "momentum",
                    "step",
                    "keep_points",
                    *("attack", "attack_dtype", "attack_options", "attack_tolerance"),
                    *("gram", "norm", "rounds", "damping", "settled"),
                    "x",
                )
            )
            value = rng.choice(_TOML_VALUES)
            lines = [line for line in lines if not line.startswith(f"{name} ")]
            place = rng.randrange(2, len(lines) + 1)
            lines.insert(place, f"{name} = {value}")
        elif kind == 4:
            lines.insert(
                place,
                rng.choice(
                    (
                        ".".join(["a"] * rng.choice((30, 3000, 30_000))) + " = 1",
                        "[" + ".".join(["a"] * rng.choice((30, 3000, 30_000))) + "]",
                        "\n".join(f"[a{k}]" for k in range(2000)),
                        "\n".join(["[[grid]]"] * 300),
                        "[[common]]",
                        "[grid]",
                        "[[grid.a]]",
                        "common = 3",
                        "\x00",
                        "#" * 100_000,
                    )
                ),
            )
        elif kind == 5:
            del lines[place]
        elif kind == 6:
            lines.insert(place, rng.choice(lines))
        else:
            return {"plan.toml": damaged(rng, "\n".join(lines).encode())}
        lines = lines or [""]
    return {"plan.toml": "\n".join(lines).encode("utf-8", "surrogatepass")}


def _training(rng: Random) -> Case:
    """The files of `recollect train`, one of them odd."""
    facts = {
        "schema": 2,
        "run": "abc",
        "options": {"dataset": "synthetic", "n": 4, "width": 8},
        "mse": 0.1,
        "steps": 3,
        "learning_rate": 0.5,
        "gap_rank": None,
        "seconds": 1.5,
    }
    which = rng.randrange(5)
    truth = [packed("inputs", _numbers(0, 4, 5)), packed("norms", np.ones(4))]
    case = {
        name: odd_safetensors(rng, tensors, metadata)
        if which == k
        else safetensors_file(tensors, metadata)
        for k, (name, tensors, metadata) in enumerate(
            (
                ("init.safetensors", _network(0), _ARCHITECTURE),
                ("trained.safetensors", _network(10), _ARCHITECTURE),
                ("truth.safetensors", truth, {"recollect": json.dumps({"run": "abc"})}),
                ("basis.safetensors", [packed("U", np.eye(5)[:, :3])], {}),
            )
        )
    }
    told = odd_json(rng, facts) if which == 4 else json_text(facts)
    raw = told.encode("utf-8", "surrogatepass")
    return {**case, "train.json": damaged(rng, raw) if rng.random() < 0.05 else raw}


def _read_training(folder: Path) -> None:
    """What a sweep reads of a victim, and repeats in its results."""
    trained = Trained.read(folder)
    json_bytes({name: trained.facts.get(name) for name in TOLD})


@functools.cache
def _job() -> Job:
    return Job.of({"dataset": "synthetic", "n": 6, "width": 60, "keep_points": True})


@functools.cache
def _own_job() -> Job:
    """With an attack of somebody's own, whose code is not there."""
    own = {"attack": "nowhere:Class", "scale": 2.5, "word": "plain"}
    return Job.of({"dataset": "synthetic", "n": 6, "width": 60, "keep_points": True, **own})


@functools.cache
def _result() -> dict[str, Any]:
    of = {float: 0.5, int: 3, str: "text"}
    return {
        "job": _job().columns(),
        "result": {name: of[kind] for name, kind in RESULTS.items()},
        "seconds": dict.fromkeys(SECONDS, 1.5),
    }


# fmt: off
_CELLS = (
    *TEXTS[:-1], "nan", "inf", "-1e400", "²", "1_0", "0x10", " 1 ", "1" * 5000, "x" * 140_000,
    'a"b', '"', "a\nb",
    "a\rb", "=cmd()", "True", "10" * 5,
)
# fmt: on


def _table(rng: Random) -> Case:
    result = _result()
    row = {"job": _job().name, **result["job"], **result["result"], **result["seconds"]}
    cells = list(csv.reader(io.StringIO(csv_bytes([row, row, row]).decode())))
    kind = rng.randrange(10)
    if kind < 5:
        for _ in range(rng.choice((1, 1, 3))):
            line = rng.choice(cells[1:] if rng.random() < 0.9 else cells)
            names = list(KINDS)
            place = names.index("subspace_rank") if rng.random() < 0.1 else rng.randrange(len(line))
            line[place] = rng.choice(_CELLS)
    elif kind == 5:
        place = rng.randrange(len(cells[0]))
        for line in cells if rng.random() < 0.5 else rng.sample(cells, 2):
            del line[place]
    elif kind == 6:
        rng.choice(cells).extend(rng.choice((["x"], ["", ""], ["a"] * 5000)))
    elif kind == 7:
        short = rng.choice(("a", ",", '""'))
        cells += [[short]] * rng.choice((10, 10, 10, 1000, 300_000))
    elif kind == 8 and rng.random() < 0.2:
        cells[0] += [f"c{k}" for k in range(50_000)]
        cells += [["a"]] * 3000
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=rng.choice(("\n", "\r\n", "\r"))).writerows(cells)
    raw = text.getvalue().encode("utf-8", "surrogatepass")
    return {"table.csv": damaged(rng, raw) if kind == 9 else raw}


def _read_rows(folder: Path) -> None:
    scored(read_table(folder / "table.csv"))


def _store(rng: Random) -> Case:
    result, job = _result(), _job()
    if rng.random() < 0.3:
        job = _own_job()
        result = {**result, "job": job.columns()}
        if rng.random() < 0.5:
            options = rng.choice((odd_json(rng, {"scale": 2.5}), json_text({"scale": odd(rng)})))
            result["job"]["attack_options"] = options
    kind = rng.randrange(10)
    text, name = json_text(result), job.name
    if kind < 4:
        text = odd_json(rng, result)
    elif kind < 7:  # a job that may well be one, under the name that it would have
        options = {**result["job"], rng.choice(list(result["job"])): odd(rng)}
        text = json_text({**result, "job": options})
        with contextlib.suppress(RecollectError, ValueError, RecursionError):
            name = Job.of(json.loads(text)["job"]).name
    raw = text.encode("utf-8", "surrogatepass")
    if kind == 7:
        raw = damaged(rng, raw)
    case = {f"results/{name}.json": raw}
    points = [packed("inputs", _numbers(0, 6, 60))]
    case[f"points/{name}.safetensors"] = (
        odd_safetensors(rng, points) if kind == 8 else safetensors_file(points)
    )
    recipe = {"dataset": "synthetic", "n": 6, "width": 60}
    facts = {rng.choice(("recipe", "options")): recipe, "mse": 0.1, "steps": 3}
    told = odd_json(rng, facts) if kind == 9 else json_text(facts)
    case[f"victims/{_job().victim_name}/train.json"] = told.encode("utf-8", "surrogatepass")
    return case


def _read_store(folder: Path) -> None:
    store = Store(folder)
    for job in (_job(), _own_job()):
        store.has(job)
    store.has_victim(_job())
    csv_bytes(table(store))


READERS: dict[str, Reader] = {
    reader.name: reader
    for reader in (
        Reader(
            "safetensors",
            _checkpoint(".safetensors"),
            lambda folder: load_checkpoint(folder / "w.safetensors"),
        ),
        Reader("pt", _checkpoint(".pt"), lambda folder: load_checkpoint(folder / "w.pt")),
        Reader("victim", _pair, _load_victim),
        Reader("validate", _pair, _validate, silent=True),
        Reader("truth-npz", _truth_npz, lambda folder: read_truth(folder / "truth.npz")),
        Reader(
            "truth-safetensors",
            _truth_safetensors,
            lambda folder: read_truth(folder / "truth.safetensors"),
        ),
        Reader("data-npz", _data_npz, lambda folder: load_dataset(str(folder / "data.npz"), 3)),
        Reader("data-images", _data_images, lambda folder: load_dataset(str(folder), 2)),
        Reader("data-cifar10", _data_cifar, lambda folder: load_dataset(str(folder), 4)),
        Reader("reconstruction", _reconstruction, read_record),
        Reader("report", _reconstruction, _show),
        Reader("score", _reconstruction, _score),
        Reader("repeat", _reconstruction, _repeat),
        Reader("resume", _resume, _go_on, silent=True),
        Reader("training", _training, _read_training),
        Reader("plan", _plan, lambda folder: read_plan(folder / "plan.toml")),
        Reader("table", _table, _read_rows),
        Reader("store", _store, _read_store),
    )
}


# Running cases.


@dataclass(frozen=True)
class Limits:
    seconds: float = 5.0
    """Of processor time, so that a busy machine fails nobody."""
    bytes: int = 512 << 20
    """That a case may take beyond what the process held before."""
    waiting: float = 60.0
    """Of the clock, for a reader that waits for something."""


@dataclass(frozen=True)
class Finding:
    reader: str
    seed: int
    case: int
    what: str
    """In one line; like findings have the same."""
    detail: str = ""
    kept: Path | None = None

    def __str__(self) -> str:
        again = f"python tests/fuzz.py --reader {self.reader} --seed {self.seed} --case {self.case}"
        return f"{self.reader}: {self.what}\n    {again}\n    files: {self.kept}"


@dataclass
class Tally:
    reader: str
    accepted: int = 0
    refused: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return self.accepted + self.refused + len(self.findings)


def case_of(reader: Reader, seed: int, number: int) -> Case:
    return reader.make(Random(f"{seed}/{reader.name}/{number}"))


def fuzz(
    reader: Reader,
    seed: int,
    *,
    cases: int | None = None,
    first: int = 0,
    seconds: float = math.inf,
    limits: Limits = Limits(),
    keep: Path | None = None,
    progress: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Cases from the first on, until there were so many or the time is over.

    A process that dies is replaced.
    """
    tally, number, until = Tally(reader.name), first, time.monotonic() + seconds
    last = None if cases is None else first + cases
    memory = (
        "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    )  # a disk would be most of the time
    with tempfile.TemporaryDirectory(prefix="recollect-fuzz-", dir=memory) as box:
        while (last is None or number < last) and time.monotonic() < until:
            for outcome, detail in _in_a_child(
                reader, seed, number, last, until, limits, Path(box)
            ):
                if outcome == "accepted":
                    tally.accepted += 1
                elif outcome == "refused":
                    tally.refused += 1
                else:
                    tally.findings.append(
                        _kept(Finding(reader.name, seed, number, outcome, detail), reader, keep)
                    )
                number += 1
                progress(tally)
    return tally


def _kept(finding: Finding, reader: Reader, keep: Path | None) -> Finding:
    if keep is None:
        return finding
    folder = keep / f"{finding.reader}-{finding.seed}-{finding.case}"
    for name, content in case_of(reader, finding.seed, finding.case).items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "finding.txt").write_text(
        f"{finding}\n\n{finding.detail}\n", encoding="utf-8", errors="replace"
    )
    return replace(finding, kept=folder)


def _in_a_child(
    reader: Reader, seed: int, first: int, last: int | None, until: float, limits: Limits, box: Path
) -> Iterator[tuple[str, str]]:
    """What came of each case in order; the last of them may be that the process died."""
    said = box / "said"
    said.write_bytes(b"")
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads: the child starts none
        child = os.fork()
    if child == 0:
        try:
            os.close(source)
            _cases_here(reader, seed, first, last, until, limits, box, sink)
        except BaseException:
            traceback.print_exc()
            os._exit(3)
        os._exit(0)
    os.close(sink)
    stuck = ended = False
    try:
        for line in _lines(source, limits.waiting):
            told = json.loads(line)
            if told is None:
                ended = True
            else:
                yield told[0], told[1]
    except TimeoutError:
        stuck = True
    finally:
        os.close(source)
        if stuck or sys.exc_info()[0] is not None:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    detail = said.read_bytes()[-4000:].decode("utf-8", "replace")
    if stuck:
        yield f"waited for more than {limits.waiting:g} s", detail
    elif status == -signal.SIGPROF:
        yield f"took more than {limits.seconds:g} s", detail
    elif status < 0:
        yield f"the process died of {signal.Signals(-status).name}", detail
    elif status == 3:
        raise RuntimeError(f"the fuzzer itself failed: {detail}")
    elif not ended:
        yield f"the process ended with status {status}", detail


def _lines(source: int, waiting: float) -> Iterator[bytes]:
    """The lines of a pipe; TimeoutError where one is waited for in vain.

    Lines that came with an earlier one are kept here, where `select` does not see them.
    """
    held = b""
    while True:
        while b"\n" in held:
            line, _, held = held.partition(b"\n")
            yield line
        if not select.select([source], [], [], waiting)[0]:
            raise TimeoutError
        piece = os.read(source, 2**16)
        if not piece:
            return
        held += piece


def _cases_here(
    reader: Reader,
    seed: int,
    first: int,
    last: int | None,
    until: float,
    limits: Limits,
    box: Path,
    sink: int,
) -> None:
    _calm(box)
    watch = _Watch(box)
    for number in itertools.count(first) if last is None else range(first, last):
        if time.monotonic() > until:
            break
        case = case_of(reader, seed, number)
        outcome, detail = _judged(reader, case, watch, limits)
        os.write(sink, json.dumps([outcome, detail[-3000:]]).encode() + b"\n")
    os.write(sink, b"null\n")  # the end, as it should be


def _calm(box: Path) -> None:
    """No output of readers on the terminal, no core files, no bytecode, one thread."""
    said = os.open(box / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout = sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 (it stays open)
    faulthandler.enable(file=sys.stderr, all_threads=False)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    faulthandler.register(signal.SIGPROF, file=sys.stderr, all_threads=False, chain=True)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.dont_write_bytecode = True
    torch.set_num_threads(1)


class _Watch:
    """What is done outside the folder of a case: files that appear, and Python's audit events."""

    _EVENTS = frozenset(
        {
            *(
                "os.system",
                "os.exec",
                "os.fork",
                "os.forkpty",
                "os.posix_spawn",
                "os.spawn",
                "subprocess.Popen",
            ),
            *(
                "os.remove",
                "os.rename",
                "os.rmdir",
                "os.mkdir",
                "os.symlink",
                "os.link",
                "os.truncate",
                "os.chmod",
            ),
            *(
                "socket.connect",
                "socket.bind",
                "urllib.Request",
                "pty.spawn",
                "ctypes.dlopen",
                "shutil.rmtree",
            ),
            *("os.kill", "tempfile.mkdtemp", "tempfile.mkstemp"),
        }
    )

    def __init__(self, box: Path) -> None:
        self.outer = box / "outer"
        self.folder = self.outer / "inner" / "case"
        self.here = self.outer / "here"
        for folder in (self.here, self.outer / "tmp", self.folder):
            folder.mkdir(parents=True, exist_ok=True)
        os.chdir(self.here)
        os.environ["TMPDIR"] = tempfile.tempdir = str(self.outer / "tmp")
        self.active = False
        self.seen: list[str] = []
        self._own = str(self.folder)
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(path, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return  # a number is a file that was opened before
        elif event not in self._EVENTS:
            return
        if not (
            args and isinstance(args[0], (str, os.PathLike)) and str(args[0]).startswith(self._own)
        ):
            self.seen.append(f"{event}{args!r}"[:200])

    def strays(self) -> list[str]:
        found = [
            os.path.relpath(os.path.join(root, name), self.outer)
            for root, folders, files in os.walk(self.outer)
            if not root.startswith(self._own)
            for name in (*folders, *files)
        ]
        strays = sorted(set(found) - {"here", "tmp", "inner", "inner/case"})
        for name in strays:
            path = self.outer / name
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(
                missing_ok=True
            )
        return strays


def _judged(reader: Reader, case: Case, watch: _Watch, limits: Limits) -> tuple[str, str]:
    for name, content in case.items():
        path = watch.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    watch.seen = []
    held, reserved = _memory()
    _forget_peak()
    outcome, detail = "accepted", ""
    ceiling = resource.getrlimit(resource.RLIMIT_AS)[1]
    try:
        resource.setrlimit(resource.RLIMIT_AS, (reserved + limits.bytes, ceiling))
        signal.setitimer(signal.ITIMER_PROF, limits.seconds)
        watch.active = True
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(watch.folder)
    except RecollectError as error:
        outcome, detail = ("refused", "") if not reader.silent else _leaked(error)
        if not str(error).isprintable() or len(str(error)) > 2000:
            outcome, detail = f"a message not fit to show, of {_place(error)}", ascii(str(error))
        if _without_memory(error):
            outcome, detail = f"asked for too much memory in {_place(error)}", _told(error)
    except BaseException as error:
        outcome, detail = _leaked(error)
        if _without_memory(error):
            outcome = f"asked for too much memory in {_place(error)}"
    finally:
        watch.active = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
    grown = _memory(peak=True)[0] - held
    if grown > limits.bytes:
        outcome, detail = f"took more than {limits.bytes >> 20} MiB", f"{grown >> 20} MiB"
    shutil.rmtree(watch.folder)
    watch.folder.mkdir()
    if strays := watch.strays():
        outcome, detail = "files appeared outside the folder of the case", ", ".join(strays)
    if watch.seen:
        outcome, detail = "did something outside the folder of the case", "\n".join(watch.seen)
    return outcome, detail


def _leaked(error: BaseException) -> tuple[str, str]:
    return f"{type(error).__name__} in {_place(error)}", _told(error)


def _told(error: BaseException) -> str:
    return "".join(traceback.format_exception(error, chain=True))[-2500:]


def _place(error: BaseException) -> str:
    """Where in the package, and beneath it, it arose."""
    while error.__context__ is not None and isinstance(error, RecollectError):
        error = error.__context__
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "recollect" in Path(frame.filename).parts] or frames
    last = ours[-1]
    below = (
        f" ({Path(frames[-1].filename).name} {frames[-1].name})" if frames[-1] is not last else ""
    )
    return f"{Path(last.filename).name}:{last.lineno} {last.name}{below}"


def _without_memory(error: BaseException | None) -> bool:
    """Whether an allocation failed on the way, even if it was made a named error afterwards."""
    while error is not None:
        frames = traceback.extract_tb(error.__traceback__)
        parser = any(
            Path(frame.filename).name == "ast.py" for frame in frames
        )  # its stack's end is a MemoryError too
        if (isinstance(error, MemoryError) and not parser) or "allocate memory" in str(error)[
            :5000
        ]:
            return True
        error = error.__context__
    return False


def _memory(peak: bool = False) -> tuple[int, int]:
    """What the process holds, or has held at most, and the addresses it has reserved."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, resource.RLIM_INFINITY >> 1 if resource.RLIM_INFINITY > 0 else 2**60
    told = dict(line.split(":", 1) for line in lines)
    return int(told["VmHWM" if peak else "VmRSS"].split()[0]) << 10, int(
        told["VmSize"].split()[0]
    ) << 10


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


# The command.


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--reader", action="append", choices=READERS, help="may be given several times"
    )
    parser.add_argument("--case", type=int, help="this one alone")
    parser.add_argument(
        "--keep", type=Path, default=Path("fuzz-findings"), help="where cases with findings go"
    )
    options = parser.parse_args(arguments)
    chosen = [READERS[name] for name in options.reader or READERS]
    tallies = []
    shown = time.monotonic()

    def progress(tally: Tally) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            print(
                f"{tally.reader}: {tally.cases} cases, {len(tally.findings)} findings", flush=True
            )

    for reader in chosen:
        tally = fuzz(
            reader,
            options.seed,
            cases=None if options.case is None else 1,
            first=options.case or 0,
            seconds=options.seconds / len(chosen) if options.case is None else math.inf,
            keep=options.keep,
            progress=progress,
        )
        tallies.append(tally)
        alike: dict[str, list[Finding]] = {}
        for finding in tally.findings:
            alike.setdefault(finding.what, []).append(finding)
        for like in alike.values():
            print(
                f"\n{like[0]}"
                + (f"\n    and {len(like) - 1} more like it" if len(like) > 1 else "")
            )
            if options.case is not None:
                print(like[0].detail)
    print(f"\n{'reader':<20}{'cases':>9}{'accepted':>10}{'refused':>9}{'findings':>10}")
    for tally in tallies:
        counts = f"{tally.cases:>9}{tally.accepted:>10}{tally.refused:>9}{len(tally.findings):>10}"
        print(f"{tally.reader:<20}{counts}")
    return 1 if any(tally.findings for tally in tallies) else 0


if __name__ == "__main__":
    sys.exit(main())
