"""The errors that a user can meet. Each message reads: expected …, got …; do …

`InputError` and its subclasses are errors that the caller can correct (exit code 2). `RunError` and
its subclasses are runs that were requested correctly and did not succeed (exit code 1).
"""

from __future__ import annotations

_LONGEST = 2000


def printable(text: str) -> str:
    """The text as it may be shown on a terminal: whatever cannot be printed becomes an escape.

    Names from files may hold control characters, and names of files may hold bytes that are no
    text.
    """
    return "".join(char if char.isprintable() else _escape(char) for char in text)


def _escape(char: str) -> str:
    # Python decodes a byte of a file's name that is not UTF-8 to one of these characters.
    byte = ord(char) - 0xDC00
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else ascii(char)[1:-1]


class RecollectError(Exception):
    """Anything that Recollect refuses or fails to do, with a message that can be shown as it is.

    Parts of a message may come from a hostile file, so control characters are escaped and long
    messages are shortened.
    """

    exit_code = 1

    def __init__(self, message: str) -> None:
        if len(message) > _LONGEST:
            # The end is kept, because it holds the remedy.
            message = f"{message[: _LONGEST // 2]} … {message[-_LONGEST // 4 :]}"
        super().__init__(printable(message))


def one_line(error: BaseException) -> str:
    """Kind and message of an error that somebody else's code raised, in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}".removesuffix(": ")


class InputError(RecollectError):
    """Bad usage or bad input."""

    exit_code = 2


class OptionError(InputError):
    """An option has a value that cannot be used."""


class FileError(InputError):
    """A file is missing, unreadable, or not what its name promises."""


class CheckpointError(FileError):
    """A checkpoint cannot be read, or the two checkpoints do not belong together."""


class DataError(FileError):
    """A data set cannot be read or used."""


class VictimError(InputError):
    """The victim lacks something the attack needs: a change in the weights, θ0, enough
    equations."""


class RunError(RecollectError):
    """A run that was requested correctly did not succeed."""


class TrainingDiverged(RunError):
    """Gradient descent diverged, because the step is beyond the stability limit."""


class TrainingDidNotConverge(RunError):
    """Gradient descent used all its steps before it reached the tolerance."""


class RecollectWarning(UserWarning):
    """Something the user should know before trusting a result."""
