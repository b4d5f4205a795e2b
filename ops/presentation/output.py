"""Writes output for people and programs: data goes to standard output, everything else to standard error.

Colours are used on terminals only, and NO_COLOR turns them off (handled by rich).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, JustifyMethod

WIDTH_OF_FILES = 200


def write(text: str) -> None:
    """Writes a line of data."""
    sys.stdout.write(text + "\n")


def write_json(value: Mapping[str, Any]) -> None:
    """Writes a JSON object on a single line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def message(text: str) -> None:
    """Writes a line to standard error, for the user."""
    sys.stderr.write(text + "\n")


def console(to_stderr: bool = False) -> Console:
    """Returns a rich console; unless it is a terminal, it is wide enough that nothing is cut."""
    from rich.console import Console

    stream = sys.stderr if to_stderr else sys.stdout
    return Console(
        file=stream, highlight=False, markup=False, soft_wrap=False, width=None if stream.isatty() else WIDTH_OF_FILES
    )


def write_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", wraps: str | None = None
) -> None:
    """Writes a table; numbers are right-aligned, None is an empty cell.

    wraps: the only column that may take several lines; by default all may.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    listed = [list(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)
    for number, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[number], int | float | None) for row in listed)
        justify: JustifyMethod = "right" if numeric else "left"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=wraps not in (None, name))
    for row in listed:
        table.add_row(*(Text(_cell(value)) for value in row))
    console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
