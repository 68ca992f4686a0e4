"""Options. The name, type, default, check and help sentence of an option are written in one place:
the field of a dataclass.

A field made by `option` carries all of it. The command line, sweep plans and JSON records are
derived from the fields: `schema` lists the options of a class, `words` writes an object as plain
values, and `build` makes the object again. `None` is written as the word `auto`. A field that holds
one of several classes (`members`) becomes the choice between their names, followed by the options
of each member. Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from recollect.errors import OptionError

AUTO = "auto"
"""The word that stands for None: the program chooses."""
_LARGEST_INTEGER = 10**12
_KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool, "Path": Path}
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    Path: "a path",
}


@dataclass(frozen=True)
class Rule:
    """What `option` keeps in the metadata of a field."""

    help: str
    choices: tuple[str, ...] = ()
    """Words that are allowed. If the field is a number, they are allowed in addition to numbers."""
    least: float | None = None
    most: float | None = None
    positive: bool = False
    hint: str = ""
    """What to do about a value that is refused."""
    name: str | None = None
    """Name of the flag and the JSON key, if it differs from that of the field."""
    column: str | None = None
    """Name in sweep plans and tables, if it differs from that of the flag."""
    members: Mapping[str, type] | None = None
    enum: type[Enum] | None = None


def option(default: Any = MISSING, **rule: Any) -> Any:
    """A dataclass field that is an option. The keywords are the fields of `Rule`; `help` is
    required."""
    made = Rule(**rule)
    return dataclasses.field(default=default, metadata={"rule": made})


@dataclass(frozen=True)
class Option:
    """One option as the command line, plans and records see it."""

    name: str
    kind: type
    default: Any
    """The default as a plain value; None if it depends on another option."""
    required: bool
    nullable: bool
    rule: Rule
    chooser: str | None = None
    """The option on whose value this one depends."""
    choices: tuple[str, ...] = ()
    """The values of the chooser with which this option may be given."""
    key: str | None = None
    """What a user writes for this option where that is not its flag: its key in a sweep plan."""

    @property
    def flag(self) -> str:
        """What a user writes for this option. Error messages use the same name."""
        return self.key or "--" + self.name.replace("_", "-")

    @property
    def column(self) -> str:
        return self.rule.column or self.name

    @property
    def allowed(self) -> tuple[str, ...]:
        """Every word that may be given."""
        words = self.rule.choices or tuple(self.rule.members or ())
        if self.rule.enum is not None:
            words = tuple(str(member.value) for member in self.rule.enum)
        return (AUTO, *words) if self.nullable and words and AUTO not in words else words

    @property
    def help(self) -> str:
        """The help sentence, the values of another option that this one requires, and the
        default."""
        sentence = self.rule.help
        if self.chooser is not None:
            sentence += f" Only with --{self.chooser} {' or '.join(self.choices)}."
        default = AUTO if self.default is None and self.nullable else self.default
        if self.required or self.kind is bool or default is None:
            return sentence
        return f"{sentence} Default: {default}."


@cache
def schema(cls: type) -> Mapping[str, Option]:
    """The options of a dataclass by name. A choice is followed by the options of its members."""
    found: dict[str, Option] = {}
    for field in dataclasses.fields(cls):
        rule = _rule(field)
        if rule is None:
            continue
        made = _option(field, rule)
        found[made.name] = made
        for member, members in (rule.members or {}).items():
            for inner in schema(members).values():
                found[inner.name] = _merged(found.get(inner.name), inner, made.name, member)
    return found


def _rule(field: Field[Any]) -> Rule | None:
    """The rule of a field. A plain field of a simple type is an option without a help sentence."""
    if "rule" in field.metadata:
        rule: Rule | None = field.metadata["rule"]
        return rule
    plain = _annotation(field).partition(" |")[0] in _KINDS and field.init
    return Rule(help="") if plain else None


def _annotation(field: Field[Any]) -> str:
    """The type of a field as text. It is a class if the module does not postpone annotations."""
    return field.type.__name__ if isinstance(field.type, type) else str(field.type)


def _option(field: Field[Any], rule: Rule) -> Option:
    annotation = _annotation(field)
    kind = _KINDS.get(annotation.partition(" |")[0], str)
    default = None if field.default is MISSING else to_word(field.default, rule)
    return Option(
        name=rule.name or field.name,
        kind=kind,
        default=default,
        required=field.default is MISSING,
        nullable="None" in annotation,
        rule=rule,
    )


def _merged(known: Option | None, inner: Option, chooser: str, member: str) -> Option:
    """The option of one member, or of several members that share its name. If their defaults
    differ, no default is shown."""
    if known is None:
        return dataclasses.replace(inner, chooser=chooser, choices=(member,), required=False)
    default = known.default if known.default == inner.default else None
    return dataclasses.replace(known, default=default, choices=(*known.choices, member))


def to_word(value: Any, rule: Rule | None = None) -> Any:
    """A value as plain text, a number or a boolean."""
    if value is None:
        return AUTO
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    for name, member in ((rule.members if rule else None) or {}).items():
        if isinstance(value, member):
            return name
    if (
        type(value).__module__ == "torch"
    ):  # a dtype, recognised without importing torch, or a tensor, shown by its shape
        shape = getattr(value, "shape", None)
        return (
            str(value).removeprefix("torch.")
            if shape is None
            else f"a tensor of shape {list(shape)}"
        )
    return value


def words(options: Any) -> dict[str, Any]:
    """All options of an object as plain values, by name. A choice is followed by the options of the
    chosen member."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        if (rule := _rule(field)) is None:
            continue
        value = getattr(options, field.name)
        found[rule.name or field.name] = to_word(value, rule)
        if rule.members:
            found |= words(value)
    return found


