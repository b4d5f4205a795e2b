"""`yatt alarms`: lists what a run's guards found, when, on what evidence, and the action taken."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.output import write, write_json, write_list
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.write.alarms import AlarmRow

app = typer.Typer()

NEWEST = 5
"""Number of alarms that `yatt show` lists."""


@app.command(
    epilog=examples("yatt alarms latest", "yatt alarms quickstart-1 --rule entropy", "yatt alarms latest -o json")
)
def alarms(
    run: RunArgument,
    rule: Annotated[str | None, typer.Option(help="Show only this guard's alarms, such as those of `entropy`.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of alarms; the newest are kept.")] = 50,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List a run's alarms, oldest first; `-o json` includes the values that raised them."""
    with opened_ledger(Home.locate(home)) as ledger:
        name = find_run(ledger, run)
        found = [row for row in ledger.alarms.of(name) if rule is None or row.rule == rule]
    if output is Output.JSON:
        write_json({"run": name, "count": len(found), "alarms": [asdict(row) for row in found[-limit:]]})
    elif not found:
        write(f"{name}: no alarms")
    else:
        write_alarms(found[-limit:], len(found))


def alarm_facts(ledger: Ledger, run: str) -> dict[str, Any]:
    """Returns a run's newest alarms and its spending as plain values, for `yatt show`."""
    from flows.driver.spending import spent_by

    found = ledger.alarms.of(run)
    return {
        "alarm_count": len(found),
        "alarms": [asdict(row) for row in found[-NEWEST:]],
        "spent": asdict(spent_by(ledger, run)),
    }


def write_alarms(rows: Sequence[AlarmRow], count: int) -> None:
    """Writes a table of alarms.

    count: total number of alarms, including those not listed.
    """
    from ops.queries.run import ALARMS_SHOWN

    alarms = many(count, "alarm")
    title = alarms if count == len(rows) else f"the newest {len(rows)} of {alarms}"
    write_list(ALARMS_SHOWN, rows, title)
