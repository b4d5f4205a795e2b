"""Lists as tables of pages: headings and cells as markup, from the same columns as the commands' tables.

Consumes columns and rows (`ops.presentation.columns`); produces markup in which every text is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from markupsafe import Markup, escape

from ops.presentation.columns import (
    AgeCell,
    BadgeCell,
    Cell,
    Column,
    CommandCell,
    DigestCell,
    DurationCell,
    LinkCell,
    Medium,
    MomentCell,
    NoteCell,
    ProgressCell,
    Row,
    RunCell,
    SeveralCells,
    ShareCell,
    SizeCell,
    SmallCell,
    StateCell,
    seen_on,
)
from ops.web.formats import NOTHING, ago, figure, moment, run_url, share

STATES = {
    "running": ("good", "●"),
    "completed": ("good", "✓"),
    "failed": ("bad", "✕"),
    "stopped": ("", "■"),
    "paused": ("warn", "‖"),
    "waiting": ("warn", "…"),
    "created": ("", "○"),
    "kept": ("good", "✓"),
    "pruned": ("", "–"),
}
"""The look and the sign of each state."""
_COMMAND = re.compile(r"`([^`]+)`")


def on_pages(columns: Iterable[Column[Row]]) -> list[Column[Row]]:
    """Returns the columns that pages show."""
    return seen_on(columns, Medium.PAGE)


def head_cells(columns: Iterable[Column[Row]]) -> Markup:
    """Returns the headings of the columns that pages show."""
    return Markup("").join(
        Markup('<th scope="col"{}>{}</th>').format(_classes(column, heading=True), column.title)
        for column in on_pages(columns)
    )


def row_cells(columns: Iterable[Column[Row]], row: Row, named: bool = False) -> Markup:
    """Returns the cells of a row.

    named: each cell also has its heading, for narrow screens, on which a row becomes a card.
    """
    return Markup("").join(_row_cell(column, row, named) for column in on_pages(columns))


def _row_cell(column: Column[Row], row: Row, named: bool) -> Markup:
    content = markup_of(column.cell(row))
    classes = _classes(column)
    if column.heads:
        return Markup('<th scope="row"{}>{}</th>').format(classes, content)
    name = Markup(' data-name="{}"').format(column.title) if named else ""
    return Markup("<td{}{}>{}</td>").format(classes, name, content)


def _classes(column: Column[Row], heading: bool = False) -> Markup:
    style = column.style if column.style == "wide" or not heading else ""
    names = " ".join(name for name in ("number" if column.number else "", style) if name)
    return Markup(' class="{}"').format(names) if names else Markup("")


def state_badge(state: str) -> Markup:
    """Returns a state with its colour and its sign."""
    look, sign = STATES.get(state, ("", "·"))
    return Markup('<span class="badge {}"><span aria-hidden="true">{}</span> {}</span>').format(look, sign, state)


def commands(text: str) -> Markup:
    """Returns a text whose commands, between backticks, are code."""
    return Markup(_COMMAND.sub(r"<code>\1</code>", str(escape(text))))


def digest(value: str, characters: int = 12) -> Markup:
    """Returns the first characters of a digest, with the whole one to be read on demand."""
    return Markup('<code title="{}">{}</code>').format(value, value[:characters]) if value else Markup("none")


def markup_of(cell: Cell) -> Markup:
    """Returns a cell as a page shows it; a dash for what is not known."""
    match cell:
        case None:
            return Markup(NOTHING)
        case str():
            return escape(cell)
        case int() | float():
            return Markup(figure(cell))
        case SmallCell():
            return Markup("<small>{}</small>").format(markup_of(cell.text))
        case NoteCell():
            return _noted(cell)
        case SeveralCells():
            return escape(cell.between).join(markup_of(each) for each in cell.cells)
        case MomentCell() | DurationCell() | AgeCell() | ShareCell() | SizeCell():
            return _measure(cell)
        case _:
            return _name(cell)


def _measure(cell: MomentCell | DurationCell | AgeCell | ShareCell | SizeCell) -> Markup:
    match cell:
        case MomentCell():
            return moment(cell.at, cell.seconds)
        case AgeCell():
            return Markup(ago(cell.seconds))
        case ShareCell():
            return Markup(share(cell.fraction))
        case _:
            return Markup(cell.on_terminal() or NOTHING)


def _noted(cell: NoteCell) -> Markup:
    note = markup_of(cell.note)
    return markup_of(cell.cell) + (Markup('<br><small class="break">{}</small>').format(note) if note else "")


def _name(cell: ProgressCell | DigestCell | StateCell | BadgeCell | RunCell | LinkCell | CommandCell) -> Markup:
    match cell:
        case ProgressCell():
            return Markup(
                '<span class="nowrap">{}</span><br><progress max="1" value="{}" aria-label="{}"></progress>'
            ).format(cell.text, cell.fraction, cell.label)
        case DigestCell():
            return digest(cell.digest, cell.characters) if cell.digest else Markup("")
        case StateCell():
            return state_badge(cell.state)
        case BadgeCell():
            return Markup('<span class="badge {}">{}</span>').format(cell.look, cell.text)
        case RunCell():
            return Markup('<a href="{}">{}</a>').format(run_url(cell.run, cell.page), cell.run)
        case LinkCell():
            label = Markup(' aria-label="{}"').format(cell.label) if cell.label else ""
            return Markup('<a href="{}"{}>{}</a>').format(cell.address, label, cell.text)
        case CommandCell():
            return commands(cell.text)
