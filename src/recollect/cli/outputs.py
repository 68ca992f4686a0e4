"""What a command must not write over: its inputs, and the results of another command.

This is checked before anything is run, so that no work is lost.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from recollect.errors import FileError, OptionError


def keep_inputs(inputs: Iterable[Path | None], outputs: Iterable[Path]) -> None:
    """Raise an `OptionError` if one of the outputs is one of the inputs, also through a link."""
    known = [path for path in inputs if path is not None and path.exists()]
    for output in outputs:
        for path in known if output.exists() else ():
            if os.path.samefile(path, output):
                raise OptionError(
                    f"expected --out elsewhere than beside the input {path}, got a folder in which "
                    f"{output.name} would replace it; choose another"
                )


def keep_results_of_others(out: Path) -> None:
    """Raise an `OptionError` if an audit would write over results that no audit has made.

    The points of an audit say in their record that they are an audit's, and its report lies beside
    an `audit.json`.
    """
    from recollect.records import FACTS, TENSORS

    points = (out / TENSORS).exists() or (out / FACTS).exists()
    if points and not _is_of_audit(out / FACTS, "audit", within="options"):
        _refuse(out, f"a reconstruction that no audit has made ({FACTS})")
    found = (out / "audit.json").exists()
    if found and not _is_of_audit(out / "audit.json", "verdict"):
        _refuse(out, "an audit.json that no audit has made")
    if (out / "report.html").exists() and not found:
        _refuse(out, "a report.html that no audit has made")


def keep_audit(out: Path) -> None:
    """Raise an `OptionError` if a reconstruction would replace the points of an audit."""
    if (out / "audit.json").exists():
        _refuse(out, "an audit, whose points would be replaced")


def _is_of_audit(path: Path, key: str, *, within: str | None = None) -> bool:
    from recollect.system.files import read_json

    try:
        facts = read_json(path)
    except FileError:
        return False
    inner = facts if within is None else facts.get(within)
    return isinstance(inner, dict) and key in inner


def _refuse(out: Path, what: str) -> None:
    raise OptionError(
        f"expected a folder for results that holds no results of another command, got {out} with "
        f"{what}; choose another --out"
    )
