"""`yatt upgrade`: says what this version changes of a home, and migrates its ledger.

Consumes the home. Writes a table, or JSON.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns
from ops.presentation.output import write, write_json, write_list
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.errors import ExitCode

if TYPE_CHECKING:
    from ops.preflight.pending_change import PendingChange

app = typer.Typer()

CHANGES: Columns[PendingChange] = (
    Column("run", lambda change: change.run or ""),
    Column("what", lambda change: change.what),
    Column("before", lambda change: change.before),
    Column("now", lambda change: change.after),
    Column("effect", lambda change: change.effect, wraps=True),
)


@app.command(epilog=examples("yatt upgrade --check", "yatt upgrade", "yatt upgrade --check -o json"))
def upgrade(
    check: Annotated[bool, typer.Option("--check", help="Only say what would change; nothing is written.")] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Say what this version of YATT and its libraries changes of a home, then migrate its ledger.

    Lists the migrations of the ledger and, for each run that can be resumed, the libraries whose versions have changed since
    its last commit, with what that may change, and what would keep it from being resumed. Then sweeps, soups, queue entries and
    pipelines that could not go on, deployments whose new runs fail or are made with a warning, and suites that could not be
    evaluated again; a deployment is known once one of its windows has made a new run. Exit code 1 if something that is under
    way cannot go on like this; nothing is migrated then.
    """
    from db.ledger import Ledger
    from ops.preflight.upgrade import pending_changes

    place = Home.locate(home)
    changes = pending_changes(place)
    blocked = any(change.blocks for change in changes)
    migrates = not check and not blocked
    if migrates:
        with Ledger.open(place.ledger):
            pass
    if output is Output.JSON:
        write_json({"changes": [asdict(change) for change in changes], "migrated": migrates})
    elif changes:
        write_list(CHANGES, changes)
    else:
        write("nothing changes: the ledger and the libraries are those that the runs were last driven with")
    if blocked:
        raise typer.Exit(ExitCode.FAILURE)
