"""Lists: a command's table and a page's come from the same columns, and templates write no lists of their own."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from ops.presentation.columns import (
    BadgeCell,
    Column,
    Columns,
    CommandCell,
    DurationCell,
    LinkCell,
    Medium,
    MomentCell,
    NoteCell,
    RunCell,
    SeveralCells,
    SmallCell,
    terminal_text,
)
from ops.presentation.output import write_list
from ops.web.lists import commands, head_cells, on_pages, row_cells
from ops.web.templating import TEMPLATE_FOLDERS, make_templates
from tests.dashboard.pages import HTML, parsed_part, words

MARKUP = "<b>&"
OWN_HEADINGS = {
    "checkpoints.html": "verification, lineage and buttons beside the columns",
    "columns.html": "a grid of images, with a column for each iteration",
    "compare.html": "the colour of each run's curve beside the columns",
    "devices.html": "bars drawn to scale",
    "rollout_comparison.html": "the colour of each iteration's bars beside the columns",
    "rollout_parts.html": "links to the responses below",
    "run_list.html": "boxes to tick, and tags",
    "run_time.html": "the legend of a picture",
}
"""Templates that have a table's heading of their own, and why."""


@dataclass(frozen=True, slots=True)
class Sight:
    """A row of a list."""

    run: str
    reward: float | None
    seconds: float
    text: str


SIGHTS: Columns[Sight] = (
    Column("run", lambda sight: RunCell(sight.run, "faults"), heads=True),
    Column("reward", lambda sight: sight.reward, number=True),
    Column("kWh", lambda sight: DurationCell(sight.seconds), number=True, verbatim=True),
    Column("seen by", lambda sight: sight.text, style="break", wraps=True),
    Column("age", lambda sight: "old", medium=Medium.TERMINAL),
    Column("look", lambda sight: BadgeCell("fine", "good"), medium=Medium.PAGE),
)
ROWS = [Sight("toy-1", 0.123456, 75.0, MARKUP), Sight("toy-2", None, 0.5, "")]


def test_both_media_show_the_same_columns_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    write_list(SIGHTS, ROWS, "sights")
    title, head, first, second = (
        line for line in capsys.readouterr().out.splitlines() if line.strip() and "─" not in line
    )
    assert title.strip() == "sights"
    assert head.split() == ["run", "reward", "kWh", "seen", "by", "age"]
    assert first.split() == ["toy-1", "0.1235", "1", "min", "15", "s", MARKUP, "old"]
    assert second.split() == ["toy-2", "0.5", "s", "old"], "what is not known is empty"
    assert head.index("reward") + len("reward") == first.index("0.1235") + len("0.1235"), "numbers end in one line"
    macros = make_templates().env.get_template("parts.html").module
    page = parsed_part(str(macros.list("Sights", SIGHTS, ROWS)))  # type: ignore[attr-defined]
    titles, *rows = [[words(cell) for cell in row] for row in page.iter(f"{HTML}tr")]
    assert titles == ["Run", "Reward", "kWh", "Seen by", "Look"]
    assert rows == [["toy-1", "0.1235", "1 min 15 s", MARKUP, "fine"], ["toy-2", "–", "0.5 s", "", "fine"]]
    link = page.find(f".//{HTML}a")
    assert link is not None and link.attrib["href"] == "/runs/toy-1/faults"
    empty = words(parsed_part(str(macros.list("Sights", SIGHTS, (), "None. `yatt <b>` makes one."))))  # type: ignore[attr-defined]
    assert empty.endswith("None. yatt <b> makes one.")


def test_every_kind_of_cell_is_text_on_a_terminal_and_escaped_on_a_page() -> None:
    cells = (
        MARKUP,
        BadgeCell(MARKUP, "bad"),
        RunCell(MARKUP),
        LinkCell(MARKUP, f"/{MARKUP}", MARKUP),
        CommandCell(f"`{MARKUP}`"),
        SmallCell(MARKUP),
        NoteCell(MARKUP, MARKUP),
        SeveralCells((MARKUP, MARKUP), MARKUP),
    )
    for cell in cells:
        column: Column[Sight] = Column(MARKUP, {ROWS[0]: cell}.__getitem__)
        for markup in (row_cells([column], ROWS[0], named=True), head_cells([column])):
            assert "<b>" not in markup and "&amp;" in markup
        assert "<b>" in terminal_text(cell)
    assert terminal_text(MomentCell(None)) == "" and terminal_text(DurationCell(None)) == ""
    assert commands("`a` and `b`") == "<code>a</code> and <code>b</code>"
    assert [column.name for column in on_pages(SIGHTS)] == ["run", "reward", "kWh", "seen by", "look"]


def test_templates_write_no_headings_of_lists() -> None:
    templates = [path for folder in TEMPLATE_FOLDERS for path in folder.glob("*.html")]
    assert len({path.name for path in templates}) == len(templates) > 30, "a template is found by its name alone"
    written = {path.name for path in templates if re.search(r'<th scope="col"[^>]*>', path.read_text())}
    assert written == OWN_HEADINGS.keys()
