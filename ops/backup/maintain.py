"""`yatt maintain` and `yatt migrate`: upkeep of a home by hand; `yatt up` schedules maintenance each day.

Consumes the home; writes what was done to standard output.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from flows.run.home import Home
from ops.preflight.home_folder import ledger_file
from ops.presentation.output import write, write_json
from ops.process import keep_caches_inside
from ops.terminal.lookup import opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from ops.terminal.people import named
from yatt_core.errors import ConfigurationError, ExitCode

app = typer.Typer()


@app.command(epilog=examples("yatt maintain", "yatt maintain -o json"))
def maintain(
    by: Annotated[str | None, typer.Option("--by", help="Who starts it. Default: your login name.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Do now what `yatt up` does each day: finish deletions, prune idle runs, audit, back up, tidy the ledger.

    `maintenance.yaml` in the home folder says when, whether to audit, and where to back up. Exit code 1 if something failed
    or is wrong.
    """
    from flows.maintenance.runner import maintain as maintained
    from flows.maintenance.settings import read_settings
    from ops.maintenance_steps import steps

    place = Home.locate(home)
    keep_caches_inside(place)
    settings = read_settings(place)
    person = named(by, "maintains the home")
    with opened_ledger(place):
        result = maintained(place, steps(place, settings), person)
    if output is Output.JSON:
        write_json(asdict(result) | {"ok": result.ok})
    else:
        for step in result.steps:
            write(f"{'ok' if step.ok else 'fail':<6}{step.name:<11}{step.said}")
    if not result.ok:
        raise typer.Exit(ExitCode.FAILURE)


@app.command(epilog=examples("yatt migrate", "yatt migrate -o json"))
def migrate(home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Bring the ledger to the tables of this version, in one transaction, while runs go on.

    Migrations only add, so drivers of the version before go on; new ones of that version, and its commands, are refused.
    `yatt train`, `resume` and `deploy` migrate, too.
    """
    from db.ledger import Ledger

    place = Home.locate(home)
    file = ledger_file(place)
    if file is not None and not file.exists():
        raise ConfigurationError(f"{file}: there is no ledger to migrate; the first run makes one")
    with Ledger.open(place.ledger) as ledger:
        done = ledger.migration
    if output is Output.JSON:
        write_json(asdict(done))
    elif done.before == done.after:
        write(f"the ledger is at revision {done.after}, the newest that this version knows; nothing to do")
    else:
        write(f"the ledger went from revision {done.before or 'none'} to {done.after}")
