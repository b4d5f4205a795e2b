"""Writing to people and programs: data goes to standard output, everything else to standard error.

Colours go to terminals only, and NO_COLOR switches them off (rich sees to that).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OF_FILES = 200
LONGEST_WORD, LONGEST_LINE = 300, 1_000
"""Of an error, in characters: more than what we say takes, with a path in it."""
_LONG_WORD = re.compile(rf"\S{{{LONGEST_WORD + 1},}}")


def write(text: str) -> None:
    """A line of data."""
    sys.stdout.write(text + "\n")


def write_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def message(text: str) -> None:
    """A line for the person at the keyboard."""
    sys.stderr.write(text + "\n")


def console(to_stderr: bool = False) -> Console:
    """A rich console; where it is no terminal, wide enough to cut nothing."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(
        file=stream, highlight=False, markup=False, soft_wrap=False, width=None if stream.isatty() else WIDTH_OF_FILES
    )


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """A table; numbers to the right, none as an empty cell."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[number], int | float | None) for row in listed)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in listed:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def cut(text: str, characters: int) -> str:
    """A text on one line, cut behind a word where it is longer than that."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    kept = line[: characters - 1]
    return (kept.rpartition(" ")[0] or kept) + "…"


def shortened(text: str) -> str:
    """An error without the middle of what is too long to be read in it, such as a wrong value."""
    words = _LONG_WORD.sub(lambda match: _ends(match[0], LONGEST_WORD), text)
    return "\n".join(_ends(line, LONGEST_LINE) for line in words.split("\n"))


def _ends(text: str, characters: int) -> str:
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]}…{text[-half:]}"


def place(iteration: int, target: int) -> str:
    """How far a run has come."""
    return (
        f"iteration {iteration} of {target}"
        if iteration >= 0
        else f"before its first commit, {target} iterations to go"
    )


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    """Bytes as a person says them."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
