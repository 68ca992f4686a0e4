"""Pickles read as data: what they ask for is written down, and nothing of it is done.

An unpickler, even one from which no code can be reached, does as it is told: it makes a table of
2³¹ places for one that is numbered so, a gigabyte of zeros for a `bytearray`, a hash of a tuple in
a tuple in a tuple until the stack overflows. Here there are values, containers of values, and notes
of what else was asked for. What is read once may be spoken of many times: whatever takes longer for
a longer value is paid for by its length, each time.
"""

from __future__ import annotations

import io
import mmap
import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import IO, Any, cast

_MOST = 2_000_000
"""Operations: seconds of time, and tens of thousands of tensors."""
_TOO_MANY = f"a pickle of over {_MOST} operations"
_ENCODE = "_codecs.encode"


class Forbidden(ValueError):
    """A pickle asks for a name that it has no business with."""


@dataclass(frozen=True)
class Name:
    """A function or a class, which is not looked up."""

    name: str


@dataclass(slots=True)
class Asked:
    """A call that is not made, and the state that its result would have been given."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


def read_pickle(
    stream: io.BytesIO | mmap.mmap,
    names: Collection[str],
    outside: Callable[[Any], Any] | None = None,
) -> Any:
    """The value that the stream holds next. ValueError where it is damaged, `Forbidden` for names
    other than `names`.

    `outside` says what stands for something that the pickle refers to and does not hold. The stream
    lies in memory: an open file that is asked for 2³¹ bytes makes room for them first.
    """
    machine = _Machine(names, outside)
    try:
        for opcode, arg, _ in pickletools.genops(cast(IO[bytes], stream)):
            machine.step(opcode.name, arg)
        return machine.stack.pop()
    except (IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"a damaged pickle ({type(error).__name__})") from None


def as_bytes(value: Any) -> bytes:
    """Bytes, also those that python 3 pickled in protocol 2, as a call that makes them of a
    text."""
    if (
        isinstance(value, Asked)
        and value.name == _ENCODE
        and len(value.args) == 2
        and value.args[1] == "latin1"
    ):
        return cast(bytes, _of(str, value.args[0]).encode("latin1"))
    return cast(bytes, _of(bytes, value))


class _Machine:
    def __init__(self, names: Collection[str], outside: Callable[[Any], Any] | None) -> None:
        self.stack: list[Any] = []
        self._left = _MOST
        self._names = names
        self._outside = outside
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}

    def step(self, opcode: str, arg: Any) -> None:
        self._left -= 1
        if self._left < 0:
            raise ValueError(_TOO_MANY)
        stack = self.stack
        if opcode in _VALUES:
            stack.append(arg)
        elif opcode in _MADE:
            stack.append(_MADE[opcode]())
        elif opcode in _STRINGS:  # of python 2: bytes, which pickletools reads as latin1
            stack.append(arg.encode("latin1"))
        elif opcode in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if opcode == "MEMOIZE" else arg] = stack[-1]
        elif opcode in ("GET", "BINGET", "LONG_BINGET"):
            stack.append(self._memo[arg])
        elif opcode == "MARK":
            self._marks.append(len(stack))
        elif opcode in ("TUPLE1", "TUPLE2", "TUPLE3"):
            stack.append(tuple(self._last(int(opcode[-1]))))
        elif opcode == "TUPLE":
            stack.append(tuple(self._marked()))
        elif opcode == "LIST":
            stack.append(self._marked())
        elif opcode == "DICT":
            stack.append(self._filled({}, self._marked()))
        elif opcode in ("APPEND", "APPENDS"):
            items = self._marked() if opcode == "APPENDS" else self._last(1)
            _of(list, stack[-1]).extend(items)
        elif opcode in ("SETITEM", "SETITEMS"):
            items = self._marked() if opcode == "SETITEMS" else self._last(2)
            self._filled(_of(dict, stack[-1]), items)
        elif opcode == "GLOBAL":
            stack.append(self._name(*arg.split(" ", 1)))
        elif opcode == "STACK_GLOBAL":
            stack.append(self._name(*(_of(str, part) for part in self._last(2))))
        elif opcode in ("REDUCE", "NEWOBJ"):
            called, args = self._last(2)
            stack.append(self._asked(_of(Name, called).name, _of(tuple, args)))
        elif opcode == "BUILD":
            (state,) = self._last(1)
            if not isinstance(stack[-1], dict):  # an OrderedDict's attributes, which nobody needs
                _of(Asked, stack[-1]).state = state
        elif opcode in ("PERSID", "BINPERSID"):
            said = arg if opcode == "PERSID" else self._last(1)[0]
            if self._outside is None:
                raise Forbidden("something outside the file")
            stack.append(self._outside(said))
        elif opcode == "POP":
            self._last(1)
        elif opcode == "DUP":
            stack.append(stack[-1])
        elif opcode not in ("PROTO", "FRAME", "STOP"):
            raise ValueError(f"a pickle with {opcode}, which no array needs")

    def _spend(self, operations: int) -> None:
        self._left -= operations
        if self._left < 0:
            raise ValueError(_TOO_MANY)

    def _last(self, count: int) -> list[Any]:
        """So many values from the top, and not from below the last mark."""
        if len(self.stack) - (self._marks[-1] if self._marks else 0) < count:
            raise IndexError
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def _marked(self) -> list[Any]:
        start = self._marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def _name(self, module: str, name: str) -> Name:
        full = f"{module}.{name}"
        if full not in self._names:
            raise Forbidden(full[:100])  # enough to know it by
        return Name(full)

    def _asked(self, name: str, args: tuple[Any, ...]) -> Any:
        """A note of the call; of one that makes a dictionary, the dictionary."""
        if name == "collections.defaultdict":
            return {}
        if name != "collections.OrderedDict":
            return Asked(name, args)
        pairs = _of(list, args[0]) if args else []
        self._spend(len(pairs))  # of a list that may be given to many
        if not all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
            raise ValueError("a pickle with a key and no value")
        return self._filled({}, [part for pair in pairs for part in pair])

    def _filled(self, target: dict[Any, Any], items: list[Any]) -> dict[Any, Any]:
        if len(items) % 2:
            raise ValueError("a pickle with a key and no value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if isinstance(key, Asked) and key.name == _ENCODE:
                self._spend(len(_of(str, key.args[0])) >> 6)
                key = as_bytes(key)
            if isinstance(key, (str, bytes)):
                self._spend(len(key) >> 6)  # as long as it takes to find two long ones equal
            elif isinstance(key, (tuple, Name, Asked)):
                # nothing is looked up by it, and a tuple's hash may take more stack than there is
                continue
            elif not (
                key is None or isinstance(key, float) or (isinstance(key, int) and abs(key) < 2**63)
            ):
                raise ValueError(f"a pickle with an unusual {type(key).__name__} for a key")
            target[key] = value
        return target


def _of(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a pickle that takes a {type(value).__name__} for a {kind.__name__}")
    return value


_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *(
        "UNICODE",
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "SHORT_BINBYTES",
        "BINBYTES",
        "BINBYTES8",
    ),
}
_STRINGS = {"STRING", "BINSTRING", "SHORT_BINSTRING"}
_MADE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": dict,
}
