"""Commands are ended by a signal at every write, fsync and rename that they do, and at random
times: nothing is half-written, nothing of the user's is lost, and the same command then succeeds.

    python tests/kills.py [--only COMMAND] [--seed S] [--random N] [--sample N]

The signals are SIGKILL, SIGTERM, SIGINT and SIGHUP. Before each case the output folder holds the
results of an earlier run with other options, as a user's may. A first run that is not disturbed
counts the events, and its results are those that the command must reach after each case. Exit
status 1 if there is any finding.

What is not asked for: a SIGKILL between two renames may leave files of two runs in one folder. But
whoever reads them must then be told so by a named error.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ARMED = "RECOLLECT_TEST_KILLS"
"""Environment variable that tells the worker processes of a sweep what to do."""
_WAITING = 60.0
"""Seconds after which a process counts as one that does not end."""
_AT_ONCE = 2
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_TINY = "--dataset synthetic --n 3 --dim 4 --rank 2 --width 30 --tolerance 1e-3 --dtype float64"
_FEW = "--n 2 --iterations 20 --rounds 1"
_PLAN = """
[common]
dataset = "synthetic"
n = 3
dim = 4
rank = 2
width = 30
tolerance = 1e-3
solver = "gd"
method = "full"
iterations = 5
keep_points = true

