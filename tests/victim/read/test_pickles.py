"""Pickles as data: what they hold comes back, what they ask for is only written down."""

from __future__ import annotations

import collections
import contextlib
import io
import math
import os
import pickle
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.victim.read.pickles import Asked, Forbidden, Name, as_bytes, read_pickle

KEYS = (
    st.text(max_size=5)
    | st.binary(max_size=5)
    | st.integers(-(2**62), 2**62)
    | st.floats(allow_nan=False)
    | st.none()
    | st.booleans()
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(KEYS, inner, max_size=4)
    ),
    max_leaves=20,
)


def read(content: bytes, *names: str) -> Any:
    return read_pickle(io.BytesIO(content), names)


@given(value=VALUES, protocol=st.integers(0, 5))
def test_values_come_back(value: Any, protocol: int) -> None:
    code = pickle.dumps(value, protocol)
    if (
        b"__builtin__\nbytes" in code
    ):  # how the empty bytes are pickled before protocol 3: as another call
        return
    assert with_bytes(read(code, "_codecs.encode")) == value


def with_bytes(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(with_bytes, value))
    if isinstance(value, dict):
        return {key: with_bytes(inner) for key, inner in value.items()}
    return as_bytes(value) if isinstance(value, Asked) else value


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
    with pytest.raises(Forbidden, match=r"^x{100}$"):
        read(b"c" + b"x" * 9000 + b"\nsystem\n.")
    assert read(b"cos\nsystem\n.", "os.system") == Name("os.system")


def test_ordered_dictionaries_are_dictionaries() -> None:
    ordered = collections.OrderedDict(a=1, b=[2])
    ordered.more = 3  # type: ignore[attr-defined]
    assert read(pickle.dumps(ordered, 2), "collections.OrderedDict") == {"a": 1, "b": [2]}
    default = collections.defaultdict(list, a=[1])
    assert read(pickle.dumps(default, 2), "collections.defaultdict", "__builtin__.list") == {
        "a": [1]
    }
    old = b"ccollections\nOrderedDict\n((lp0\n(lp1\nS'a'\naI1\naatR."  # as python 2 did
    assert read(old, "collections.OrderedDict") == {b"a": 1}


def test_an_entry_that_nothing_could_look_up_is_left_out() -> None:
    odd = {(1, 2): 1, collections.Counter: 2, "a": 3}
    assert read(pickle.dumps(odd, 2), "collections.Counter") == {"a": 3}
    deep = b"}(NNK\x05K\x06)" + b"\x85" * 100 + b"Nu."
    assert read(deep) == {None: None, 5: 6}


TEXT = b"X" + (400_000).to_bytes(4, "little") + b"a" * 400_000
LATIN1 = b"X\x06\x00\x00\x00latin1"
ENCODE, ORDERED = b"c_codecs\nencode\n", b"ccollections\nOrderedDict\nq\x00"


@pytest.mark.parametrize(
    ("once", "use", "refused"),
    [
        (ENCODE + b"q\x00" + TEXT + LATIN1 + b"\x86q\x01", b"h\x00h\x01R", False),
        (ENCODE + TEXT + LATIN1 + b"\x86Rq\x00", b"}h\x00Ns", True),
        (ORDERED + b"](" + b"K\x01K\x02\x86" * 3000 + b"e\x85q\x01", b"h\x00h\x01R", True),
        (ORDERED + b"]((" + b"K\x01" * 3000 + b"te\x85q\x01", b"h\x00h\x01R", True),
        (TEXT + b"q\x00" + TEXT + b"q\x01", b"}h\x00Nsh\x01Ns", True),
    ],
    ids=["bytes", "bytes for keys", "pairs", "a long pair", "equal keys"],
)
def test_what_is_written_once_is_paid_for_each_time(
    monkeypatch: pytest.MonkeyPatch, once: bytes, use: bytes, refused: bool
) -> None:
    """Else a file of some hundred kilobytes takes gigabytes, or minutes."""
    code = b"\x80\x02(" + once + use * 900 + b"t."
    names = ("_codecs.encode", "collections.OrderedDict")
    monkeypatch.setattr("recollect.victim.read.pickles._MOST", 200_000)
    tracemalloc.start()
    try:
        with (
            pytest.raises(ValueError, match=r"operations|no value")
            if refused
            else contextlib.nullcontext()
        ):
            read(code, *names)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


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
        b"}(K\x01u.",
        b"}]Ns.",
        b"}}Ns.",
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
        b"}c_codecs\nencode\n)RNs.",
        b"}c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86RNs.",
    ],
)
def test_damaged_ones_are_one_error(code: bytes) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        read(code, "_codecs.encode")


@pytest.mark.parametrize(
    "value", ["a", None, Asked("_codecs.encode", ()), Asked("_codecs.encode", ("a", "rot13"))]
)
def test_what_is_no_bytes(value: Any) -> None:
    with pytest.raises(ValueError, match="bytes"):
        as_bytes(value)


def test_references_are_what_the_caller_says() -> None:
    assert read_pickle(io.BytesIO(b"K\x05QQ."), (), lambda said: (said, math.pi)) == (
        (5, math.pi),
        math.pi,
    )
