"""Pickles as data: what they hold comes back, what they ask for is only written down."""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.pickles import Asked, Forbidden, Name, read_pickle

KEYS = st.text(max_size=5) | st.binary(max_size=5) | st.integers(-(2**62), 2**62)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def read(content: bytes, *names: str) -> Any:
    return read_pickle(io.BytesIO(content), names)


@given(value=VALUES, protocol=st.integers(0, 5))
def test_values_come_back(value: Any, protocol: int) -> None:
    code = pickle.dumps(value, protocol)
    names = ("_codecs.encode", "__builtin__.bytes", "builtins.bytes")
    if protocol < 3 and b"bytes" in code:  # how the empty bytes are pickled: as a call
        return
    assert read(code, *names) == value


@given(content=st.binary(max_size=100))
def test_any_bytes_are_a_value_or_one_error(content: bytes) -> None:
    with contextlib.suppress(ValueError):
        read(content)


def test_calls_are_not_made() -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, ("nowhere",), {"mode": 1})

    for protocol in range(6):
        code = pickle.dumps([Payload()], protocol)
        with pytest.raises(Forbidden, match="mkdir"):
            read(code)
        (asked,) = read(code, f"{os.name}.mkdir")
        assert asked == Asked(f"{os.name}.mkdir", ("nowhere",), {"mode": 1})
    assert not os.path.exists("nowhere")
    assert read(b"cos\nsystem\n.", "os.system") == Name("os.system")


def test_ordered_dictionaries_are_dictionaries() -> None:
    ordered = collections.OrderedDict(a=1, b=[2])
    ordered.more = 3  # type: ignore[attr-defined]
    assert read(pickle.dumps(ordered, 2), "collections.OrderedDict") == {"a": 1, "b": [2]}
    old = b"ccollections\nOrderedDict\n((lp0\n(lp1\nS'a'\naI1\naatR."  # as python 2 did
    assert read(old, "collections.OrderedDict") == {b"a": 1}


@pytest.mark.parametrize(
    "code",
    [
        b"",
        b".",
        b"0.",
        b"(0t.",
        b"t.",
        b"h\x07.",
        b"Na.",
        b"]Ns.",
        b"}(NNu.",
        b"}(K\x01u.",
        b"})Ns.",
        b"}G" + bytes(8) + b"Ns.",
        b"}\x8a\x09" + b"\x01" * 9 + b"Ns.",
        b"NNR.",
        b"N)R.",
        b"NNb.",
        b"\x8f.",
        b"\x82\x01.",
        b"I" + b"9" * 5000 + b"\n.",
        b"B\xff\xff\xff\xff.",
        b"\x8b\xff\xff\xff\x7f.",
        b"P1\n.",
        b"NQ.",
        b"c_codecs\nencode\n)R.",
    ],
)
def test_damaged_ones_are_one_error(code: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(code, "_codecs.encode")


def test_references_are_what_the_caller_says() -> None:
    assert read_pickle(io.BytesIO(b"K\x05QQ."), (), lambda said: (said, math.pi)) == ((5, math.pi), math.pi)