[[grid]]
reconstruction_seed = {seeds}
"""


# The process that is ended.


class _Striker:
    """Counts the events of a command, in all its processes, and sends the signal at one of them."""

    def __init__(self, at: int, number: int, main: int, counter: str) -> None:
        self._at, self._number, self._main = at, signal.Signals(number), main
        self._counter = os.open(counter, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def event(self) -> bool:
        """Count an event. Returns whether the signal is to be sent at this one."""
        os.write(self._counter, b".")
        return os.fstat(self._counter).st_size == self._at

    def strike(self) -> None:
        send(self._main, self._number)
        if os.getpid() != self._main:
            time.sleep(0.3)  # the main process ends this one half-way

    def install(self) -> None:
        fdopen, fsync, replace = os.fdopen, os.fsync, os.replace

        def counted_fsync(descriptor: int) -> None:
            if self.event():
                self.strike()
            fsync(descriptor)

        def counted_replace(source: Any, target: Any) -> None:
            if self.event():
                self.strike()
            replace(source, target)

        def counted_fdopen(*arguments: Any, **options: Any) -> Any:
            return _Halving(fdopen(*arguments, **options), self)

        os.fsync, os.replace, os.fdopen = counted_fsync, counted_replace, counted_fdopen


class _Halving:
    """A file that has written half of its content when the signal comes."""

    def __init__(self, stream: Any, striker: _Striker) -> None:
        self._stream, self._striker = stream, striker

    def write(self, content: bytes) -> int:
        if self._striker.event():
            half = len(content) // 2
            self._stream.write(content[:half])
            self._stream.flush()
            self._striker.strike()
            self._stream.write(content[half:])
            return len(content)
        return int(self._stream.write(content))

    def __enter__(self) -> _Halving:
        return self

    def __exit__(self, *error: object) -> None:
        self._stream.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def send(process: int, number: signal.Signals) -> None:
    """Send the signal as it is usually sent: a terminal sends SIGINT and SIGHUP to all processes of
    a command, and other programs send to its main process alone."""
    if number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(process, number)
    else:
        os.kill(process, number)


if __name__ == "__mp_main__" and _ARMED in os.environ:  # a worker of a sweep
    _Striker(*json.loads(os.environ[_ARMED])).install()


# Running commands.


@dataclass(frozen=True)
class Ended:
    code: int | None
    """None if it did not end."""
    said: str
    events: int
    seconds: float


def ran(
    box: Path,
    arguments: Sequence[str],
    *,
    number: signal.Signals | None = None,
    at: int = 0,
    after: float | None = None,
) -> Ended:
    """Run a command in a forked process whose current folder is the box. The signal comes at an
    event, or some seconds after the command began its work."""
    counter, said = box.with_suffix(".events"), box.with_suffix(".said")
    for file in (counter, said):
        file.write_bytes(b"")
    ready, begun = os.pipe()
    process = os.fork()
    if process == 0:
        code = 70
        try:
            os.close(ready)
            armed = (at, number or signal.SIGKILL, os.getpid(), str(counter))
            code = _command(box, arguments, said, begun, armed)
        except BaseException:
            traceback.print_exc()
        os._exit(code)
    os.close(begun)
    began = time.monotonic()
    try:
        # The pipe is closed if the process ends early.
        select.select([ready], [], [], _WAITING)
        began = time.monotonic()
        if number is not None and after is not None:
            time.sleep(after)
            with contextlib.suppress(ProcessLookupError):
                send(process, number)
        code = _waited(process)
    finally:
        os.close(ready)
    return Ended(code, said.read_text(errors="replace"), counter.stat().st_size, _since(began))


def _since(began: float) -> float:
    return time.monotonic() - began


def _command(
    box: Path, arguments: Sequence[str], said: Path, begun: int, armed: tuple[int, int, int, str]
) -> int:
    from recollect import cli

    os.setsid()
    for number in SIGNALS[1:]:  # those who start tests in the background let them ignore Ctrl-C
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(box)
    output = os.open(said, os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115 (it stays)
    os.environ[_ARMED] = json.dumps(armed)
    _Striker(*armed).install()
    work = cli._ended

    def announced(*given: Any) -> int:
        os.close(begun)
        try:
            return work(*given)
        finally:  # what comes later does not count
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS[1:])

    cli._ended = announced
    code = cli.main(list(arguments))
    sys.stderr.flush()
    return code


def _waited(process: int) -> int | None:
    """The exit code of the process, once it and all its workers have ended."""
    code, until = None, time.monotonic() + _WAITING
    while time.monotonic() < until:
        try:
            one, status = os.waitpid(-process, os.WNOHANG)
        except ChildProcessError:
            if code is not None:
                return code
            one, status = os.waitpid(process, os.WNOHANG)  # it has no group of its own yet
        if one == process:
            code = os.waitstatus_to_exitcode(status)
        elif one == 0:
            time.sleep(0.01)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process, 0)
    return None


# The commands, and what must hold of their files.


@dataclass(frozen=True)
class Command:
    name: str
    before: tuple[str, ...]
    """Commands that make the inputs and the results of an earlier run."""
    line: str
    inputs: tuple[str, ...]
    """What must not change."""
    check: Callable[[Path], None]
    """Reads the results; any error is a finding, except a named one after SIGKILL."""
    result: Callable[[Path], object]
    """What must be the same whatever happened before."""


_RUN = f"train {_TINY} --out run"


def _read_training(box: Path) -> None:
    from recollect.errors import FileError
    from recollect.system.files import read_json
    from recollect.truth.files import check_run, read_truth
    from recollect.victim.victim import load

    folder = box / "trained"
    victim = load(folder / "init.safetensors", folder / "trained.safetensors")
    truth = read_truth(folder / "truth.safetensors")
    check_run(truth, victim.run)
    if not victim.run == truth.run == read_json(folder / "train.json").get("run"):
        raise FileError("files of two training runs")


def _training(box: Path) -> object:
    names = ("init", "trained", "truth", "basis")
    return [_digest(box / "trained" / f"{name}.safetensors") for name in names]


def _read_found(box: Path) -> None:
    from recollect.records import read_record

    read_record(box / "found")


def _found(box: Path) -> object:
    from recollect.records import read_record

    return read_record(box / "found").inputs.tolist()


def _read_audit(box: Path) -> None:
    from recollect.records import read_record
    from recollect.system.files import read_json

    assert "verdict" in read_json(box / "audited" / "audit.json")
    if (box / "audited" / "reconstruct.json").exists():
        read_record(box / "audited")


def _nothing(box: Path) -> object:
    return None


def _read_sweep(box: Path) -> None:
    from recollect.study.store import Store
    from recollect.study.table import table

    table(Store(box / "swept"))


def _sweep(box: Path) -> object:
    from recollect.study.store import Store
    from recollect.study.table import table

    rows = table(Store(box / "swept"))
    return [{k: v for k, v in row.items() if not k.endswith("_seconds")} for row in rows]


COMMANDS = {
    one.name: one
    for one in (
        Command(
            "train",
            (f"train {_TINY} --seed 1 --out trained",),
            f"train {_TINY} --out trained",
            (),
            _read_training,
            _training,
        ),
        Command(
            "reconstruct",
            (_RUN, f"reconstruct run {_FEW} --seed 1 --out found"),
            f"reconstruct run {_FEW} --out found",
            ("run",),
            _read_found,
            _found,
        ),
        Command(
            "reconstruct-gd",
            (_RUN, "reconstruct run --n 3 --solver gd --iterations 9 --out found"),
            "reconstruct run --n 3 --solver gd --iterations 3000 --out found",
            ("run",),
            _read_found,
            _found,
        ),
        Command(
            "audit",
            (_RUN, "audit run --n 2 --budget 5s --seed 1 --out audited"),
            "audit run --n 2 --budget 5s --out audited",
            ("run",),
            _read_audit,
            _nothing,
        ),
        Command(
            "report",
            (_RUN, f"reconstruct run {_FEW} --out found", "report found"),
            "report found --truth run/truth.safetensors",
            ("run", "found/reconstruct.json", "found/reconstruction.safetensors"),
            _read_found,
            lambda box: _digest(box / "found" / "report.html"),
        ),
        Command(
            "sweep",
            ("sweep first.toml --workers 1 --device cpu --out swept",),
            "sweep second.toml --workers 1 --device cpu --out swept",
            ("first.toml", "second.toml"),
            _read_sweep,
            _sweep,
        ),
    )
}


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _content(path: Path) -> dict[str, str]:
    """The hash of each file at or below the path."""
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return {str(one): _digest(one) for one in files}


_TEMPORARY = ".recollect-"


def _files(box: Path) -> set[str]:
    return {str(path.relative_to(box)) for path in box.rglob("*") if path.is_file()}


def _broken(box: Path) -> Iterator[str]:
    """The files that are not whole. Temporary files are not looked at."""
    from recollect.errors import FileError
    from recollect.system.files import read_json, read_tensors

    for name in sorted(_files(box)):
        path = box / name
        if _TEMPORARY in path.name:
            continue
        try:
            if path.suffix == ".safetensors":
                read_tensors(path)
            elif path.suffix == ".json":
                read_json(path)
            elif path.suffix == ".html" and not path.read_text().rstrip().endswith("</html>"):
                yield f"{name} ends early"
        except FileError as error:
            yield f"{name} is not whole: {error}"


# Cases.


@dataclass(frozen=True)
class Case:
    command: str
    number: signal.Signals
    at: int = 0
    """The event; 0 for a case by time."""
    after: float | None = None

    def __str__(self) -> str:
        when = f"at event {self.at}" if self.after is None else f"after {self.after:.3f} s"
        return f"{self.command}, {self.number.name} {when}"


@dataclass(frozen=True)
class Reference:
    """A run that was not disturbed."""

    template: Path
    """A folder as it is before the command."""
    events: int
    seconds: float
    result: object


def refer(command: Command, folder: Path) -> Reference:
    """Make what is there before the command, and run the command once without any signal."""
    template = folder / f"{command.name}-template"
    template.mkdir()
    for name, seeds in (("first", "[0]"), ("second", "[0, 1]")):
        (template / f"{name}.toml").write_text(_PLAN.format(seeds=seeds))
    for line in command.before:
        _must(ran(template, line.split()), line)
    box = folder / f"{command.name}-reference"
    shutil.copytree(template, box)
    ended = ran(box, command.line.split())
    _must(ended, command.line)
    return Reference(template, ended.events, ended.seconds, command.result(box))


def _must(ended: Ended, line: str) -> None:
    if ended.code != 0:
        raise RuntimeError(f"`recollect {line}` ended with {ended.code}:\n{ended.said}")


def judged(case: Case, reference: Reference, folder: Path) -> list[str]:
    """End the command as the case says, run it again, and return what is wrong."""
    command = COMMANDS[case.command]
    box = Path(tempfile.mkdtemp(prefix="case-", dir=folder)) / "box"
    try:
        shutil.copytree(reference.template, box)
        inputs = {name: _content(box / name) for name in command.inputs}
        before = {name for name in _files(box) if not name.startswith("swept/victims/")}
        ended = ran(box, command.line.split(), number=case.number, at=case.at, after=case.after)
        findings = list(_after_signal(case, ended))
        findings += [f"{name} is gone" for name in sorted(before - _files(box))]
        findings += _broken(box)
        findings += _mixed(command, box, case.number)
        again = ran(box, command.line.split())
        if again.code != 0:
            findings.append(f"the same command ended with {again.code}: {again.said[-500:]}")
        else:
            findings += _broken(box)
            findings += _mixed(command, box)
            if command.result(box) != reference.result:
                findings.append("the same command gave another result than without the signal")
        left = [name for name in sorted(_files(box)) if _TEMPORARY in name]
        findings += [f"{name} was left behind" for name in left]
        for name, content in inputs.items():
            if _content(box / name) != content:
                findings.append(f"{name}, an input, was changed")
        return findings
    finally:
        shutil.rmtree(box.parent)


def _after_signal(case: Case, ended: Ended) -> Iterator[str]:
    killed = case.number is signal.SIGKILL
    expected = {-int(case.number)} if killed else {128 + case.number}
    if case.after is not None:  # it may have been through
        expected.add(0)
    if ended.code is None:
        yield "it did not end"
    elif ended.code not in expected:
        yield f"it ended with {ended.code}, not {sorted(expected)}: {ended.said[-500:]}"
    if "Traceback" in ended.said:
        yield f"it showed a traceback: {ended.said[-2000:]}"


def _mixed(command: Command, box: Path, number: signal.Signals | None = None) -> Iterator[str]:
    from recollect.errors import FileError

    try:
        command.check(box)
    except FileError as error:
        if number is not signal.SIGKILL:
            yield f"the results do not belong together: {error}"
    except Exception as error:
        yield f"the results cannot be read: {type(error).__name__}: {error}"


# The command.


def cases_of(
    references: dict[str, Reference], rng: random.Random, more: int, sample: int | None
) -> list[Case]:
    """Every signal at every event, or a sample of those, and `more` at random times."""
    cases = [
        Case(name, number, at)
        for name, reference in references.items()
        for at in range(1, reference.events + 1)
        for number in SIGNALS
    ]
    if sample is not None:
        cases = rng.sample(cases, min(sample, len(cases)))
    for _ in range(more):
        name = rng.choice(sorted(references))
        moment = rng.uniform(0.0, references[name].seconds)
        cases.append(Case(name, rng.choice(SIGNALS), after=moment))
    return cases


def _adopt() -> None:
    """Workers whose main process is killed become children of this process, which waits for
    them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER, on Linux


