"""`yatt rm`: deletes runs that never began, such as those of a mistyped spec.

Consumes runs' ids; produces records in the ledger of who deleted them, when and why. All of them are checked before the
first one is deleted.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ops.cli.completion import complete_run
from ops.cli.lookup import LATEST, find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, examples
from ops.cli.people import agreed, line_of_text, named
from ops.presentation.output import message, write, write_json
from yatt_core.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from db.ledger import Ledger


def register(app: typer.Typer) -> None:
    """Adds the command to the program."""
    lines = (
        "yatt rm quickstart-4",
        "yatt rm quickstart-4 quickstart-5 --why 'wrong data' --yes",
        "yatt rm latest --yes -o json",
    )
    app.command(epilog=examples(*lines))(rm)


def rm(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Full ids of runs, or `latest`.", autocompletion=complete_run)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    why: Annotated[str, typer.Option("--why", help="Reason; recorded in the ledger.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who deletes them. Default: your login name.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete runs that never began: their rows, folders, objects and MLflow runs.

    A run has begun once it has committed an iteration or published a checkpoint; it is never deleted. `yatt runs --deleted`
    shows who deleted which run, when and why. If something cannot be removed yet, repeat the command.
    """
    from flows.run.deletion import delete_run, require_deletable
    from flows.run.home import Home
    from ops.integrations.mlflow_tracker import MlflowTracker

    place, person = Home.locate(home), named(by, "deletes the runs")
    with opened_ledger(place) as ledger:
        names = list(dict.fromkeys(_meant(ledger, run) for run in runs))
        for name in names:
            require_deletable(ledger, name)
    if not agreed(f"delete {', '.join(names)}?", yes):
        message("nothing was deleted")
        return
    tracker = MlflowTracker(place.tracking_uri, place.artifacts)
    done = [delete_run(place, name, person, line_of_text("--why", why), tracker) for name in names]
    if output is Output.JSON:
        write_json({"deleted": [asdict(each) for each in done]})
    for each in done:
        if output is Output.TEXT:
            write(f"{each.run} is deleted")
        for left in each.left:
            message(f"{each.run}: not removed yet: {left}; to try again: yatt rm {each.run}")
        for kept in each.elsewhere:
            message(f"{each.run}: not removed by YATT: {kept}")
    if any(each.left for each in done):
        raise typer.Exit(ExitCode.FAILURE)


def _meant(ledger: Ledger, name: str) -> str:
    """Returns the id of the run to delete, which may be deleted already except for remains.

    Raises `RunNotFound`; `ConfigurationError` for the beginning of an id, since it could match another run than meant.
    """
    deleted = ledger.deletions.find(name)
    if deleted is not None and deleted.cleaned_at is None:
        return name
    found = find_run(ledger, name)
    if name not in (found, LATEST):
        raise ConfigurationError(f"RUN: {name!r} is the beginning of an id; to delete a run, give its full id: {found}")
    return found
