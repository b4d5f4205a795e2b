"""Shows how far a fetch from the Hub has come: a bar on a terminal, occasional lines everywhere else.

Consumes the bytes that are there. Writes to standard error.
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any, Self

from ops.presentation.output import console, message
from ops.presentation.words import size

LINE_SECONDS = 10.0
"""Minimum pause between two lines."""


class Transfer:
    """Is told how many bytes of what are there; used in a `with` block."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._task: Any = None
        self._what = ""
        self._told = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        """Shows the state of one fetch; another one begins when `what` changes."""
        if sys.stderr.isatty():
            self._draw(what, done, of)
        elif what != self._what or done >= of or time.monotonic() - self._told > LINE_SECONDS:
            self._told = time.monotonic()
            message(f"fetching {what}: {size(done)} of {size(of)}")
        self._what = what

    def _draw(self, what: str, done: int, of: int) -> None:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        if self._bar is None:
            columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console(to_stderr=True))
            self._bar.start()
        if what != self._what:
            self._task = self._bar.add_task(f"fetching {what}", total=of)
        self._bar.update(self._task, completed=done, total=of)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
