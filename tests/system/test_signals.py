"""SIGINT, SIGTERM and SIGHUP: raised as an interruption, held back while files are written, and
ignored where the caller ignores them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.cli import main
from recollect.system.files import write_files
from recollect.system.signals import ENDING, Interrupted, exit_code, interrupts, postponed


@pytest.fixture(autouse=True)
def usual_handlers() -> Iterator[None]:
    """Whoever starts the tests in the background has told them to ignore Ctrl-C."""
    before = {number: signal.getsignal(number) for number in ENDING}
    for number in ENDING:
        signal.signal(number, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_each_signal_is_an_interruption_with_its_exit_code(number: int, code: int) -> None:
    with interrupts() as received:
        with pytest.raises(Interrupted) as stop:
            os.kill(os.getpid(), number)
        assert exit_code(stop.value) == received.exit_code == code
    assert signal.getsignal(number) == signal.SIG_DFL


@pytest.mark.parametrize("number", ENDING)
def test_what_is_ignored_stays_ignored(number: int) -> None:
    signal.signal(number, signal.SIG_IGN)
    with interrupts() as received:
        os.kill(os.getpid(), number)
        assert received.exit_code is None
    assert signal.getsignal(number) == signal.SIG_IGN


def test_two_signals_at_once_are_one() -> None:
    with interrupts() as received:
        with pytest.raises(Interrupted):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGTERM)
        assert received.exit_code == 129
        received._last -= 60
        with pytest.raises(Interrupted) as stop:
            os.kill(os.getpid(), signal.SIGINT)
        assert exit_code(stop.value) == 129


def test_a_signal_waits_until_all_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def struck(source: str, target: str) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        replace(source, target)

    monkeypatch.setattr(os, "replace", struck)
    with interrupts() as received:
        with pytest.raises(Interrupted):
            write_files({tmp_path / "a": b"1", tmp_path / "b": b"2"})
        assert received.written == [tmp_path / "a", tmp_path / "b"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"a": b"1", "b": b"2"}


def test_a_later_error_does_not_hide_a_signal_that_waits() -> None:
    def fails() -> None:
        with postponed():
            os.kill(os.getpid(), signal.SIGTERM)
            raise ValueError

    with interrupts(), pytest.raises(Interrupted):
        fails()


def test_train_says_that_it_wrote_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from recollect.simulate import training

    def struck(*arguments: object) -> float:
        os.kill(os.getpid(), signal.SIGHUP)
        return 1.0

    monkeypatch.setattr(training, "tangent_kernel_norm", struck)
    options = ["--dataset", "synthetic", "--n", "3", "--width", "9", "--out", str(tmp_path / "o")]
    assert main(["train", *options]) == 129
    assert capsys.readouterr().err == "recollect: interrupted; nothing was written\n"
    assert not list(tmp_path.iterdir())


def test_an_error_that_an_interruption_caused_is_an_interruption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from recollect.simulate import training

    def struck(*arguments: object) -> float:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise SystemError("a library was interrupted") from None
        return 1.0

    monkeypatch.setattr(training, "tangent_kernel_norm", struck)
    options = ["--dataset", "synthetic", "--n", "3", "--width", "9", "--out", str(tmp_path / "o")]
    assert main(["train", *options]) == 143
    assert "interrupted" in capsys.readouterr().err
