"""Plans: a TOML file with grids of options, which expand to jobs.

    [common]                        # for every grid
    dataset = "synthetic"
    n = 100
    training_seed = [0, 1, 2]       # a list is a dimension of the grid

    [[grid]]
    width = [2000, 4000]
    solver = "gd"
    method = ["full", "subspace", "true"]

The keys are the columns of a job (`study_schema`): the options of the victim, of the study and of
the built-in attacks. Three of them differ from the flags of the command line: `training_seed` is
the victim's seed, and `attack_tolerance` and `attack_dtype` are options of the attack. A grid is
the product of its lists. `attack = "package.module:Class"` names the user's own attack, whose code
is run; every key that is not an option of the victim or of the study is then one of its options.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recollect.attacks.options import FullSpace
from recollect.errors import FileError, OptionError
from recollect.study.job import Job, study_schema
from recollect.system.files import not_a_file

_MOST = 20_000
_LARGEST = 2**18
_LONGEST = 2000
"""Limits on the characters of a plan and of one line: the time to parse a dotted key of n parts
(a.a.a and so on) grows with n²."""


def read_plan(path: Path) -> tuple[Job, ...]:
    """The jobs of a plan without duplicates, grouped by victim, otherwise in the file's order."""
    if (other := not_a_file(path)) is not None:
        raise FileError(f"expected a plan at {path}, got {other}; check the path")
    try:
        text = path.read_text(encoding="utf-8")
        if len(text) > _LARGEST or max(map(len, text.splitlines()), default=0) > _LONGEST:
            raise ValueError(
                f"a file of over {_LARGEST} characters, or of over {_LONGEST} in a line"
            )
        content = tomllib.loads(text)
    except OSError as error:
        raise FileError(
            f"expected a plan at {path}, got: {error.strerror or error}; check the path"
        ) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not TOML, not UTF-8 text, or a number of thousands of digits
        raise FileError(
            f"expected TOML in {path}, got: {' '.join(str(error).split())}; correct the file"
        ) from None
    return expand(content, str(path))


def expand(content: Mapping[str, Any], where: str = "the plan") -> tuple[Job, ...]:
    common, grids = content.get("common", {}), content.get("grid", [])
    tables = isinstance(grids, list) and grids and all(isinstance(grid, dict) for grid in grids)
    if not tables or not isinstance(common, dict) or set(content) - {"common", "grid"}:
        raise FileError(
            f"expected [[grid]] tables and perhaps [common] in {where}, got "
            f"{', '.join(content) or 'nothing'}; "
            "see plans/quick.toml"
        )
    jobs: dict[str, Job] = {}
    total = 0
    for grid in grids:
        lists = {name: _values(name, value, where) for name, value in {**common, **grid}.items()}
        total += math.prod(len(values) for values in lists.values())
        if total > _MOST:
            raise FileError(
                f"expected at most {_MOST} jobs in {where}, got {total} or more; split the plan"
            )
        # Keys are sorted in the order of the schema, in which the victim's options come first.
        columns = list(study_schema())
        names = sorted(lists, key=lambda name: columns.index(name) if name in columns else -1)
        for values in itertools.product(*(lists[name] for name in names)):
            try:
                job = Job.of(dict(zip(names, values, strict=True)))
                if not job.built_in:  # the user's attack must load before anything is run
                    job.attack_in(FullSpace())
            except OptionError as error:
                raise OptionError(f"{where}: {error}") from None
            if job.name not in jobs or job.keep_points:
                jobs[job.name] = job
    victims: dict[str, list[Job]] = {}
    for job in jobs.values():
        victims.setdefault(job.victim_name, []).append(job)
    return tuple(itertools.chain.from_iterable(victims.values()))


def _values(name: str, value: Any, where: str) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise FileError(
            f"expected a value or a list of values for {name} in {where}, got an empty list; fill "
            "it in"
        )
    return values
