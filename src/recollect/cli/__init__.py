"""The command line `recollect`.

Exit codes: 0 success, 1 the run failed, 2 bad usage or bad input, 3 a verdict that
`audit --fail-on` names; interrupted by SIGINT (Ctrl-C) 130, by SIGTERM 143, by SIGHUP 129.
"""

from __future__ import annotations

import sys
import warnings
from typing import TextIO

import cyclopts

from recollect.cli import (  # noqa: F401  (they register their commands)
    audit,
    bounds,
    inspect,
    make,
    reconstruct,
    score,
    study,
)
from recollect.cli.common import app
from recollect.cli.streams import lasting_streams
from recollect.errors import RecollectError, RecollectWarning, printable
from recollect.system.signals import Received, exit_code, interrupts


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Every error ends in one readable line and an exit code; a traceback is a
    bug."""
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", RecollectWarning)
    with lasting_streams() as stdout, interrupts() as received:
        code = _ended(sys.argv[1:] if arguments is None else arguments, received)
        received.over = True
        stdout.flush()
        if stdout.failure is not None and code == 0:
            code = _fail(f"expected to write to stdout, got: {stdout.failure}; free space", 1)
        # A command that was interrupted may still have ended in order, with what it had found.
        return code if received.exit_code is None else received.exit_code


def _ended(given: list[str], received: Received) -> int:
    """Run the command, and turn every error into a message and an exit code."""
    try:
        return _command(given)
    except KeyboardInterrupt as stop:
        return _fail(_interrupted(received), exit_code(stop))
    except SystemExit as stop:
        said = f"expected code that returns, got sys.exit({stop.code}) in a module of yours; "
        return _fail(f"{said}take it out, or put it under `if __name__ == '__main__'`", 2)
    except Exception:
        if received.exit_code is None:
            raise
        # A library that is interrupted may raise an error of its own.
        return _fail(_interrupted(received), received.exit_code)


def _interrupted(received: Received) -> str:
    names = ", ".join(dict.fromkeys(str(path) for path in received.written))
    return (
        f"interrupted; {f'these files were written: {names}' if names else 'nothing was written'}"
    )


def _command(given: list[str]) -> int:
    try:
        code = app(
            given,
            exit_on_error=False,
            print_error=False,
            result_action="return_value",
        )
        return code if isinstance(code, int) else 0
    except cyclopts.CycloptsError as error:
        known = given[:1] if given and not isinstance(error, cyclopts.UnknownCommandError) else []
        return _fail(
            f"{' '.join(str(error).split())} See: {' '.join(['recollect', *known, '--help'])}", 2
        )
    except RecollectError as error:
        return _fail(str(error), error.exit_code)
    except (MemoryError, RuntimeError) as error:
        from recollect.system.device import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        return _fail(
            "expected the run to fit in memory, got out of memory; use fewer points, a smaller "
            "--width, "
            "--parameters last, or --device cpu if this was a GPU",
            1,
        )
    except OSError as error:
        return _fail(
            f"expected files that can be read and written, got: {error.strerror or error}; check "
            "the paths",
            2,
        )


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if issubclass(category, RecollectWarning):
        sys.stderr.write(f"recollect: warning: {printable(str(message))}\n")


def _fail(message: str, code: int) -> int:
    # The message must be one line, even if it quotes a name from a hostile file.
    sys.stderr.write(f"recollect: {printable(message)}\n")
    return code
