"""`yatt alarms`: what the guards of a run found, when, with what evidence, and what it led to."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import write, write_json, write_table

if TYPE_CHECKING:
    from db.ledger import Ledger

NEWEST = 5
"""How many `yatt show` has."""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    lines = ("yatt alarms latest", "yatt alarms quickstart-1 --rule entropy", "yatt alarms latest -o json")
    app.command(epilog=examples(*lines))(alarms)


def alarms(
    run: RunArgument,
    rule: Annotated[str | None, typer.Option(help="Only those of this guard, such as `entropy`.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest.")] = 50,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List what a run's guards found, the oldest first; with -o json with the values that it was found by."""
    from flows.run.home import Home

    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        found = [row for row in ledger.alarms.of(name) if rule is None or row.rule == rule]
    if output is Output.JSON:
        write_json({"run": name, "count": len(found), "alarms": [asdict(row) for row in found[-limit:]]})
    elif not found:
        write(f"{name}: no alarms")
    else:
        write_alarms([asdict(row) for row in found[-limit:]], len(found))


def alarm_facts(ledger: Ledger, run: str) -> dict[str, Any]:
    """What `yatt show` tells of a run's alarms and of what it has used up, as plain values."""
    from flows.driver.spending import spent_by

    found = ledger.alarms.of(run)
    return {
        "alarm_count": len(found),
        "alarms": [asdict(row) for row in found[-NEWEST:]],
        "spent": asdict(spent_by(ledger, run)),
    }


def write_alarms(rows: list[dict[str, Any]], count: int) -> None:
    """A table of alarms, given as plain values. count: how many there are in all."""
    table = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row["at"] / 1000)),
            f"{row['iteration']} of branch {row['branch']}",
            row["rule"],
            row["action"],
            row["text"],
        )
        for row in rows
    ]
    title = f"{count} alarms" if count == len(rows) else f"the newest {len(rows)} of {count} alarms"
    write_table(("time", "iteration", "guard", "action", "what was found"), table, title)