def _side_by_side(
    cases: Sequence[Case], references: dict[str, Reference], folder: Path
) -> Iterator[tuple[Case, list[str]]]:
    """The findings of each case. Several processes share the cases."""
    source, sink = os.pipe()
    lanes = []
    for lane in range(_AT_ONCE):
        process = os.fork()
        if process == 0:
            try:
                os.close(source)
                _adopt()
                for k in range(lane, len(cases), _AT_ONCE):
                    found = judged(cases[k], references[cases[k].command], folder)
                    told = [one[:400] for one in found[:8]]
                    # Writes of at most 4096 bytes to a pipe are not mixed with those of others.
                    os.write(sink, (json.dumps([k, told]) + "\n").encode())
            except BaseException:
                traceback.print_exc()
                os._exit(3)
            os._exit(0)
        lanes.append(process)
    os.close(sink)
    told = 0
    with open(source) as lines:
        for line in lines:
            k, found = json.loads(line)
            told += 1
            yield cases[k], found
    statuses = [os.waitstatus_to_exitcode(os.waitpid(lane, 0)[1]) for lane in lanes]
    if any(statuses) or told < len(cases):
        raise RuntimeError(f"the script itself failed: {told} of {len(cases)} cases were judged")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--only", action="append", choices=COMMANDS, metavar="COMMAND")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--random", type=int, default=100, help="cases at random times")
    parser.add_argument("--sample", type=int, help="only so many of the cases at events")
    options = parser.parse_args(arguments)
    os.environ["OMP_NUM_THREADS"] = "1"
    # All that commands import, once: the processes below are forked from this one.
    import recollect.auditing.call
    import recollect.report.audit
    import recollect.report.html
    import recollect.study.sweep  # noqa: F401

    _adopt()
    rng = random.Random(options.seed)
    rows: dict[str, list[int]] = {}
    failed = 0
    with tempfile.TemporaryDirectory(prefix="recollect-kills-") as place:
        folder = Path(place)
        references = {name: refer(COMMANDS[name], folder) for name in options.only or COMMANDS}
        cases = cases_of(references, rng, options.random, options.sample)
        for name, reference in references.items():
            print(f"{name}: {reference.events} events, {reference.seconds:.1f} s", flush=True)
        began = time.monotonic()
        shown = 0.0
        for k, (case, found) in enumerate(_side_by_side(cases, references, folder)):
            row = rows.setdefault(f"{case.command}, {case.number.name}", [0, 0, 0])
            row[case.after is not None] += 1
            row[2] += bool(found)
            failed += bool(found)
            for one in found:
                print(f"\n{case}: {one}", flush=True)
            if _since(began) - shown > 30:
                shown = _since(began)
                print(f"{k + 1} of {len(cases)} cases, {failed} with findings", flush=True)
    print(f"\n{'command and signal':<28}{'at events':>10}{'at times':>10}{'findings':>10}")
    for name, (events, times, findings) in sorted(rows.items()):
        print(f"{name:<28}{events:>10}{times:>10}{findings:>10}")
    print(f"{'all':<28}{len(cases):>10} cases{failed:>14}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
