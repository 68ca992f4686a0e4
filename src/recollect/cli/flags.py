"""Makes command-line flags from options: one flag per option, with the option's own help and
check."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

from cyclopts import Parameter, Token

from recollect.options import Option, parsed, schema


def flags(name: str, *sources: type | Mapping[str, Option]) -> Any:
    """A dataclass with one field per option, which is None if the flag was not given.

    If a command has a parameter `Annotated[flags(…), Parameter(name="*")]`, these fields become
    flags of the command.
    """
    found: dict[str, Option] = {}
    for source in sources:
        found |= schema(source) if isinstance(source, type) else source
    fields = [
        (one.name, Annotated[_type(one), _parameter(one)], dataclasses.field(default=None))
        for one in found.values()
    ]
    made = dataclasses.make_dataclass(name, fields, frozen=True, kw_only=True)
    made.__module__ = __name__  # Cyclopts ignores classes of the standard library.
    return made


def given(flags: Any, *, only: Iterable[str] | type | None = None) -> dict[str, Any]:
    """The flags that were given. `only` limits them to some names, or to a class of options."""
    names = set(schema(only)) if isinstance(only, type) else None if only is None else set(only)
    values = {field.name: getattr(flags, field.name) for field in dataclasses.fields(flags)}
    return {
        name: value
        for name, value in values.items()
        if value is not None and (names is None or name in names)
    }


def _type(option: Option) -> Any:
    """The type of the flag that the help shows. If a number may also be a word, the help sentence
    names the word."""
    if option.kind in (bool, int, float):
        return option.kind | None
    return Literal[option.allowed] | None if option.allowed else str | None


def _parameter(option: Option) -> Parameter:
    help = option.help
    if option.kind is bool:
        return Parameter(name=option.flag, help=help, negative="", show_default=False)

    def convert(_: object, tokens: Sequence[Token]) -> Any:
        return parsed(option, tokens[0].value)

    return Parameter(name=option.flag, help=help, converter=convert, show_default=False, n_tokens=1)
