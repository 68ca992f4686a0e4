"""One run of a study: a victim (`Recipe`), an attack on it, and the seed of the attack.

The name of a job is a hash of its options. Options at their default are left out of the hash, so
that an option added later, with the old behaviour as its default, does not rename existing jobs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

from recollect.attacks.base import Attack
from recollect.attacks.options import (
    ATTACKS,
    Basis,
    FullSpace,
    Search,
    Subspace,
    attack_options,
    build_attack,
)
from recollect.errors import OptionError
from recollect.options import (
    AUTO,
    Option,
    build,
    check,
    check_number,
    from_word,
    home,
    option,
    schema,
    words,
)
from recollect.shapes import Float, Tensor
from recollect.truth.recipe import Recipe
from recollect.victim.victim import select

_FORMAT = 1
"""Version of the hash, to be increased when the same options no longer mean the same run."""
_SPACE_OPTIONS = ("space", "rank", "basis")
"""In a study, `method` and `subspace_rank` replace these options, because a study may use what is
known about the data."""


@dataclass(frozen=True, kw_only=True)
class StudyOptions:
    """The options of a study, in addition to those of the victim and of the attack."""

    method: str = option(
        "subspace",
        help="full: Algorithm 1. subspace: Algorithm 2. true: within the true subspace of the "
        "data.",
        choices=("full", "subspace", "true"),
    )
    subspace_rank: int | str = option(
        "auto",
        help="Rank of the subspace: known, as the paper has it; auto, by the gap rule; or a "
        "number.",
        choices=("auto", "known"),
        least=1,
        most=10**8,
    )
    reconstruction_seed: int = option(
        0, help="Seed of the attack.", least=0, most=2**32 - 1, hint="choose one of those"
    )
    keep_points: bool = option(False, help="Keep what was found, for pictures.")
    attack: str | None = option(
        None, help="exact, projection, or package.module:Class; auto follows from the solver."
    )

    def __post_init__(self) -> None:
        check(self)


@cache
def study_schema() -> dict[str, Option]:
    """Every option of a job, by column: those of the victim, the study and the attacks."""
    attacks = {k: one for k, one in attack_options().items() if k not in _SPACE_OPTIONS}
    # `solver = "auto"` is another name for the exact attack.
    attacks["solver"] = replace(attacks["solver"], nullable=True, default=AUTO)
    every = (*schema(Recipe).values(), *schema(StudyOptions).values(), *attacks.values())
    return {one.column: replace(one, key=one.column) for one in every}


@dataclass(frozen=True, kw_only=True)
class Job:
    """A victim, an attack and a seed.

    `given` holds options of the attack by column. For a built-in attack these are the options that
    differ from the default; for the user's own attack, all options that the plan gives.
    """

    recipe: Recipe
    study: StudyOptions = StudyOptions()
    given: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        if self.recipe.victim == "rf" and self.study.method == "subspace" and self.built_in:
            raise OptionError(
                "expected method full or true for random features, got subspace; they leave ΔW1 = 0"
            )
        if self.built_in:
            attack = self.attack_in(FullSpace())
            assert isinstance(attack, Search)
            select(self.recipe.network(1, 1), attack.parameters)

    @property
    def built_in(self) -> bool:
        """Whether the attack belongs to this package and is not the user's code."""
        return self.study.attack in (None, *ATTACKS)

    @property
    def reconstruction_seed(self) -> int:
        return self.study.reconstruction_seed

    @property
    def keep_points(self) -> bool:
        return self.study.keep_points

    @cached_property
    def name(self) -> str:
        """The hash of the options that affect the result.

        Hence `keep_points` is left out, and `subspace_rank` where no Û is computed.
        """
        options = _changed(self.study, StudyOptions)
        options.pop("keep_points", None)
        if self.study.method != "subspace":
            options.pop("subspace_rank", None)
        return _digest({**options, **dict(self.given), "recipe": _changed(self.recipe, Recipe)})

    @cached_property
    def victim_name(self) -> str:
        return _digest(_changed(self.recipe, Recipe))

    def columns(self) -> dict[str, Any]:
        """The job as columns of a table, from which `of` rebuilds the job.

        For the user's own attack, the columns of the built-in attacks are empty: its options may
        have the same names and mean something else.
        """
        recipe, study, given = words(self.recipe), words(self.study), dict(self.given)
        found = default_columns()
        for column, one in study_schema().items():
            if column in study:
                found[column] = _cell(one, study[column])
            elif column in _recipe_columns():
                found[column] = _cell(one, recipe[one.name])
            elif not self.built_in:
                found[column] = None
            elif column in given:
                found[column] = given[column]
        found["attack"] = self.attack_name
        if given and not self.built_in:
            found["attack_options"] = json.dumps(given, sort_keys=True)
        return found

    @property
    def attack_name(self) -> str:
        """The name of the attack."""
        if self.study.attack is not None:
            return self.study.attack
        return "projection" if dict(self.given).get("solver") in ("gd", "lm") else "exact"

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Job:
        """A job from values by name. An unknown name or a value of the wrong type is an error.

        The code of an attack that is not built in is not run here; its options may be any plain
        values.
        """
        values = {name: value for name, value in columns.items() if value is not None}
        more = values.pop("attack_options", None)
        external = values.get("attack", AUTO) not in (AUTO, *ATTACKS)
        known = study_schema()
        recipe: dict[str, Any] = {}
        study: dict[str, Any] = {}
        given: dict[str, Any] = dict(_decoded(more)) if external and more is not None else {}
        for name, value in values.items():
            ours = name in _recipe_columns() or name in schema(StudyOptions)
            if external and not ours:
                given[name] = value
                continue
            if name not in known:
                raise OptionError(
                    f"expected one of {', '.join(known)}, got {name!r}; check the name"
                )
            one = known[name]
            value = _plain(one, from_word(one, value))
            if one.kind in (int, float) and not isinstance(value, str | None):
                check_number(one, value)
            if name in _recipe_columns():
                recipe[one.name] = value
            elif ours:
                study[name] = value
            elif value != one.default and value is not None:
                given[name] = value
        if external:
            _check_plain(given)
        else:
            _settle_attack(study, given, values.get("solver"))
        for column, one in known.items():
            if one.required and column in _recipe_columns() and one.name not in recipe:
                raise OptionError(
                    f"expected {column} to be given, got a job without it; add it to the plan"
                )
        return cls(
            recipe=build(Recipe, recipe),
            study=build(StudyOptions, study),
            given=tuple(sorted(given.items())),
        )

    def attack(self, basis: Float[Tensor, "d r"]) -> Attack:
        """The attack of this job.

        It learns the true basis only if the method is `true`, and the true rank only if
        `subspace_rank` is `known`.
        """
        method, rank = self.study.method, self.study.subspace_rank
        if method == "true":
            return self.attack_in(Basis(U=basis))
        if method == "full":
            return self.attack_in(FullSpace())
        if rank == "auto":
            return self.attack_in(Subspace())
        return self.attack_in(Subspace(rank=basis.shape[1] if rank == "known" else int(rank)))

    def attack_in(self, space: FullSpace | Subspace | Basis) -> Attack:
        """The attack in this space. This runs the code of an attack that is not built in."""
        known = study_schema()
        given = {known[column].name if column in known else column: v for column, v in self.given}
        if self.study.attack is not None:
            given["attack"] = self.study.attack
        attack = build_attack(given)
        return replace(attack, space=space) if isinstance(attack, Search) else attack


