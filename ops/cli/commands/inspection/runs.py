"""`yatt runs`: lists runs with their progress, reward, accuracy and age, filtered and sorted; and deleted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns, MomentCell
from ops.presentation.curves import sparkline
from ops.presentation.output import console, message, write_json, write_list
from ops.terminal.lookup import opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.write.deletions import DeletedRow
    from ops.queries.run_list import ListedRun, RunList

app = typer.Typer()

WIDE = 110
"""Width of a terminal from which all columns are shown."""
CURVE_WIDTH = 16
EVERYTHING = 1_000_000


DELETED: Columns[DeletedRow] = (
    Column("run", lambda row: row.run),
    Column("deleted", lambda row: MomentCell(row.deleted_at)),
    Column("by", lambda row: row.by),
    Column("why", lambda row: row.why),
    Column("files left", lambda row: "" if row.cleaned_at else "yes"),
)


class ListedState(StrEnum):
    """The state of a run."""

    CREATED = "created"
    RUNNING = "running"
    WAITING = "waiting"
    STOPPED = "stopped"
    PAUSED = "paused"
    FAILED = "failed"
    COMPLETED = "completed"


class Order(StrEnum):
    """What runs are sorted by; the highest, newest or most advanced comes first."""

    CREATED = "created"
    COMMIT = "commit"
    PROGRESS = "progress"
    REWARD = "reward"
    ACCURACY = "accuracy"
    NAME = "name"


@app.command(
    epilog=examples(
        "yatt runs",
        "yatt runs quickstart --state completed --sort accuracy",
        "yatt runs --curves --limit 5",
        "yatt runs --limit 5 -o json",
        "yatt runs --deleted",
    )
)
def runs(
    text: Annotated[str, typer.Argument(metavar="[TEXT]", help="List only runs whose id contains this.")] = "",
    state: Annotated[ListedState | None, typer.Option(help="List only runs in this state.")] = None,
    sort: Annotated[Order, typer.Option(help="Sort by this; runs without it come last.")] = Order.CREATED,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs.")] = 50,
    curves: Annotated[bool, typer.Option("--curves", help="Show the curve of each run's reward.")] = False,
    deleted: Annotated[bool, typer.Option("--deleted", help="List deleted runs: who deleted them, and why.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List runs, running ones first, then the newest: state, progress, reward, held-out accuracy and age."""
    from ops.queries.run_list import run_list

    with opened_ledger(Home.locate(home)) as ledger:
        if deleted:
            _show_deleted(ledger, limit, output)
            return
        whole = sort is not Order.CREATED
        found = run_list(ledger, text, state, EVERYTHING if whole else limit)
        listed = _sorted(found.runs, sort)[:limit] if whole else list(found.runs)
        drawn = _curves(ledger, listed) if curves else {}
    if output is Output.JSON:
        rows = [_facts(run) | ({"curve": drawn.get(run.id, ())} if curves else {}) for run in listed]
        write_json({"total": found.total, "runs": rows})
        return
    _show(listed, drawn, curves)
    _tell_about_others(found, len(listed), text, state)


def _sorted(runs: Sequence[ListedRun], order: Order) -> list[ListedRun]:
    if order is Order.NAME:
        return sorted(runs, key=lambda run: (run.spec_name, run.created_at))

    def key(run: ListedRun) -> float | None:
        return {
            Order.COMMIT: run.committed_at,
            Order.PROGRESS: run.progress,
            Order.REWARD: run.reward,
            Order.ACCURACY: run.accuracy,
        }[order]

    known = [(value, run) for run in runs if (value := key(run)) is not None]
    best_first = [run for _, run in sorted(known, key=lambda pair: pair[0], reverse=True)]
    return best_first + [run for run in runs if key(run) is None]


def _curves(ledger: Ledger, runs: Sequence[ListedRun]) -> dict[str, tuple[float | None, ...]]:
    from db.read.run_list import REWARD

    return ledger.run_list.curves([run.id for run in runs], REWARD, CURVE_WIDTH)


def _facts(run: ListedRun) -> dict[str, Any]:
    """Returns a run's line as plain values; the branch and the term also under the names of the ledger's columns."""
    return asdict(run) | {"current_branch": run.branch}


def _show(runs: Sequence[ListedRun], drawn: dict[str, tuple[float | None, ...]], curves: bool) -> None:
    """Writes the table; on a narrow terminal, some columns are left out rather than broken."""
    from ops.queries.run_list import RUNS

    wide = console().width >= WIDE
    shown = {"%": wide, "age": wide, "driver": wide} | dict.fromkeys(("last commit", "reason"), wide or not curves)
    columns = [column for column in RUNS if shown.get(column.name, True)]
    if curves:
        after = [column.name for column in columns].index("accuracy") + 1
        columns.insert(after, Column("curve", lambda run: sparkline(drawn.get(run.id, ()))))
    write_list(columns, runs)


def _tell_about_others(found: RunList, shown: int, text: str, state: ListedState | None) -> None:
    """Writes what the table leaves out, to standard error."""
    if not found.total and (text or state):
        there = ", ".join(f"{count} {name}" for name, count in sorted(found.states.items())) or "none"
        message(f"no run matches; runs by state: {there}")
    elif shown < found.total:
        message(f"{shown} of {many(found.total, 'run')}; --limit shows more")


def _show_deleted(ledger: Ledger, limit: int, output: Output) -> None:
    rows = ledger.deletions.list(limit)
    if output is Output.JSON:
        write_json({"deleted": [asdict(row) for row in rows]})
        return
    write_list(DELETED, rows)
