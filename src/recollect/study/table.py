"""The results of a sweep as one tidy table: one row per job, in an order that does not depend on
when each was run."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recollect.errors import FileError, OptionError
from recollect.options import AUTO
from recollect.study.job import (
    Job,
    column_kinds,
    default_columns,
    later_columns,
    study_schema,
)
from recollect.study.store import RESULTS, Store, check_value
from recollect.system.files import not_a_file, write_bytes

Row = dict[str, Any]
SECONDS = ("attack_seconds", "training_seconds")
KINDS: dict[str, type] = {
    "job": str,
    **column_kinds(),
    **RESULTS,
    **dict.fromkeys(SECONDS, float),
}
"""Every column, in order, with its type. A cell without a value is None."""


def table(store: Store) -> list[Row]:
    """All results of a store. Columns: the job's name, options, results and times (`_seconds`)."""
    rows = []
    for job, result, seconds in store.results():
        told = {
            **{name: result.get(name) for name in RESULTS},
            **{name: seconds.get(name) for name in SECONDS},
        }
        rows.append((_order(job), {"job": job.name, **job.columns(), **told}))
    return [row for _, row in sorted(rows, key=lambda pair: pair[0])]


def _order(job: Job) -> tuple[tuple[str, float, str], ...]:
    """Sort key of a job: its options in the order of the columns, numbers compared as numbers."""

    def place(value: Any) -> tuple[str, float, str]:
        number = isinstance(value, (int, float))
        return (
            ("number", float(value), "")
            if number
            else ("text", 0.0, "" if value is None else str(value))
        )

    columns = job.columns()
    return tuple(place(columns[name]) for name in column_kinds())


def write_table(rows: Sequence[Row], path: Path) -> None:
    if path.suffix == ".csv":
        write_bytes(path, csv_bytes(rows))
    elif path.suffix == ".parquet":
        write_bytes(path, _parquet_bytes(rows))
    else:
        raise OptionError(
            f"expected --out FILE.csv or FILE.parquet, got {path.name}; choose one of those"
        )


def csv_bytes(rows: Sequence[Row]) -> bytes:
    """The table as CSV. Floats are written by `repr`, which reads back to the same bits; None is an
    empty cell."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(KINDS)
    for row in rows:
        writer.writerow(["" if row[name] is None else _written(row[name]) for name in KINDS])
    return text.getvalue().encode()


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, float) else str(value)


def _parquet_bytes(rows: Sequence[Row]) -> bytes:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise OptionError(
            "expected pyarrow for a .parquet file, got none; pip install pyarrow, or use .csv"
        ) from None
    of = {
        str: pyarrow.string(),
        int: pyarrow.int64(),
        float: pyarrow.float64(),
        bool: pyarrow.bool_(),
    }
    schema = pyarrow.schema([(name, of[kind]) for name, kind in KINDS.items()])
    plain = [
        {
            name: str(row[name]) if kind is str and row[name] is not None else row[name]
            for name, kind in KINDS.items()
        }
        for row in rows
    ]
    buffer = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.Table.from_pylist(plain, schema=schema), buffer)
    content: bytes = buffer.getvalue().to_pybytes()
    return content


def read_table(path: Path) -> list[Row]:
    """Read a table that `write_table` wrote as .csv."""
    if (other := not_a_file(path)) is not None:
        raise FileError(f"expected a table at {path}, got {other}; make it with `recollect export`")
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            lines = csv.reader(stream)
            header = next(lines, [])
            places = {name: header.index(name) for name in KINDS if name in header}
            if missing := set(KINDS) - set(places) - later_columns():
                what = (
                    f"a table without {', '.join(sorted(missing)[:5])}"
                    if header
                    else "an empty one"
                )
                raise FileError(
                    f"expected the columns of `recollect export` in {path}, got {what}; export it "
                    "again"
                )
            return [_row(line, places, len(header), path) for line in lines if line]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise FileError(
            f"expected a table at {path}, got: {error}; make it with `recollect export`"
        ) from None


def _row(line: list[str], places: Mapping[str, int], columns: int, path: Path) -> Row:
    if len(line) != columns:  # the values cannot be assigned to the columns
        raise FileError(
            f"expected {columns} values in each line of {path}, got {len(line)}; export the table "
            "again"
        )
    found = {name: _read(name, line[place], path) for name, place in places.items()}
    row = {**dict.fromkeys(KINDS), **default_columns(), **found}
    # In a table of version 0.1.0 the solver determines the attack.
    if "attack" not in places:
        row["attack"] = "exact" if row["solver"] == AUTO else "projection"
    return {name: row[name] for name in KINDS}


def _read(name: str, text: str, path: Path) -> Any:
    if not text:
        return None
    kind = KINDS[name]
    option = study_schema().get(name)
    if option is not None and kind is str and option.kind is int and text.isdecimal():
        return int(text) if len(text) < 10 else text
    if kind is str:
        return text
    try:
        value = {"true": True, "false": False}[text] if kind is bool else kind(text)
        check_value(name, kind, None if kind is bool else value)
    except (ValueError, KeyError, FileError):
        raise FileError(
            f"expected {name} of a job in {path}, got {text[:40]!r}; export the table again"
        ) from None
    return value


def scored(rows: Sequence[Row]) -> list[Row]:
    """The rows that have all values needed by figures and claims, with each job only once."""
    once = {row["job"]: row for row in rows}
    return [row for row in once.values() if not any(row[name] is None for name in _NEEDED)]


_NEEDED = (
    "rho",
    "rho_up_to_sign",
    "rho_closest",
    "outputs",
    "chance_span",
    "chance_span_up_to_sign",
    "attack_seconds",
)
