"""Reads pickles as data: the calls that a pickle asks for are recorded, and none is made.

Even an unpickler that can reach no code obeys a hostile pickle: it allocates a memo table of 2³¹
entries if one entry has that number, or a gigabyte of zeros for a `bytearray`, or it hashes nested
tuples until the stack overflows. Here there are only values, containers of values, and records of
all other requests. A value that is read once may be used many times, so an operation that takes
longer for a longer value is charged for the length of the value each time.
"""

from __future__ import annotations

import io
import mmap
import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import IO, Any, cast

_MOST = 2_000_000
"""Limit on the number of operations. They take seconds and suffice for tens of thousands of
tensors."""
_TOO_MANY = f"a pickle of over {_MOST} operations"
_ENCODE = "_codecs.encode"


class Forbidden(ValueError):
    """A pickle asks for a name that it must not use."""


@dataclass(frozen=True)
class Name:
    """The name of a function or class, which is never imported."""

    name: str


@dataclass(slots=True)
class Asked:
    """A call that is asked for but not made, and the state that its result would have received."""

    name: str
    args: tuple[Any, ...]
    state: Any = None


def read_pickle(
    stream: io.BytesIO | mmap.mmap,
    names: Collection[str],
    outside: Callable[[Any], Any] | None = None,
) -> Any:
    """Read the next value of the stream.

    Raises ValueError if the pickle is damaged, and `Forbidden` if it uses a name that is not in
    `names`. `outside` gives the value for a reference to an object outside the pickle. The stream
    must be in memory: an open file that is asked for 2³¹ bytes allocates them in advance.
    """
    machine = _Machine(names, outside)
    try:
        for opcode, arg, _ in pickletools.genops(cast(IO[bytes], stream)):
            machine.step(opcode.name, arg)
        return machine.stack.pop()
    except (IndexError, KeyError, OverflowError) as error:
        raise ValueError(f"a damaged pickle ({type(error).__name__})") from None


def as_bytes(value: Any) -> bytes:
    """The bytes of a value. In protocol 2, Python 3 pickles bytes as a call that encodes a text."""
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
        elif opcode in _STRINGS:  # Python 2 bytes, which pickletools reads as latin1
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
            if not isinstance(stack[-1], dict):  # Attributes of an OrderedDict are ignored.
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
        """Take `count` values from the top of the stack, but none from below the last mark."""
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
            raise Forbidden(full[:100])  # long enough to be recognised
        return Name(full)

    def _asked(self, name: str, args: tuple[Any, ...]) -> Any:
        """A record of the call, or the dictionary itself if the call makes one."""
        if name == "collections.defaultdict":
            return {}
        if name != "collections.OrderedDict":
            return Asked(name, args)
        pairs = _of(list, args[0]) if args else []
        self._spend(len(pairs))  # Many calls may share this list.
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
                self._spend(len(key) >> 6)  # Comparing keys takes longer for long ones.
            elif isinstance(key, (tuple, Name, Asked)):
                # Nothing is looked up by such a key, and hashing a tuple may overflow the stack.
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
