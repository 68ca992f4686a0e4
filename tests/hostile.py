"""Files as hostile as a generator of random numbers can make them.

There are bytes, JSON, tensors, archives, arrays and pickles. Everything is a function of the
generator alone, so that a case can be made again from its number.
"""

from __future__ import annotations

import collections
import functools
import io
import itertools
import json
import math
import os
import pickle
import pickletools
import random
import string
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

Random = random.Random


# Bytes.

_EXTREMES = (
    0,
    1,
    -1,
    2,
    127,
    255,
    2**15,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**53,
    2**62,
    2**63 - 1,
)


def damaged(rng: Random, content: bytes) -> bytes:
    """A few of the ways in which bytes go wrong, one after the other."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        content = rng.choice(_DAMAGES)(rng, bytearray(content))
    return bytes(content)


def _span(rng: Random, content: bytearray, longest: int = 64) -> slice:
    start = rng.randrange(len(content) + 1)
    return slice(start, min(len(content), start + rng.randint(1, longest)))


def _flip(rng: Random, content: bytearray) -> bytes:
    for _ in range(rng.randint(1, 8) if content else 0):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    return content


def _overwrite(rng: Random, content: bytearray) -> bytes:
    part = _span(rng, content)
    content[part] = rng.choice((rng.randbytes, lambda n: bytes(n), lambda n: b"\xff" * n))(
        part.stop - part.start
    )
    return content


def _insert(rng: Random, content: bytearray) -> bytes:
    place = rng.randrange(len(content) + 1)
    content[place:place] = rng.randbytes(rng.randint(1, 64))
    return content


def _repeat(rng: Random, content: bytearray) -> bytes:
    part = content[_span(rng, content, 512)]
    place = rng.randrange(len(content) + 1)
    content[place:place] = part * rng.choice((1, 2, 50))
    return content


def _remove(rng: Random, content: bytearray) -> bytes:
    del content[_span(rng, content, 256)]
    return content


def _truncate(rng: Random, content: bytearray) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _extreme(rng: Random, content: bytearray) -> bytes:
    """Most length and offset fields lie near the start or the end."""
    size = rng.choice((1, 2, 4, 8))
    if len(content) < size:
        return content
    last = len(content) - size
    near = rng.choice((last, min(last, 64), min(last, 256)))
    place = rng.randint(0, near) if rng.random() < 0.6 else last - rng.randint(0, near)
    number = rng.choice(_EXTREMES) % 2 ** (8 * size)
    content[place : place + size] = number.to_bytes(size, rng.choice(("little", "little", "big")))
    return content


# fmt: off
_DAMAGES: tuple[Callable[[Random, bytearray], bytes], ...] = (
    _flip, _overwrite, _insert, _repeat, _remove, _truncate, _extreme, _extreme,
)
# fmt: on


# Values, and JSON.

# fmt: off
TEXTS = (
    "", " ", "\x00", "\x1b[2J", "\u202e", "²", "٣", "é" * 30, "../../up", "/etc/passwd", "NaN",
    "-1", "1e999",
    "nul\x00l", "9" * 150, "9" * 5000, "x" * 100_000, "a,b", "true", "last", "layers.0", "{}", "[",
    "{{7*7}}", "%s%n",
)
NUMBERS = (
    0, 1, -1, 3, 10, 255, 10**4, 10**8, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64,
    -(2**63), 10**30,
    10**400, 0.0, -0.5, 0.9, 1e-320, 1e30, 1e200, 1e308,
)
_RAW = (
    "NaN", "Infinity", "-Infinity", "1e999", "-0", "1" * 5000, '"\\ud800"', '"\\u0000"',
    '{"a": 1, "a": 2}',
    "[" * 300 + "]" * 300, "[" * 50_000 + "]" * 50_000, '{"a":' * 300 + "1" + "}" * 300,
    '{"a":' * 50_000 + "1" + "}" * 50_000, "[1,]", "tru",
)
# fmt: on
"""What JSON text may hold and a value cannot; each is put where its number stands between two @."""


def odd(rng: Random) -> Any:
    kind = rng.randrange(8)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind < 4:
        return rng.choice(NUMBERS)
    if kind == 4:
        return f"@{rng.randrange(len(_RAW))}@"
    return rng.choice(
        (None, True, False, [], {}, [[]], [None], ["a"], {"a": 1}, [1, 2, 3], [3, 8, 8], [0.5])
    )


def odd_tree(rng: Random, tree: Any) -> Any:
    """The same with one place changed: replaced, removed, renamed, doubled."""
    if not isinstance(tree, (dict, list)) or not tree or rng.random() < 0.15:
        return odd(rng)
    if isinstance(tree, list):
        place = rng.randrange(len(tree))
        if rng.random() < 0.2:
            return rng.choice(
                (tree[:place] + tree[place + 1 :], tree + tree, tree[::-1], tree * 50)
            )
        return [odd_tree(rng, value) if k == place else value for k, value in enumerate(tree)]
    name = rng.choice(list(tree))
    left = {key: value for key, value in tree.items() if key != name}
    chance = rng.random()
    if chance < 0.1:
        return left
    if chance < 0.2:
        return {**left, str(rng.choice((*TEXTS, *tree))): tree[name]}
    return {**tree, name: odd_tree(rng, tree[name])}


def json_text(value: Any) -> str:
    text = json.dumps(value)
    for k, raw in enumerate(_RAW):
        text = text.replace(f'"@{k}@"', raw)
    return text


def odd_json(rng: Random, value: Any) -> str:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        value = odd_tree(rng, value)
    return json_text(value)


# Tensors: what a file says of them, and their bytes.


@dataclass(frozen=True)
class Packed:
    """A tensor as a .safetensors file has it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    def filled(
        self, pattern: bytes, dtype: str | None = None, shape: Sequence[int] | None = None
    ) -> Packed:
        """As many bytes of the pattern as dtype and shape need; few where they need too many."""
        dtype, shape = dtype or self.dtype, self.shape if shape is None else tuple(shape)
        size = math.ceil(math.prod(shape) * _BITS.get(dtype, 32) / 8)
        size = size if 0 <= size <= 2**20 else 64
        return Packed(self.name, dtype, shape, (pattern * (size // len(pattern) + 1))[:size])


_BITS = {
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "X1": 8,
}
# fmt: off
_PATTERNS = (
    b"\x00", b"\xff", b"\x01", struct.pack("<d", math.nan), struct.pack("<f", math.inf),
    struct.pack("<d", 1e200),
    struct.pack("<d", 1e308), struct.pack("<f", 3e38), struct.pack("<d", 1e-310),
    struct.pack("<q", -(2**63)),
    struct.pack("<q", 10**6), bytes(range(1, 60)),
)
_SHAPES = (
    (), (0,), (1,), (2, 0), (0, 2**40), (0, 2**63 - 1), (2**63, 0), (0, 2**64), (2**32, 2**32),
    (2**62, 4), (5,),
    (1,) * 3, (1,) * 70, (5, 8), (8, 5, 1), (1, 40), (40, 1), (3, 2), (7, 7), (300, 300),
)
_NAMES = (
    *TEXTS, "V", "b", "theta", "weight", "layers.0.weight", "layers.0.bias", "layers.2.weight",
    "a.weight", "W1",
    "bn.num_batches_tracked", "bn.running_mean", "lora_A.weight", "0.qweight", "exp_avg",
    "state_dict", "inputs",
    "norms", "targets", "trace", "confidence", "singular_values", "__metadata__",
)
# fmt: on


def packed(name: str, array: Any, dtype: str = "F64") -> Packed:
    kinds = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "U8": "u1"}
    array = np.asarray(array, kinds[dtype])
    return Packed(name, dtype, array.shape, array.tobytes())


def odd_tensors(rng: Random, tensors: Sequence[Packed]) -> list[Packed]:
    """Tensors that a file may well hold, but that are not what is expected of it."""
    made = list(tensors)
    for _ in range(rng.choice((1, 1, 2))):
        if not made:
            break
        place = rng.randrange(len(made))
        one = made[place]
        kind = rng.randrange(8)
        if kind == 0:
            made[place] = one.filled(rng.choice(_PATTERNS), dtype=rng.choice(list(_BITS)))
        elif kind <= 2:
            shape = rng.choice(
                (*_SHAPES, one.shape[::-1], (1, *one.shape), (*one.shape, 1), one.shape[:-1])
            )
            made[place] = one.filled(rng.choice((_PATTERNS[-1], one.raw or b"\x00")), shape=shape)
        elif kind == 3:
            made[place] = one.filled(rng.choice(_PATTERNS))
        elif kind == 4:
            raw = bytearray(one.raw)
            pattern = rng.choice(_PATTERNS)[: len(raw)]
            start = len(pattern) * rng.randrange(max(1, len(raw) // max(1, len(pattern))))
            raw[start : start + len(pattern)] = pattern
            made[place] = replace(one, raw=bytes(raw[: len(one.raw)]))
        elif kind == 5:
            made[place] = replace(
                one, name=rng.choice((*_NAMES, *(other.name for other in tensors)))
            )
        elif kind == 6:
            del made[place]
        else:
            letters, count = (
                rng.choice(("a", "ab", "abcdef", string.ascii_letters)),
                rng.choice((1, 2, 30, 400, 1500)),
            )
            new = one.filled(b"\x01", dtype="F32", shape=(1, 1))
            made += [replace(new, name=f"{rng.choice(letters)}{k}.weight") for k in range(count)]
    return made


def safetensors_file(
    tensors: Sequence[Packed],
    metadata: Mapping[str, Any] | None = None,
    *,
    rng: Random | None = None,
) -> bytes:
    """The file; with a generator, its header is tampered with."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for one in tensors:
        header[one.name] = {
            "dtype": one.dtype,
            "shape": list(one.shape),
            "data_offsets": [end, end + len(one.raw)],
        }
        end += len(one.raw)
    text = json_text(header)
    if rng is not None:
        text = odd_json(rng, header)
        if rng.random() < 0.2:  # a key twice, which a dictionary cannot hold
            text = text[:-1] + "," + text[1:]
    packed_header = text.encode("utf-8", "surrogatepass")
    packed_header += b" " * (-len(packed_header) % 8)
    length = len(packed_header)
    if rng is not None and rng.random() < 0.1:
        length = rng.choice((*_EXTREMES, length + 8, length - 8)) % 2**64
    return struct.pack("<Q", length) + packed_header + b"".join(one.raw for one in tensors)


def odd_safetensors(
    rng: Random, tensors: Sequence[Packed], metadata: Mapping[str, Any] | None = None
) -> bytes:
    kind = rng.randrange(10)
    if kind < 4:
        return safetensors_file(odd_tensors(rng, tensors), metadata)
    if kind < 6:
        told = {name: odd_json(rng, json.loads(value)) for name, value in (metadata or {}).items()}
        return safetensors_file(rng.choice((tensors, odd_tensors(rng, tensors))), told)
    if kind < 8:
        return safetensors_file(tensors, metadata, rng=rng)
    return damaged(rng, safetensors_file(tensors, metadata))


# Zip archives and .npy arrays.


def zipped(members: Sequence[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w", method) as archive:
        warnings.simplefilter("ignore")  # of names that are there twice
        for name, content in members:
            entry = zipfile.ZipInfo(name)
            entry.compress_type = method
            archive.writestr(entry, content)
    return stream.getvalue()


_ZIP_FIELDS = {
    b"PK\x01\x02": ((8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4)),
    b"PK\x03\x04": ((6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2)),
    b"PK\x05\x06": ((8, 2), (10, 2), (12, 4), (16, 4), (20, 2)),
}


def odd_directory(rng: Random, archive: bytes) -> bytes:
    """A field of a zip's headers changed: method, sizes, offsets, counts."""
    content = bytearray(archive)
    for _ in range(rng.choice((1, 1, 2))):
        mark = rng.choice(list(_ZIP_FIELDS))
        places = (
            [k for k in range(len(content)) if content[k : k + 4] == mark]
            if len(content) < 50_000
            else []
        )
        if places:
            offset, size = rng.choice(_ZIP_FIELDS[mark])
            place = rng.choice(places) + offset
            number = rng.choice((*_EXTREMES, 8, 12, 14, len(archive), 600 << 20))
            content[place : place + size] = (number % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(content)


_BOMB = 640 << 20


@functools.cache
def bomb(name: str, first: bytes = b"", said: int | None = None) -> bytes:
    """An archive of one member: `first`, and then hundreds of megabytes of zeros.

    `said` is how much it says that it unpacks to, where that is not true. The checksum is wrong:
    readers learn of that when all is unpacked.
    """
    block = bytes(2**20)
    press = zlib.compressobj(9, zlib.DEFLATED, -15)
    start = press.compress(first) + press.flush(zlib.Z_FULL_FLUSH)
    zeros = press.compress(block) + press.flush(zlib.Z_FULL_FLUSH)
    deflated = start + zeros * (_BOMB // len(block)) + b"\x03\x00"
    size = len(first) + _BOMB if said is None else said
    told = struct.pack("<IIIHH", 0, len(deflated), size, len(name), 0) + name.encode()
    local = b"PK\x03\x04" + struct.pack("<HHHHH", 20, 0, 8, 0, 33) + told
    central = b"PK\x01\x02" + struct.pack("<HHHHHH", 20, 20, 0, 8, 0, 33) + told[:16]
    central += struct.pack("<HHHII", 0, 0, 0, 0, 0) + name.encode()
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local) + len(deflated), 0)
    return local + deflated + central + b"PK\x05\x06" + end


# fmt: off
_DESCRIPTIONS = (
    "'|O'", "'<f4'", "'>f8'", "'>i2'", "'<f2'", "'<f16'", "'<c16'", "'|b1'", "'|S4'", "'<U2'",
    "'|V8'", "'|V0'",
    "'|S0'", "'<M8[s]'", "'<m8[s]'", "'<m8'", "'<u8'", "'<i1'", "'|V2000000000'", "[('a', '<f8')]",
    "[('a', '|O')]",
    "[('a', '<f8', (1000, 1000, 1000))]", "('<f8', (2,))", "'f8,f8'",
    "{'names': ['a'], 'formats': ['<f8'], 'offsets': [1000000000]}", "None", "3",
    "__import__('os').system('touch ran')", "'" + "x" * 9000 + "'",
)
_NPY_SHAPES = (
    "()", "(0,)", "(4, 0)", "(-1,)", "(2, -3)", "(2**40,)", "(1099511627776,)", "(70000, 70000)",
    "(0, 4611686018427387904)", "(9223372036854775807, 9223372036854775807)",
    "(99999999999999999999999,)", "(1.5,)",
    "(True, 2)", "('a',)", "4", "None", "(" + "1, " * 70 + ")", "(" * 3000 + ")" * 3000,
    "-" * 5000 + "1",
)
# fmt: on


def npy(
    array: np.ndarray, *, descr: str | None = None, shape: str | None = None, order: str = "False"
) -> bytes:
    descr, shape = descr or repr(array.dtype.str), shape or str(array.shape)
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"
    padded = header + " " * (-(len(header) + 11) % 64) + "\n"
    return (
        b"\x93NUMPY\x01\x00"
        + struct.pack("<H", len(padded) & 0xFFFF)
        + padded.encode()
        + array.tobytes()
    )


def odd_array(rng: Random, array: np.ndarray) -> bytes:
    kind = rng.randrange(8)
    if kind == 0:
        return npy(array, descr=rng.choice(_DESCRIPTIONS))
    if kind == 1:
        return npy(array, shape=rng.choice(_NPY_SHAPES))
    if kind == 2:
        return npy(array, order=rng.choice(("True", "1", "None", "'x'")))
    if kind == 3:  # another kind of array, whole
        kinds = (
            "<f4",
            ">f8",
            ">i4",
            "<f2",
            "<c16",
            "?",
            "S4",
            "<U3",
            "<m8[s]",
            "<M8[s]",
            "<u8",
            "i1",
            "<f16",
            "<u2",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return npy(array.astype(np.int64).astype(rng.choice(kinds)))
    if kind == 4:  # another shape, whole
        size = array.size
        shapes = (
            (),
            (size,),
            (1, size),
            (size, 1),
            array.shape[::-1],
            (*array.shape, 1),
            (1,) * 40 + array.shape,
        )
        return (
            npy(array[..., :0])
            if rng.random() < 0.2
            else npy(array, shape=repr(rng.choice(shapes)))
        )
    if kind == 5:  # other values
        made = array.copy().reshape(-1)
        raw = rng.choice(_PATTERNS) * made.nbytes
        made[: rng.randint(1, made.size)] = np.frombuffer(raw[: made.nbytes], made.dtype)[0]
        return npy(made.reshape(array.shape))
    if kind == 6:
        whole = bytearray(npy(array))
        whole[6:8] = rng.choice((b"\x02\x00", b"\x03\x00", b"\x09\x09", b"\x00\x00"))
        return bytes(whole)
    return damaged(rng, npy(array))


def odd_npz(rng: Random, arrays: Mapping[str, np.ndarray]) -> bytes:
    whole = {f"{name}.npy": npy(array) for name, array in arrays.items()}
    members = list(whole.items())
    method = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    kind = rng.randrange(20)
    if kind < 9:
        for name in rng.sample(list(arrays), rng.randint(1, len(arrays))):
            whole[f"{name}.npy"] = odd_array(rng, arrays[name])
        return zipped(list(whole.items()), method)
    if kind < 12:
        names = (
            *TEXTS,
            *arrays,
            "../../up.npy",
            "/escaped.npy",
            "inputs.npy",
            "images.npy",
            "x.npy",
            "a/b.npy",
        )
        place = rng.randrange(len(members))
        extra = (rng.choice(names)[:60_000], rng.choice((b"", b"text", members[place][1])))
        return zipped(
            rng.choice(([*members, extra], [extra, *members], [extra], members[:-1], [])), method
        )
    if kind < 15:
        return odd_directory(rng, zipped(members, method))
    if kind == 15 and rng.random() < 0.3:
        name, array = rng.choice(list(arrays.items()))
        shape = rng.choice(((_BOMB,), (20_480, 2**15), (4, _BOMB >> 2), (_BOMB >> 2, 2, 2)))
        start = npy(array[:0], descr="'|u1'", shape=repr(shape))
        return bomb(f"{name}.npy", start, rng.choice((None, 2**20, 100)))
    if kind == 16:  # much in little: many members, or one that is said to be large
        return zipped([(f"{k}.npy", members[0][1]) for k in range(rng.choice((3, 300)))], method)
    return damaged(rng, zipped(members, method))


# Pickles, and checkpoints made of them.


class Call:
    """What a pickle asks to be called."""

    def __init__(self, function: Any, *args: Any, state: Any = None) -> None:
        self.asked = (function, args) if state is None else (function, args, state)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.asked


class Stored:
    """A reference to something outside the pickle."""

    def __init__(self, *said: Any) -> None:
        self.said = said


class _Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.said if isinstance(value, Stored) else None


def pickled(value: Any, protocol: int = 2) -> bytes:
    stream = io.BytesIO()
    _Pickler(stream, protocol).dump(value)
    return stream.getvalue()


def _literal(value: int) -> bytes:
    return b"\x8a\x09" + value.to_bytes(9, "little", signed=True)


# fmt: off
_HOSTILE_PICKLES = (
    b"cos\nsystem\n(S'touch ran'\ntR.", b"cposix\nsystem\nX\x09\x00\x00\x00touch ran\x85R.",
    b'cbuiltins\neval\n(S\'open("ran","w")\'\ntR.',
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x09touch ran\x85R.",
    b"(S'touch ran'\nios\nsystem\n.", b"(cos\nsystem\nS'touch ran'\no.",
    b"cbuiltins\nbytearray\n" + _literal(2**34) + b"\x85R.",
    b"cbuiltins\nbytearray\n" + _literal(2**40) + b"\x85R.",
    b"ctorch\nTensor\n(" + _literal(2**17) + _literal(2**17) + b"tR.",
    b"ctorch\nTensor\n" + _literal(2**35) + b"\x85\x81.",
    b"ctorch\nFloatStorage\n" + _literal(2**34) + b"\x85R.",
    b"ctorch.storage\nUntypedStorage\n" + _literal(2**36) + b"\x85R.",
    b"c_codecs\nencode\nX\x04\x00\x00\x00abcdX\x05\x00\x00\x00rot13\x86R.",
    b"c_codecs\nencode\nX\x60\xea\x00\x00" + "é".encode() * 30_000
    + b"X\x08\x00\x00\x00punycode\x86R.", b"S'x'\nQ.",
    b"Pid\n.", b"X\x01\x00\x00\x00xr\xff\xff\xff\x7f.", b"\x80\x02]r\xf0\xff\xff\x3f.",
    b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"x.", b"B\xff\xff\xff\xff.",
    b"T\xff\xff\xff\x7f.",
    b"\x80\x04\x95" + struct.pack("<Q", 2**63 - 1) + b"N.", b"\x8b\xff\xff\xff\x7f.",
    b"\x8b\x00\xa0\x00\x00" + b"\x7f" * 0xA000 + b".", b"}" + b")" + b"\x85" * 200_000 + b"Ns.",
    b")" + b"\x85" * 60_000 + b".", b"]" * 60_000 + b"a" * 59_999 + b".",
    b"(" * 60_000 + b"t" * 60_000 + b".",
    b"}" * 30_000 + b".", b"]q\x00h\x00a.", b"}q\x00X\x05\x00\x00\x00modelh\x00s.",
    b"}" + b"\x8b\xd0\x07\x00\x00" + b"\x7f" * 2000 + b"Ns.",
    b"}G\x7f\xf0\x00\x00\x00\x00\x00\x00Ns.",
    b"ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00itemsNsb.",
    b"ccollections\nCounter\n]K\x01a\x85R.",
    b"c_codecs\nencode\n}X\x0c\x00\x00\x00__defaults__)sb.", b"I" + b"9" * 10_000 + b"\n.",
    b"L" + b"9" * 10_000 + b"L\n.", b"Fnan\n.", b"V\\ud800\n.", b"\x82\x01.", b"\x97.",
    b"N" * 50_000 + b".", b".",
    b"",
)
_SNIPPETS = (
    b"0", b"1", b"2", b"(", b")", b"]", b"}", b"N", b"R", b"b", b"Q", b"s", b"u", b"a", b"e", b"t",
    b"\x81", b"\x85",
    b"\x86", b"\x87", b"\x88", b"\x8f", b"\x90", b"\x91", b"\x93", b"\x94", b"h\x00", b"K\x05",
    b"J\xff\xff\xff\xff",
    b"q\x05", b"cos\nsystem\n", b"ctorch\nTensor\n", b"cnumpy\ndtype\n", b"cnumpy\nndarray\n",
    b"cbuiltins\nbytearray\n", b"ccollections\nOrderedDict\n", b"X\x04\x00\x00\x00data",
    _literal(2**62),
    b"G\x7f\xf0\x00\x00\x00\x00\x00\x00", b".",
)
# fmt: on


_CALLED = (
    *(
        "_codecs encode",
        "collections OrderedDict",
        "collections Counter",
        "collections defaultdict",
        "torch Size",
    ),
    *(
        "torch device",
        "torch Tensor",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
    ),
    *(
        "torch._tensor _rebuild_from_type_v2",
        "argparse Namespace",
        "pathlib PosixPath",
        "datetime datetime",
    ),
    *(
        "numpy dtype",
        "numpy ndarray",
        "numpy.core.multiarray _reconstruct",
        "numpy._core.multiarray scalar",
    ),
    *(
        f"__builtin__ {name}"
        for name in ("bytearray", "bytes", "dict", "frozenset", "list", "set", "slice", "str")
    ),
)


def hostile_pickle(rng: Random) -> bytes:
    return rng.choice(_HOSTILE_PICKLES) if rng.random() < 0.6 else much_from_little(rng)


def much_from_little(rng: Random) -> bytes:
    """A long value that is written once and used again and again.

    Its length, times how often it is used, is far more than the file.
    """
    length, uses = 10_000, rng.choice((4000, 6000))
    text = b"X" + struct.pack("<I", 20 * length) + b"a" * (20 * length)
    each = [b"J" + struct.pack("<I", k) for k in range(length)]
    numbers, pairs = (
        b"(" + b"".join(each),
        b"(" + b"".join(one + b"K\x02\x86" for one in each) + b"l",
    )
    same_pair = b"K\x01K\x02\x86q\x07(" + b"h\x07" * length + b"l"
    values = (
        text,
        b"B" + text[1:],
        numbers + b"l",
        numbers + b"t",
        numbers + b"d",
        pairs,
        same_pair,
    )
    call, encode = b"h\x00h\x01\x85R", b"h\x00h\x01h\x02\x86R"
    name, value, use = rng.choice(
        (
            ("_codecs encode", text, encode),
            ("_codecs encode", text, b"}" + encode + b"Ns"),
            ("collections OrderedDict", pairs, call),
            ("collections OrderedDict", same_pair, call),
            ("collections OrderedDict", b"(" + numbers + b"tl", call),
            (
                "_codecs encode",
                text + b"q\x03" + text,
                b"}h\x03Nsh\x01Ns",
            ),  # equal keys that are not the same
            (
                "_codecs encode",
                rng.choice(values),
                b"J%sh\x01",
            ),  # a dictionary of which each value is the same
            *[(rng.choice(_CALLED), rng.choice(values), rng.choice((call, encode, *_USES)))] * 5,
        )
    )
    start = b"\x80\x02(c" + name.replace(" ", "\n").encode() + b"\nq\x00" + value
    start += b"q\x01X\x06\x00\x00\x00latin1q\x02("
    if b"%s" in use:
        return (
            start + b"".join(use.replace(b"%s", struct.pack("<I", k)) for k in range(uses)) + b"d."
        )
    return start + (use + rng.choice((b"", b"0"))) * uses + rng.choice((b"t.", b"l."))


_USES = (
    b"h\x00h\x01h\x01h\x01\x87R",
    b"h\x00)Rh\x01b",
    b"h\x00)R}h\x01h\x01sb",
    b"h\x00h\x01\x81",
    b"}h\x01Ns",
    b"h\x01Q",
    b"h\x01h\x01\x93",
)


def odd_pickle(rng: Random, whole: bytes) -> bytes:
    """Operations of a pickle left out, repeated, exchanged, put in."""
    starts = [place for _, _, place in pickletools.genops(whole) if place is not None]
    operations = [whole[a:b] for a, b in itertools.pairwise((*starts, len(whole)))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        place = rng.randrange(len(operations))
        kind = rng.randrange(5)
        if kind == 0:
            del operations[place]
        elif kind == 1:
            operations[place:place] = [operations[place]] * rng.choice((1, 2, 40))
        elif kind == 2:
            operations[place : place + 2] = operations[place : place + 2][::-1]
        elif kind == 3:
            operations.insert(place, rng.choice(_SNIPPETS))
        else:
            operations[place] = rng.choice((*_SNIPPETS, rng.choice(operations)))
        if not operations:
            return b""
    return b"".join(operations)


_STORAGES = {
    "F32": torch.FloatStorage,
    "F64": torch.DoubleStorage,
    "I64": torch.LongStorage,
    "F16": torch.HalfStorage,
    "BF16": torch.BFloat16Storage,
    "I8": torch.CharStorage,
    "U8": torch.ByteStorage,
    "I32": torch.IntStorage,
    "BOOL": torch.BoolStorage,
}


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))


def _rebuilt(rng: Random | None, one: Packed, key: str) -> Any:
    """A tensor as torch pickles it; with a generator, something about it is wrong."""
    kind = _STORAGES.get(one.dtype, torch.FloatStorage)
    count = len(one.raw) * 8 // _BITS.get(one.dtype, 32)
    said: list[Any] = ["storage", kind, key, "cpu", count]
    args: list[Any] = [None, 0, one.shape, _strides(one.shape), False, collections.OrderedDict()]
    if rng is not None:
        wrong = rng.randrange(10)
        numbers = (*_EXTREMES, -5, 2**70, 1.5, None, "1", True, (), [3])
        if wrong == 0:
            said[4] = rng.choice(numbers)
        elif wrong == 1:
            said[rng.randrange(5)] = rng.choice(
                (*numbers, "cuda:0", "meta", "../../up", "9", b"storage", torch.Tensor)
            )
        elif wrong == 2:
            args[1] = rng.choice(numbers)
        elif wrong == 3:  # much out of little: every entry is the same one
            args[2], args[3] = rng.choice(
                (((2**15, 2**15), (0, 0)), ((2**40,), (0,)), ((2**62, 2), (0, 0)))
            )
        elif wrong == 4:
            args[2] = rng.choice((*_SHAPES, *numbers, (1.5, 2), ("a",), one.shape[::-1]))
        elif wrong == 5:
            args[3] = rng.choice(
                (one.shape, (), (0,) * len(one.shape), (-1,) * len(one.shape), (2**62, 2**62), None)
            )
        elif wrong == 6:
            args = args[: rng.randrange(7)] + [odd(rng) for _ in range(rng.randrange(3))]
        elif wrong == 7:
            return _unusual(rng, one, key)
        else:
            args[rng.randrange(6)] = odd(rng)
    stored = Stored(*said)
    return (
        Call(torch._utils._rebuild_tensor_v2, stored, *args[1:])
        if args and args[0] is None
        else Call(*_call(args))
    )


def _call(args: Sequence[Any]) -> tuple[Any, ...]:
    return (torch._utils._rebuild_tensor_v2, *args)


def _unusual(rng: Random, one: Packed, key: str) -> Any:
    """What torch can pickle besides plain tensors, and what can be asked for by the same means."""
    plain = _rebuilt(None, one, key)
    size = rng.choice((one.shape, (2**15, 2**15), (2**40,)))
    return rng.choice(
        (
            Call(torch._utils._rebuild_parameter, plain, True, collections.OrderedDict()),
            Call(
                torch._utils._rebuild_parameter_with_state,
                plain,
                True,
                collections.OrderedDict(),
                {"a": 1},
            ),
            Call(
                torch._utils._rebuild_meta_tensor_no_storage,
                torch.float32,
                size,
                _strides(size),
                False,
            ),
            Call(
                torch._utils._rebuild_sparse_tensor,
                torch.serialization._get_layout,
                (plain, plain, torch.Size(one.shape)),
            ),
            Call(
                torch._utils._rebuild_qtensor,
                Stored("storage", torch.CharStorage, key, "cpu", len(one.raw)),
                0,
                size,
                _strides(size),
                (torch.per_tensor_affine, 0.1, 0),
                False,
                collections.OrderedDict(),
            ),
            Call(
                torch._utils._rebuild_tensor,
                Stored("storage", torch.FloatStorage, key, "cpu", 3),
                0,
                size,
                (0, 0),
            ),
            Call(
                torch._utils._rebuild_device_tensor_from_numpy, [1.0], torch.float32, "cpu", False
            ),
            Call(torch.Tensor, [1.0, 2.0]),
            Call(torch.Tensor, 2**15, 2**16),
            Call(torch.Size, [2**40]),
            Call(bytearray, 2**34),
            Call(set, [1]),
            Call(os.system, "touch ran"),
            Call(exec, "open('ran', 'w')"),
            torch.float32,
            {"a": plain},
            [plain],
        )
    )


def torch_file(
    tensors: Sequence[Packed],
    *,
    rng: Random | None = None,
    wrapper: str | None = None,
    legacy: bool = False,
    ordered: bool = True,
) -> bytes:
    """A .pt as torch.save makes it; with a generator, what is said of one tensor is wrong."""
    wrong = rng.randrange(len(tensors)) if rng is not None and tensors else -1
    content: Any = {
        one.name: _rebuilt(rng if k == wrong else None, one, str(k))
        for k, one in enumerate(tensors)
    }
    if ordered:
        content = collections.OrderedDict(content)
    if wrapper is not None:
        content = {"epoch": 3, wrapper: content}
    return _torch_bytes(pickled(content), tensors, legacy)


def _torch_bytes(code: bytes, tensors: Sequence[Packed], legacy: bool) -> bytes:
    if not legacy:
        data = [(f"archive/data/{k}", one.raw) for k, one in enumerate(tensors)]
        extra = [("archive/byteorder", b"little"), ("archive/version", b"3\n")]
        return zipped([("archive/data.pkl", code), *extra, *data])
    facts = {
        "protocol_version": 1001,
        "little_endian": True,
        "type_sizes": {"short": 2, "int": 4, "long": 4},
    }
    start = b"".join(pickled(value) for value in (0x1950A86A20F9469CFC6C, 1001, facts))
    raw = b"".join(
        struct.pack("<q", len(one.raw) * 8 // _BITS.get(one.dtype, 32)) + one.raw for one in tensors
    )
    return start + code + pickled([str(k) for k in range(len(tensors))]) + raw


_POINTS_AT_ONE = 400


def odd_torch(rng: Random, tensors: Sequence[Packed]) -> bytes:
    legacy, wrapper = rng.random() < 0.25, rng.choice((None, None, "state_dict", "model", "odd"))
    kind = rng.randrange(20)
    if kind < 3:
        return torch_file(odd_tensors(rng, tensors)[:60], legacy=legacy, wrapper=wrapper)
    if kind < 9:
        return torch_file(tensors, rng=rng, legacy=legacy, wrapper=wrapper)
    if kind < 12:
        code = pickled(
            collections.OrderedDict(
                (one.name, _rebuilt(None, one, str(k))) for k, one in enumerate(tensors)
            )
        )
        return _torch_bytes(odd_pickle(rng, code), tensors, legacy)
    if kind < 14:
        hostile = hostile_pickle(rng)
        return rng.choice((hostile, _torch_bytes(hostile, tensors, legacy)))
    if kind < 16:
        return odd_directory(rng, torch_file(tensors, wrapper=wrapper))
    if kind == 16:
        names = (
            "../../up",
            "/escaped",
            "archive/data/../../up",
            "archive/data.pkl",
            "archive/data/0",
            "x",
            "",
        )
        extra = (rng.choice(names), rng.choice((b"", b"\x80\x02}.", b"x" * 100)))
        code = pickled({one.name: _rebuilt(None, one, str(k)) for k, one in enumerate(tensors)})
        members = [
            ("archive/data.pkl", code),
            *((f"archive/data/{k}", one.raw) for k, one in enumerate(tensors)),
        ]
        method = rng.choice(
            (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
        )
        return zipped(
            rng.choice(([*members, extra], [extra, *members], members[1:], members[:-1], members)),
            method,
        )
    if kind == 17 and rng.random() < 0.3:
        if rng.random() < 0.5:
            return bomb("archive/data.pkl", b"\x80\x02", rng.choice((None, 100)))
        one = Packed("a.weight", "F32", (2**14, 2**14), b"")
        # The member of the bomb is the storage; the pickle is put before it.
        return _with_bomb(
            pickled({"a.weight": _rebuilt(None, replace(one, raw=bytes(2**20)), "0")})
        )
    if kind == 18 and rng.random() < 0.3:  # many names for one large dictionary
        call = _rebuilt(None, tensors[0], "0")
        inner = {f"{k}.weight": call for k in range(3000)}
        return _torch_bytes(pickled({f"{k}": inner for k in range(20_000)}), tensors[:1], legacy)
    if kind == 18:  # many tensors that are one storage
        one = tensors[0]
        code = pickled({f"{k}.weight": _rebuilt(None, one, "0") for k in range(_POINTS_AT_ONE)})
        return _torch_bytes(code, tensors[:1], legacy)
    return damaged(rng, torch_file(tensors, legacy=legacy, wrapper=wrapper))


@functools.cache
def _with_bomb(code: bytes) -> bytes:
    """An archive whose tensor data are those zeros."""
    small = zipped([("archive/data.pkl", code)])
    large = bomb("archive/data/0")
    place = small.rindex(b"PK\x01\x02")
    members, directory = small[:place], small[place : small.rindex(b"PK\x05\x06")]
    start, end = large.rindex(b"PK\x01\x02"), large.rindex(b"PK\x05\x06")
    entry = bytearray(large[start:end])
    entry[42:46] = struct.pack("<I", len(members))
    body = members + large[:start]
    last = struct.pack("<HHHHIIH", 0, 0, 2, 2, len(directory) + len(entry), len(body), 0)
    return body + directory + bytes(entry) + b"PK\x05\x06" + last
