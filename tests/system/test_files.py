"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from recollect.errors import FileError
from recollect.system.files import _TEMPORARY, _WRITER, write_files


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    """Whatever the names: a ² is a digit to python, and no number."""
    dead, strange, other = (
        f".a{_TEMPORARY}{_WRITER}{writer}-x" for writer in ("4194305", "²", "x")
    )
    for name in (dead, strange, other, "b", f".b{_TEMPORARY}{_WRITER}4194305-x"):
        (tmp_path / name).touch()
    write_files({tmp_path / "a": b"new"})
    assert (tmp_path / "a").read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {
        "a",
        "b",
        f".b{_TEMPORARY}{_WRITER}4194305-x",
    }


def test_if_one_cannot_be_written_no_target_is_touched(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").mkdir()
    with pytest.raises(FileError, match="b is a folder"):
        write_files({tmp_path / "a": b"new", tmp_path / "b": b"new"})
    assert (tmp_path / "a").read_bytes() == b"old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