def build(cls: type, given: Mapping[str, Any], *, owner: str = "these options") -> Any:
    """Make an object of the class from plain values by name.

    Options that are not given have their default, and None means `auto`. Error messages say that
    the options are those of `owner`.
    """
    known = schema(cls)
    for name in given:
        if name not in known:
            flags = ", ".join(one.flag for one in known.values())
            raise OptionError(
                f"expected options of {owner} ({flags}), got --{name.replace('_', '-')}; leave it "
                "out"
            )
    return _build(cls, given, known)


def _build(cls: type, given: Mapping[str, Any], known: Mapping[str, Option]) -> Any:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if (rule := _rule(field)) is None:
            continue
        name = rule.name or field.name
        if rule.members:
            values |= _choose(field, rule, given, known)
        elif name in given:
            values[field.name] = from_word(known[name], given[name])
        elif field.default is MISSING:
            raise OptionError(f"expected {known[name].flag} to be given, got nothing; give it")
    return cls(**values)


def _choose(
    field: Field[Any], rule: Rule, given: Mapping[str, Any], known: Mapping[str, Option]
) -> dict[str, Any]:
    """The member that was named; else the one whose required option was given; else the field's
    default."""
    assert rule.members is not None
    chooser = rule.name or field.name
    required = {
        inner.name: name
        for name, member in rule.members.items()
        for inner in schema(member).values()
        if inner.required
    }
    implied = [required[name] for name in given if name in required]
    chosen = from_word(known[chooser], given[chooser]) if chooser in given else None
    chosen = chosen or next(iter(implied), None)
    default = None if field.default is MISSING else to_word(field.default, rule)
    name = chosen or default
    if name is None:
        raise OptionError(
            f"expected --{chooser} to be given, got nothing; choose {' or '.join(rule.members)}"
        )
    own = schema(rule.members[name])
    how = f"--{chooser} {name}"
    if chooser not in given and implied:
        how = next(known[key].flag for key in given if key in required)
    for other in given:
        belongs = known[other].chooser == chooser and other not in own
        if belongs:
            choices = " or ".join(known[other].choices)
            raise OptionError(
                f"expected {known[other].flag} with --{chooser} {choices}, got it with {how}; "
                "leave one of them out"
            )
    inner = {key: value for key, value in given.items() if key in own}
    if chosen is None and not inner:
        return {}
    return {field.name: _build(rule.members[name], inner, own)}


def from_word(option: Option, word: Any) -> Any:
    """The value that a plain value stands for. An error names the option, what it accepts and what
    it got."""
    if word is None or (word == AUTO and option.nullable):
        return None
    if option.rule.enum is not None:
        _check_choice(option, word)
        return option.rule.enum(word)
    if isinstance(word, str) and word in option.allowed:
        return word
    if option.rule.members is not None or (option.rule.choices and option.kind is str):
        _check_choice(option, word)
    return _number_or_text(option, word)


def _number_or_text(option: Option, word: Any) -> Any:
    kind = option.kind
    wanted: tuple[type, ...] = {float: (float, int), Path: (str, Path)}.get(kind, (kind,))
    if not isinstance(word, wanted) or (isinstance(word, bool) and kind is not bool):
        what = " or ".join([*option.allowed, _KIND_NAMES[kind]])
        raise OptionError(f"expected {option.flag} to be {what}, got {_shown(word)}; correct it")
    if isinstance(word, int) and abs(word) > _LARGEST_INTEGER:
        raise OptionError(
            f"expected {option.flag} of ordinary size, got a number of {len(str(abs(word)))} "
            "digits; correct it"
        )
    value: Any = word
    if kind is float:
        return float(value)
    return Path(value) if kind is Path else value


