"""Standard output and standard error that outlast their readers.

The reader of a pipe may leave (`recollect … | head -1`), a terminal may be closed, and a stream may
be closed from the start (`>&-`). A command then goes on to write its files, and what it prints is
dropped.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

_NOBODY_READS = (errno.EPIPE, errno.EIO, errno.EBADF)


class LastingStream:
    """A text stream to which every write succeeds. From the first failure on, what is written is
    dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: str | None = None
        """Why something could not be written, unless nobody reads it anyway."""

    def write(self, text: str) -> int:
        """Write the text, or drop it."""
        try:
            return self._stream.write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        """Flush the stream."""
        try:
            self._stream.flush()
        except OSError as error:
            self._drop(error)

    def _drop(self, error: OSError) -> None:
        if error.errno not in _NOBODY_READS:
            self.failure = error.strerror or str(error)
        # Python writes what is left in the buffer when it exits, and would fail again.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def lasting_streams() -> Iterator[LastingStream]:
    """Inside this context stdout, which is returned, and stderr are lasting streams."""
    for number in range(3):  # so that no file that is opened later takes the place of a stream
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        out, err = (LastingStream(nowhere if stream is None else stream) for stream in before)
        for stream in before:
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(
                    errors="replace"
                )  # A character that the terminal cannot show becomes a question mark.
        sys.stdout, sys.stderr = cast(TextIO, out), cast(TextIO, err)
        try:
            yield out
        finally:
            sys.stdout, sys.stderr = before
