"""Displays a proof's progress: permanent lines, and on a terminal a bar for the current run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

LINE_CHARACTERS = 60


@dataclass(slots=True)
class Screen:
    """Progress on standard error."""

    bars: Progress
    bar: TaskID

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self.bars.console.print(text, style="bold")

    def begin(self, run: str, iterations: int) -> None:
        """Resets the bar for another run."""
        self.bars.reset(self.bar, total=iterations, run=run, doing="", visible=True)

    def show(self, iteration: int, log: Path) -> None:
        """Shows the run's progress and the driver's last log line."""
        self.bars.update(self.bar, completed=max(0, iteration), doing=last_line(log)[:LINE_CHARACTERS])

    def end(self) -> None:
        """Removes the bar."""
        self.bars.update(self.bar, visible=False)


def last_line(log: Path) -> str:
    """Returns the last line that a process wrote to its log."""
    lines = log.read_text(encoding="utf-8", errors="replace").split("\n") if log.exists() else []
    return next((line for line in reversed(lines) if line.strip()), "")


@contextmanager
def open_screen() -> Iterator[Screen]:
    """Opens a screen for the duration of the proof."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    columns = (
        TextColumn("{task.fields[run]}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[doing]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        yield Screen(bars, bars.add_task("", visible=False, run="", doing=""))