def parsed(option: Option, text: str) -> Any:
    """The plain value of a text on the command line. 10.7 is not accepted as a whole number."""
    if text == AUTO and option.nullable:
        return AUTO
    if text in option.allowed or option.kind in (str, Path):
        return text
    try:
        return {"true": True, "false": False}[text] if option.kind is bool else option.kind(text)
    except (ValueError, KeyError):
        what = " or ".join([*option.allowed, _KIND_NAMES[option.kind]])
        raise OptionError(
            f"expected {option.flag} to be {what}, got {text!r}; correct it"
        ) from None


def check(options: Any) -> None:
    """Convert words, and refuse values that an option does not accept. `__post_init__` calls it."""
    for field in dataclasses.fields(options):
        rule = _rule(field)
        if rule is None or "rule" not in field.metadata:
            continue
        value = to_torch_free(getattr(options, field.name))
        made = _option(field, rule)
        if rule.members is not None:
            if not isinstance(value, tuple(rule.members.values())):
                kinds = ", ".join(member.__name__ for member in rule.members.values())
                raise OptionError(
                    f"expected {made.flag} to be one of {kinds}, got {_shown(value)}; choose one "
                    "of those"
                )
            continue
        if value is None and made.nullable:
            continue
        if rule.enum is not None:
            if not isinstance(value, rule.enum):
                _check_choice(made, value)
                value = rule.enum(value)
        elif isinstance(value, str) and (rule.choices or made.kind is str):
            if rule.choices:
                _check_choice(made, value)
        elif made.kind in (int, float):
            check_number(made, value)
        object.__setattr__(options, field.name, value)


def to_torch_free(value: Any) -> Any:
    """The name of a torch dtype, so that options hold plain values; any other value unchanged."""
    return (
        to_word(value)
        if type(value).__module__ == "torch" and type(value).__name__ == "dtype"
        else value
    )


def _check_choice(option: Option, value: Any) -> None:
    if value not in option.allowed:
        allowed = list(option.allowed)
        listed = ", ".join(allowed[:-1]) + (
            f" or {allowed[-1]}" if len(allowed) > 1 else allowed[0]
        )
        hint = option.rule.hint or "choose one of those"
        number = f", or {_KIND_NAMES[option.kind]}" if option.kind in (int, float) else ""
        raise OptionError(f"expected {option.flag} {listed}{number}, got {_shown(value)}; {hint}")


def check_number(option: Option, value: Any) -> None:
    """Refuse a value that is not a number, or not a number that the option accepts."""
    rule = option.rule
    number = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and (option.kind is float or isinstance(value, int))
    )
    least, most = rule.least, rule.most
    fine = number and (isinstance(value, int) or math.isfinite(value))
    fine = fine and (least is None or value >= least) and (most is None or value <= most)
    if fine and (not rule.positive or value > 0):
        return
    if least is not None and most is not None:
        what = f"between {readable_number(least)} and {readable_number(most)}"
    elif rule.positive:
        what = "of a positive number"
    elif least is not None:
        what = f"of at least {readable_number(least)}"
    else:
        what = f"to be {_KIND_NAMES[option.kind]}"
    words = "".join(f"{word}, " for word in option.allowed)
    raise OptionError(
        f"expected {option.flag} {words}{what}, got {_shown(value)}; "
        f"{rule.hint or 'choose another'}"
    )


def readable_number(value: float) -> str:
    """A number as text: 10⁸ instead of 100000000."""
    exponent = round(math.log10(value)) if value >= 10_000 else 0
    if exponent and value == 10**exponent:
        return "10" + str(exponent).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{value:g}" if not isinstance(value, int) else str(value)


def _shown(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGEST_INTEGER:
        return f"{value:.6g}" if abs(value) < 10**300 else "a number of hundreds of digits"
    return repr(value)[:200]


def home(name: str, chooser: str, members: Mapping[str, type]) -> tuple[str, tuple[str, ...]]:
    """The choice that an option requires: `chooser` and some of its members, or a choice within
    those members."""
    homes = {one: schema(member)[name] for one, member in members.items() if name in schema(member)}
    inner = next((one for one in homes.values() if one.chooser is not None), None)
    if inner is None or inner.chooser is None:
        return chooser, tuple(homes)
    return inner.chooser, inner.choices


def merged(schemas: Iterable[Mapping[str, Option]]) -> dict[str, Option]:
    """The options of several classes by name. If the defaults differ, no default is shown."""
    found: dict[str, Option] = {}
    for one in schemas:
        for name, made in one.items():
            known = found.get(name)
            if known is None:
                found[name] = dataclasses.replace(made, required=False)
            elif known.default != made.default:
                found[name] = dataclasses.replace(known, default=None)
    return found
