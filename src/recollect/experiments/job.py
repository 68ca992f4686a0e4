"""One run of a study: a victim (`recollect.recipe.Recipe`), an attack on it, and the seed of the attack.

A job is named by a hash of what it is. Values that are the default are left out of the hash, so that an option added
later, with the old behaviour as its default, does not rename the jobs of before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, replace
from functools import cached_property
from typing import Any

from recollect.errors import OptionError
from recollect.options import Auto, Basis, FullSpace, Projection, Subspace
from recollect.recipe import Recipe
from recollect.shapes import Float, Tensor
from recollect.solve import GradientDescent, LevenbergMarquardt
from recollect.span import Endpoints
from recollect.victim import select

_FORMAT = 1
"""Raised when the same job no longer means the same run."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """`method`: the paper's three, `full` (Algorithm 1), `subspace` (Algorithm 2), `true` (U given).

    `subspace_rank`: `known` as the paper has it (the rank of the data), `auto` (the gap rule), or a number.
    """

    recipe: Recipe
    method: str = "subspace"
    solver: str = "auto"
    parameters: str = "last"
    endpoints: str = "auto"
    subspace_rank: str | int = "auto"
    iterations: int | None = None
    step: float | None = None
    momentum: float = 0.9
    restarts: int = 1
    reconstruction_seed: int = 0
    keep_points: bool = False
    """Keep what was found, for pictures."""

    def __post_init__(self) -> None:
        choices = {
            "method": ("full", "subspace", "true"),
            "solver": ("auto", "lm", "gd"),
            "endpoints": ("auto", *(end.value for end in Endpoints)),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise OptionError(
                    f"expected {name} {' or '.join(allowed)}, got {getattr(self, name)!r}; choose one of those"
                )
        rank = self.subspace_rank
        if rank not in ("auto", "known") and not (isinstance(rank, int) and rank >= 1):
            raise OptionError(
                f"expected subspace_rank auto, known or a whole number, got {rank!r}; choose one of those"
            )
        if not 0 <= self.reconstruction_seed < 2**32:
            raise OptionError(
                f"expected a reconstruction_seed between 0 and {2**32 - 1}, got {self.reconstruction_seed}; "
                "choose one of those"
            )
        if self.solver != "gd" and (self.step is not None or self.momentum != 0.9):
            raise OptionError(
                f"expected step and momentum with solver gd alone, got solver {self.solver}; leave them out"
            )
        self._solver()
        self._projection(FullSpace())
        select(self.recipe.network(1, 1), self.parameters)
        if self.recipe.victim == "rf" and self.method == "subspace":
            raise OptionError("expected method full or true for random features, got subspace; they leave ΔW1 = 0")

    @cached_property
    def name(self) -> str:
        """What has no effect on the result is left out: whether it is kept, a rank where there is no Û."""
        options = _changed(self)
        options.pop("keep_points", None)
        if self.method != "subspace":
            options.pop("subspace_rank", None)
        return _digest({**options, "recipe": _changed(self.recipe)})

    @cached_property
    def victim_name(self) -> str:
        return _digest(_changed(self.recipe))

    @property
    def group(self) -> Job:
        """The job without its seed: jobs of one group differ in nothing else, and may be run together."""
        return replace(self, reconstruction_seed=0)

    @property
    def cell(self) -> Job:
        """The job without any seed: so may groups whose victims were trained alike."""
        return replace(self.group, recipe=replace(self.recipe, seed=0))

    def columns(self) -> dict[str, Any]:
        """The job as columns of a table; from them `of` makes it again."""
        victim = {field.name: getattr(self.recipe, field.name) for field in fields(Recipe)}
        victim["training_seed"] = victim.pop("seed")
        return {**victim, **{field.name: getattr(self, field.name) for field in fields(Job) if field.name != "recipe"}}

    @classmethod
    def of(cls, columns: Mapping[str, Any]) -> Job:
        """From named values, each of the type of its option; names that are no option are refused."""
        victim, attack = {}, {}
        for name, value in columns.items():
            if name in _VICTIM:
                field = _VICTIM[name]
                victim[field.name] = _checked(name, field, value)
            elif name in _ATTACK:
                attack[name] = _checked(name, _ATTACK[name], value)
            else:
                raise OptionError(f"expected one of {', '.join([*_VICTIM, *_ATTACK])}, got {name!r}; check the name")
        for name, field in _VICTIM.items():
            if field.default is MISSING and field.name not in victim:
                raise OptionError(f"expected {name} to be given, got a job without it; add it to the plan")
        return cls(recipe=Recipe(**victim), **attack)

    def attack(self, basis: Float[Tensor, "d r"]) -> Projection:
        """The options of the attack. Of the data it gets the basis where the method is `true`, the rank where known."""
        if self.method == "true":
            return self._projection(Basis(U=basis))
        if self.method == "full":
            return self._projection(FullSpace())
        if self.subspace_rank == "auto":
            return self._projection(Subspace())
        return self._projection(
            Subspace(rank=basis.shape[1] if self.subspace_rank == "known" else int(self.subspace_rank))
        )

    def _projection(self, space: FullSpace | Subspace | Basis) -> Projection:
        return Projection(
            space=space,
            parameters=self.parameters,
            solver=self._solver(),
            endpoints=None if self.endpoints == "auto" else Endpoints(self.endpoints),
            restarts=self.restarts,
        )

    def _solver(self) -> Auto | LevenbergMarquardt | GradientDescent:
        steps = {} if self.iterations is None else {"iterations": self.iterations}
        if self.solver == "gd":
            return GradientDescent(step_size=self.step, momentum=self.momentum, **steps)
        return Auto(**steps) if self.solver == "auto" else LevenbergMarquardt(**steps)


_VICTIM: dict[str, Field[Any]] = {
    "training_seed" if field.name == "seed" else field.name: field for field in fields(Recipe)
}
_ATTACK: dict[str, Field[Any]] = {field.name: field for field in fields(Job) if field.name != "recipe"}
COLUMNS = (*_VICTIM, *_ATTACK)
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "int | None": (int,),
    "float | None": (float, int),
    "str | int": (str, int),
}


OPTIONS: dict[str, type] = {name: _KINDS[str(field.type)][0] for name, field in {**_VICTIM, **_ATTACK}.items()}
"""The columns of a job, and what each holds; text where it may be text or a number."""
_LARGEST = 10**12


def _checked(name: str, field: Field[Any], value: Any) -> Any:
    """The value, if it has the type of the option; floats written as whole numbers become floats."""
    kinds = _KINDS[str(field.type)]
    if value is None and str(field.type).endswith("None"):
        return None
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        wanted = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[kinds[0]]
        raise OptionError(f"expected {name} to be {wanted}, got {value!r}; correct the plan")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise OptionError(
            f"expected {name} of ordinary size, got a number of {len(str(abs(value)))} digits; correct it"
        )
    return float(value) if kinds[0] is float and isinstance(value, int) else value


def _changed(of: Recipe | Job) -> dict[str, Any]:
    values = {field.name: (field.default, getattr(of, field.name)) for field in fields(of) if field.name != "recipe"}
    return {name: value for name, (default, value) in values.items() if default is MISSING or value != default}


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps({"format": _FORMAT, **content}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
