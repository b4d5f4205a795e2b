"""Describes lists that people see: their columns, and the kinds of values in their cells.

A list is described once, beside the query that finds its rows: the command's table (`ops.presentation.output.write_list`) and the
page's (`list` in `parts.html`) both come from its columns. `-o json`, the API and the client have whole rows, as plain values:
there the row's dataclass is the description.

A cell says what it holds, and each medium how that looks: a time is local on a terminal, and UTC on a page; a number is rounded,
and a page groups its digits. None is unknown; an empty text is nothing. This module holds the terminal's side,
`ops.web.lists` the page's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, Literal, TypeVar

from ops.presentation.words import age, duration, moment, size

Row = TypeVar("Row")
ShownRow = TypeVar("ShownRow", contravariant=True)
"""Columns of a kind of rows show the rows of each more special kind too."""


@dataclass(frozen=True, slots=True)
class MomentCell:
    """A time.

    at: milliseconds since 1970.
    seconds: whether a page shows them; a terminal does.
    """

    at: int | None
    seconds: bool = False

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return "" if self.at is None else moment(self.at)


@dataclass(frozen=True, slots=True)
class DurationCell:
    """A length of time."""

    seconds: float | None

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return "" if self.seconds is None else duration(max(0.0, self.seconds))


@dataclass(frozen=True, slots=True)
class AgeCell:
    """The time since something, in seconds."""

    seconds: float | None

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return "" if self.seconds is None else age(self.seconds)


@dataclass(frozen=True, slots=True)
class ShareCell:
    """A fraction, shown as a percentage."""

    fraction: float | None

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return "" if self.fraction is None else f"{self.fraction:.1%}"


@dataclass(frozen=True, slots=True)
class SizeCell:
    """A number of bytes."""

    count: float | None

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return "" if self.count is None else size(self.count)


@dataclass(frozen=True, slots=True)
class DigestCell:
    """The first characters of a digest; empty for none."""

    digest: str
    characters: int = 16

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.digest[: self.characters]


@dataclass(frozen=True, slots=True)
class StateCell:
    """The state of a run or a checkpoint; a page marks it with a colour and a sign."""

    state: str

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.state


@dataclass(frozen=True, slots=True)
class ProgressCell:
    """A text, below which a page draws a bar.

    fraction: of the bar that is filled.
    label: what the bar shows, for those who cannot see it.
    """

    text: str
    fraction: float
    label: str

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.text


@dataclass(frozen=True, slots=True)
class BadgeCell:
    """A word that a page marks with a colour: `good`, `warn`, `bad`, or none."""

    text: str
    look: Literal["", "good", "warn", "bad"] = ""

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.text


@dataclass(frozen=True, slots=True)
class RunCell:
    """A run; a page links to one of its pages.

    page: the path below the run's own page; empty for that.
    """

    run: str
    page: str = ""

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.run


@dataclass(frozen=True, slots=True)
class LinkCell:
    """A text that a page links to an address.

    label: what the link leads to, for those who hear the page; empty if the text says so.
    """

    text: str
    address: str
    label: str = ""

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.text


@dataclass(frozen=True, slots=True)
class CommandCell:
    """A text with commands between backticks, which a page shows as code."""

    text: str

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.text


@dataclass(frozen=True, slots=True)
class SmallCell:
    """What a page shows in small letters, after something else."""

    text: Cell

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return terminal_text(self.text)


@dataclass(frozen=True, slots=True)
class NoteCell:
    """A value, and a note that a page shows below it in small letters; empty for none."""

    cell: Cell
    note: Cell

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it: the note follows after a semicolon."""
        return "; ".join(text for text in map(terminal_text, (self.cell, self.note)) if text)


@dataclass(frozen=True, slots=True)
class SeveralCells:
    """Several values in one cell."""

    cells: tuple[Cell, ...]
    between: str = ""

    def on_terminal(self) -> str:
        """Returns it as a terminal shows it."""
        return self.between.join(map(terminal_text, self.cells))


Cell = (
    str
    | int
    | float
    | MomentCell
    | DurationCell
    | AgeCell
    | ShareCell
    | SizeCell
    | DigestCell
    | StateCell
    | ProgressCell
    | BadgeCell
    | RunCell
    | LinkCell
    | CommandCell
    | SmallCell
    | NoteCell
    | SeveralCells
    | None
)


class Medium(Enum):
    """Where a column is shown."""

    EVERYWHERE = "everywhere"
    TERMINAL = "terminal"
    PAGE = "page"


Style = Literal["", "break", "text", "nowrap", "wide"]
"""How a page may lay out a cell: broken anywhere, as a text with its own lines, on one line, or hidden on narrow screens."""


@dataclass(frozen=True, slots=True)
class Column(Generic[ShownRow]):
    """A column of a list.

    name: its heading, with its unit if it has one; a page begins it with a capital.
    verbatim: a page writes the name as it is, such as a unit or a run's id.
    number: aligned to the right.
    heads: it names its row.
    wraps: on a terminal, only columns that wrap take several lines, unless none does.
    """

    name: str
    cell: Callable[[ShownRow], Cell]
    number: bool = False
    heads: bool = False
    style: Style = ""
    wraps: bool = False
    verbatim: bool = False
    medium: Medium = Medium.EVERYWHERE

    @property
    def title(self) -> str:
        """The heading on a page."""
        return self.name if self.verbatim else self.name[:1].upper() + self.name[1:]


Columns = tuple[Column[Row], ...]


def seen_on(columns: Iterable[Column[Row]], medium: Medium) -> list[Column[Row]]:
    """Returns the columns that a medium shows."""
    return [column for column in columns if column.medium in (medium, Medium.EVERYWHERE)]


def runs_cell(runs: Iterable[str]) -> SeveralCells:
    """Returns a cell of runs."""
    return SeveralCells(tuple(RunCell(run) for run in runs), " ")


def terminal_text(cell: Cell) -> str:
    """Returns a cell as a terminal shows it; what is not known is empty."""
    match cell:
        case None:
            return ""
        case float():
            return f"{cell:.4g}"
        case str() | int():
            return str(cell)
        case _:
            return cell.on_terminal()
