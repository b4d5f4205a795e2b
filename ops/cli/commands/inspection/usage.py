"""`yatt du`: where the disk goes, by run and by kind of file.

Consumes the home's folder and the ledger's runs; produces a table or one JSON object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from flows.disposal.usage import FolderUsage, disk_usage
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, SizeCell
from ops.presentation.output import message, write, write_json, write_list
from ops.presentation.words import size
from ops.terminal.completion import complete_run
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many

app = typer.Typer()

EVERY = 1_000_000
KINDS = ("checkpoints", "experience", "inputs", "exports", "prefect", "logs", "trackers", "other")


@app.command(epilog=examples("yatt du", "yatt du latest quickstart-2", "yatt du -o json"))
def du(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Show only these runs: ids, unique prefixes, or `latest`. Default: the whole home.",
            autocompletion=complete_run,
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show where the disk goes: the bytes of each run by kind of file, and of the rest of the home.

    A file that a fork shares with its parent counts in both runs, and once in the total. `yatt archive` deletes what a run that
    has ended no longer needs, `yatt delete` all of it.
    """
    from flows.disposal.archiving import ARCHIVED

    place = Home.locate(home)
    with opened_ledger(place) as ledger:
        rows = {row.id: row for row in ledger.runs.list(limit=EVERY)}
        only = {find_run(ledger, run) for run in runs} if runs else None
        used = disk_usage(place, rows.keys(), only)
        archived = {usage.name for usage in used.runs if ledger.events.of_kind(usage.name, ARCHIVED)}
    if output is Output.JSON:
        own = [
            {"run": usage.name, "state": rows[usage.name].state, "archived": usage.name in archived, **_document(usage)}
            for usage in used.runs
        ]
        unknown = [{"folder": usage.name, **_document(usage)} for usage in used.unknown]
        facts = {"folder": str(place.folder), "total": used.total, "runs": own, "unknown": unknown}
        write_json(facts | {"home": used.home.kinds})
        return
    shown = [kind for kind in KINDS if any(usage.kinds.get(kind) for usage in used.runs)]
    if used.runs:
        states = {name: f"{row.state}, archived" if name in archived else row.state for name, row in rows.items()}
        write_list(_columns(states, shown), used.runs)
    for kind, count in sorted(used.home.kinds.items(), key=lambda item: -item[1]):
        write(f"{kind:<14}{size(count)}")
    for usage in used.unknown:
        message(
            f"{place.folder / usage.name}: {size(usage.bytes)}, a run's folder that belongs to no run of this ledger"
        )
    where = f"in {place.folder}" if only is None else f"of {many(len(only), 'run')}"
    write(f"{'all':<14}{size(used.total)} {where}")


def _document(usage: FolderUsage) -> dict[str, Any]:
    return {"bytes": usage.bytes, "shared": usage.shared, "kinds": usage.kinds}


def _columns(states: Mapping[str, str], kinds: Sequence[str]) -> Columns[FolderUsage]:
    """Returns the columns of runs' folders: a column for each kind of files that one has."""
    return (
        Column("run", lambda usage: usage.name),
        Column("state", lambda usage: states[usage.name]),
        *(_kind_column(kind) for kind in kinds),
        Column("shared", lambda usage: SizeCell(usage.shared or None), number=True),
        Column("all", lambda usage: SizeCell(usage.bytes), number=True),
    )


def _kind_column(kind: str) -> Column[FolderUsage]:
    return Column(kind, lambda usage: SizeCell(usage.kinds.get(kind) or None), number=True)
