"""Every reader under some hundred hostile files; `python tests/fuzz.py --seconds 600` tries more.

And the fuzzer itself: whatever a reader should not do is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fuzz import READERS, Limits, Reader, Tally, case_of, fuzz, main
from hostile import Random

from recollect.errors import FileError

CASES = {
    "resume": 40,
    "report": 60,
    "score": 40,
    "plan": 80,
    "data-cifar10": 60,
    "pt": 100,
    "victim": 100,
    "validate": 100,
    "data-images": 100,
}
"""Fewer of the slow ones, 200 of the others."""


@pytest.mark.parametrize("reader", READERS.values(), ids=READERS)
def test_hostile_files_are_taken_or_refused(reader: Reader, tmp_path: Path) -> None:
    tally = fuzz(reader, 7, cases=CASES.get(reader.name, 200), keep=tmp_path)
    assert not tally.findings, "\n".join(
        f"{finding}\n{finding.detail}" for finding in tally.findings[:3]
    )
    assert tally.cases == CASES.get(reader.name, 200)
    assert tally.accepted  # not everything is refused: some files are odd and whole
    assert tally.refused or reader.silent


def test_a_case_is_always_the_same() -> None:
    for reader in READERS.values():
        for number in range(20):
            assert case_of(reader, 3, number) == case_of(reader, 3, number)
    pt = READERS["pt"]
    assert (
        len({tuple(case_of(pt, seed, number).items()) for seed in (1, 2) for number in range(20)})
        > 30
    )


def leaks(folder: Path) -> None:
    raise KeyError("rank")


def refuses(folder: Path) -> None:
    raise FileError("expected a file, got another; choose one")


def refuses_in_vain(folder: Path) -> None:
    try:
        bytearray(2**40)
    except MemoryError:
        raise FileError("expected less, got more; make it smaller") from None


def takes_memory(folder: Path) -> None:
    bytearray(2**26)


def takes_time(folder: Path) -> None:
    while True:
        pass


def waits(folder: Path) -> None:
    time.sleep(60)


def dies(folder: Path) -> None:
    os.abort()


def leaves(folder: Path) -> None:
    os._exit(0 if (folder / "a").read_bytes() == b"0" else 7)


def writes_beside(folder: Path) -> None:
    (folder.parent / "ran").touch()


def runs_code(folder: Path) -> None:
    os.system("true")


BROKEN: dict[Callable[[Path], None], str] = {
    leaks: "KeyError in test_fuzz.py",
    refuses_in_vain: "too much memory",
    takes_memory: "more than 32 MiB|too much memory",
    takes_time: r"more than 0\.2 s",
    waits: "waited",
    dies: "SIGABRT",
    leaves: "ended",
    writes_beside: "outside the folder",
    runs_code: "outside the folder",
}


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_what_a_reader_should_not_do_is_reported(
    broken: Callable[[Path], None], tmp_path: Path
) -> None:
    def make(rng: Random) -> dict[str, bytes]:
        return {"a": str(rng.randrange(2)).encode()}

    def read(folder: Path) -> None:
        if (folder / "a").read_bytes() == b"1" or broken is leaves:
            broken(folder)

    limits = Limits(seconds=0.2, bytes=2**25, waiting=3.0 if broken is waits else 60.0)
    tally = fuzz(Reader("broken", make, read), 0, cases=4, limits=limits, keep=tmp_path)
    assert tally.cases == 4
    assert tally.findings
    assert all(
        finding.kept is not None and (finding.kept / "files" / "a").is_file()
        for finding in tally.findings
    )
    for finding in tally.findings:
        with pytest.raises(AssertionError, match=BROKEN[broken]):
            raise AssertionError(finding.what)
    if broken is not leaves:
        assert {
            case_of(Reader("broken", make, read), 0, one.case)["a"] for one in tally.findings
        } == {b"1"}
        assert tally.accepted


def test_no_case_is_blamed_for_a_later_one(tmp_path: Path) -> None:
    """The parent is busy until the last case hangs: the results of the others lie in the pipe."""
    source, sink = os.pipe()

    def make(rng: Random) -> dict[str, bytes]:
        return {"a": rng.randbytes(8)}

    last = case_of(Reader("late", make, waits), 0, 5)["a"]

    def read(folder: Path) -> None:
        if (folder / "a").read_bytes() == last:
            os.write(sink, b"x")
            time.sleep(60)

    def progress(tally: Tally) -> None:
        if tally.cases == 1:
            os.read(source, 1)

    tally = fuzz(
        Reader("late", make, read), 0, cases=6, limits=Limits(waiting=1.0), progress=progress
    )
    assert tally.accepted == 5
    assert [(finding.case, finding.what) for finding in tally.findings] == [
        (5, "waited for more than 1 s")
    ]


def test_what_promises_to_raise_nothing_may_not_refuse_either() -> None:
    for silent in (False, True):
        tally = fuzz(Reader("one", lambda rng: {}, refuses, silent=silent), 0, cases=2)
        assert (tally.refused, len(tally.findings)) == ((0, 2) if silent else (2, 0))


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(READERS, "broken", Reader("broken", lambda rng: {}, leaks))
    assert main(["--reader", "truth-npz", "--case", "3", "--keep", str(tmp_path)]) == 0
    assert main(["--reader", "broken", "--case", "3", "--seed", "5", "--keep", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "--reader broken --seed 5 --case 3" in said
    assert "KeyError" in (tmp_path / "broken-5-3" / "finding.txt").read_text()
