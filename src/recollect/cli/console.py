"""Output on the terminal: text, tables and progress bars for people, and the answer as JSON."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

from recollect.errors import printable
from recollect.system.progress import Report

_PATIENCE = 2.0
"""Seconds before a bar appears."""


class Terminal:
    """Writes to stdout and stderr. If `json` is set, everything for people goes to stderr, and
    stdout holds one JSON object and nothing else.

    Text may quote names from files and of files, which are shown and not obeyed: control characters
    are written as escapes.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._json = json
        self._out = Console(stderr=json, highlight=False, soft_wrap=True, emoji=False)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

    @property
    def interactive(self) -> bool:
        """Whether stderr is a terminal, on which somebody may be watching a progress bar."""
        return self._err.is_terminal

    def say(self, text: str) -> None:
        self._out.print(printable(text), markup=False)

    def note(self, text: str) -> None:
        self._err.print(printable(text), markup=False)

    def table(self, rows: Mapping[str, object], title: str | None = None) -> None:
        table = Table(
            show_header=False, box=None, title=title, title_justify="left", padding=(0, 2, 0, 0)
        )
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for name, value in rows.items():
            table.add_row(Text(printable(name)), Text(printable(str(value))))
        self._out.print(table)

    def answer(self, content: Mapping[str, Any]) -> None:
        if self._json:
            sys.stdout.write(json.dumps(content, allow_nan=False) + "\n")
            sys.stdout.flush()

    @contextmanager
    def progress(self, task: str, total: int | None) -> Iterator[Report]:
        """A progress bar, shown on a terminal if the work takes more than two seconds."""
        if not self._err.is_terminal:
            yield lambda done, message: None
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[message]}"),
        )
        bar = RichProgress(*columns, console=self._err, transient=True)
        handle = bar.add_task(task, total=total, message="")
        began = time.perf_counter()
        shown = False

        def report(done: int, message: str) -> None:
            nonlocal shown
            if not shown and time.perf_counter() - began > _PATIENCE:
                bar.start()
                shown = True
            bar.update(handle, completed=done, message=escape(printable(message)))

        try:
            yield report
        finally:
            if shown:
                bar.stop()
