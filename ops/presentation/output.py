"""Writes output for people and programs: data goes to standard output, everything else to standard error.

Colours are used on terminals only, and NO_COLOR turns them off (handled by rich).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ops.presentation.columns import Column, Medium, Row, seen_on, terminal_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

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


def write_list(columns: Sequence[Column[Row]], rows: Iterable[Row], title: str = "") -> None:
    """Writes a list: a heading for each column that a terminal shows, and a line for each row."""
    shown = seen_on(columns, Medium.TERMINAL)
    wrapping = [column.name for column in shown if column.wraps]
    table = _new_table(title)
    for column in shown:
        _add_column(table, column.name, column.number, no_wrap=bool(wrapping) and not column.wraps)
    _print(table, [[terminal_text(column.cell(row)) for column in shown] for row in rows])


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Writes what is no list of rows with columns of their own, such as a matrix, as a table.

    Numbers are right-aligned; None is an empty cell.
    """
    listed = [list(row) for row in rows]
    table = _new_table(title)
    for number, name in enumerate(columns):
        numeric = bool(listed) and all(isinstance(row[number], int | float | None) for row in listed)
        _add_column(table, name, numeric, no_wrap=False)
    _print(table, [["" if value is None else _text(value) for value in row] for row in listed])


def _new_table(title: str) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    return Table(box=SIMPLE_HEAD, title=title or None, title_justify="left", pad_edge=False)


def _add_column(table: Table, name: str, number: bool, no_wrap: bool) -> None:
    table.add_column(name, justify="right" if number else "left", overflow="fold", no_wrap=no_wrap)


def _print(table: Table, rows: Iterable[Sequence[str]]) -> None:
    from rich.text import Text

    for row in rows:
        table.add_row(*map(Text, row))
    console().print(table)


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
