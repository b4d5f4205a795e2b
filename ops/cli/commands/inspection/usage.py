"""`yatt du`: where the disk goes, by run and by kind of file.

Consumes the home's folder and the ledger's runs; produces a table or one JSON object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.completion import complete_run
from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, examples
from ops.presentation.output import message, write, write_json, write_table

if TYPE_CHECKING:
    from flows.disposal.usage import FolderUsage

EVERY = 1_000_000
KINDS = ("checkpoints", "experience", "inputs", "exports", "prefect", "logs", "trackers", "other")


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    app.command(epilog=examples("yatt du", "yatt du latest quickstart-2", "yatt du -o json"))(du)


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
    from flows.disposal.usage import disk_usage
    from flows.run.home import Home
    from ops.presentation.words import size
    from yatt_core.counting import many

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
    table = [
        (
            usage.name,
            f"{rows[usage.name].state}, archived" if usage.name in archived else rows[usage.name].state,
            *(size(usage.kinds[kind]) if usage.kinds.get(kind) else "" for kind in shown),
            size(usage.shared) if usage.shared else "",
            size(usage.bytes),
        )
        for usage in used.runs
    ]
    if table:
        write_table(("run", "state", *shown, "shared", "all"), table)
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