@cache
def _recipe_columns() -> frozenset[str]:
    return frozenset(one.column for one in schema(Recipe).values())


def _settle_attack(study: dict[str, Any], given: dict[str, Any], solver: Any) -> None:
    """Describe a built-in attack by its solver alone, where `auto` stands for the exact attack.

    Options that belong to another attack are an error.
    """
    name = study.pop("attack", None)
    if name == "exact" and solver not in (None, AUTO):
        raise OptionError(
            f"expected solver auto with attack exact, got {solver}; leave one of them out"
        )
    if name == "projection" and solver == AUTO:
        raise OptionError(
            f"expected solver gd or lm with attack projection, got {AUTO}; leave one of them out"
        )
    if name == "projection" and solver is None:
        given["solver"] = "gd"
    name = "projection" if "solver" in given else "exact"
    for column in given:
        option = study_schema()[column].name
        if option not in schema(ATTACKS[name]):
            chooser, choices = home(option, "attack", ATTACKS)
            raise OptionError(
                f"expected {column} with {chooser} {' or '.join(choices)}, got it with attack "
                f"{name}; leave one of "
                "them out"
            )


def _check_plain(given: Mapping[str, Any]) -> None:
    """Check that the options of the user's own attack are text, numbers or truth values, so that a
    job can be hashed and written."""
    for name, value in given.items():
        fine = isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
        if not fine:
            raise OptionError(
                f"expected {name} to be text, a number or true or false, got {str(value)[:40]!r}; "
                "correct it"
            )


def _plain(option: Option, value: Any) -> Any:
    """Convert a member of an enum back to its word, so that jobs hold plain values."""
    return value.value if option.rule.enum is not None and value is not None else value


def _decoded(text: Any) -> Mapping[str, Any]:
    try:
        found = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise OptionError(
            f"expected attack_options as a JSON object, got {str(text)[:40]!r}; correct it"
        )
    return found


def _changed(options: Any, cls: type) -> dict[str, Any]:
    """The options that differ from their default, and all required ones, as plain values."""
    values = words(options)
    known = {one.name: one for one in schema(cls).values()}
    return {
        name: value
        for name, value in values.items()
        if known[name].required or value != known[name].default
    }


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps({"format": _FORMAT, **content}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def default_columns() -> dict[str, Any]:
    """The columns of a job with default options. Required options are None."""
    found = {column: _cell(one, one.default) for column, one in study_schema().items()}
    return {**found, "attack_options": None}


def later_columns() -> set[str]:
    """Columns that a table may lack, since attacks have got more options over time. A job from
    before an option existed was run as its default says."""
    victim_and_study = {
        one.column for one in (*schema(Recipe).values(), *schema(StudyOptions).values())
    }
    return set(column_kinds()) - victim_and_study | {"attack"}


def _cell(option: Option, word: Any) -> Any:
    """The cell of a plain value. `auto` becomes None unless it is one of the option's words."""
    return None if word == AUTO and not option.allowed else word


def column_kinds() -> dict[str, type]:
    """The columns of a job with their types. A column that may hold words or numbers is text."""
    kinds = {
        column: str if one.allowed or one.kind not in (int, float, bool) else one.kind
        for column, one in study_schema().items()
    }
    return {**kinds, "attack_options": str}
