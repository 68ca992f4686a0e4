"""The command line `recollect`.

Exit codes: 0 success, 1 the run failed, 2 bad usage or bad input, 3 a verdict that
`audit --fail-on` names, 130 interrupted.
"""

from __future__ import annotations

import io
import os
import signal
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
from recollect.errors import RecollectError, RecollectWarning


def main(arguments: list[str] | None = None) -> int:
    """Run one command. Every error ends in one readable line and an exit code; a traceback is a
    bug."""
    if not callable(signal.getsignal(signal.SIGTERM)):
        signal.signal(
            signal.SIGTERM, signal.default_int_handler
        )  # SIGTERM acts like Ctrl-C, so that the best result so far is kept.
    warnings.showwarning = _show_warning
    warnings.simplefilter("always", RecollectWarning)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # A character that the terminal cannot show becomes a question mark.
    given = sys.argv[1:] if arguments is None else arguments
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
    except KeyboardInterrupt as stop:
        return _fail(str(stop) or "interrupted; nothing was written", 130)
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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
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
        sys.stderr.write(f"recollect: warning: {message}\n")


def _fail(message: str, code: int) -> int:
    # The message must be one line, even if it quotes a name from a hostile file.
    line = "".join(letter if letter.isprintable() else " " for letter in message)
    sys.stderr.write(f"recollect: {line}\n")
    return code
