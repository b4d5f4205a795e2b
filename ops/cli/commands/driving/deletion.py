"""`yatt rm`, `yatt delete` and `yatt archive`: delete runs, or what runs that have ended no longer need.

Consumes runs' ids; produces records in the ledger of who deleted what, when and why. All runs are checked before anything of the
first one is deleted. `rm` is for runs that never began, such as those of a mistyped spec, and `delete` for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from flows.disposal.usage import folder_bytes
from flows.run.home import Home
from ops.presentation.output import message, write, write_json
from ops.presentation.words import size
from ops.terminal.completion import complete_run
from ops.terminal.lookup import LATEST, find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from ops.terminal.people import agreed, line_of_text, named
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, ExitCode

if TYPE_CHECKING:
    from db.ledger import Ledger

app = typer.Typer()


@app.command(
    epilog=examples(
        "yatt rm quickstart-4",
        "yatt rm quickstart-4 quickstart-5 --why 'wrong data' --yes",
        "yatt rm latest --yes -o json",
    )
)
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

    A run has begun once it has committed an iteration or published a checkpoint; it is never deleted. In MLflow, runs are marked
    as deleted; `mlflow gc` removes them for good. `yatt runs --deleted` shows who deleted which run, when and why. If something
    cannot be removed yet, repeat the command.
    """
    from flows.run.deletion import require_deletable

    place = Home.locate(home)
    person = named(by, "deletes the runs")
    with opened_ledger(place) as ledger:
        names = list(dict.fromkeys(_meant(ledger, run) for run in runs))
        for name in names:
            require_deletable(ledger, name)
    _delete(
        place=place,
        names=names,
        question=f"delete {', '.join(names)}?",
        yes=yes,
        person=person,
        why=why,
        output=output,
        begun=False,
    )


@app.command(
    epilog=examples("yatt delete quickstart-4", "yatt delete sweep-1 sweep-2 sweep-3 --why 'superseded' --yes")
)
def delete(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Full ids of runs, or `latest`.", autocompletion=complete_run)
    ],
    promoted: Annotated[
        bool, typer.Option("--promoted", help="Also delete runs whose checkpoints have aliases in the registry.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    why: Annotated[str, typer.Option("--why", help="Reason; recorded in the ledger.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who deletes them. Default: your login name.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete runs for good, whether they have begun or not: their results, checkpoints, samples, metrics and MLflow runs.

    A run that is driven, or that something else depends on, is refused: forks, a sweep or soup, a pipeline under way, the queue,
    a spec that names its files. Runs that depend on each other are deleted in one command. In MLflow, runs are marked as
    deleted; `mlflow gc` removes them for good. The ledger keeps a record with their specs and audit chains
    (`yatt runs --deleted`), but not what they cost. `yatt archive` keeps the results.
    """
    from flows.disposal.dependents import in_order
    from flows.run.deletion import require_undriven

    place = Home.locate(home)
    person = named(by, "deletes the runs")
    with opened_ledger(place) as ledger:
        names = list(dict.fromkeys(_meant(ledger, run) for run in runs))
        present = [name for name in names if ledger.deletions.find(name) is None]
        ordered = in_order(place, ledger, present, promoted)
        for name in ordered:
            require_undriven(ledger, name, begun=True)
        rows = [ledger.runs.find(name) for name in ordered]
    for row in rows:
        held = size(folder_bytes(place.run_folder(row.id)))
        begun = (
            f"{row.iteration} of {many(row.target_iterations, 'iteration')}" if row.iteration >= 0 else "never began"
        )
        message(f"{row.id}: {row.state}, {begun}, {held}")
    remains = [name for name in names if name not in present]
    question = f"delete {', '.join(names)} for good?"
    _delete(
        place=place,
        names=[*ordered, *remains],
        question=question,
        yes=yes,
        person=person,
        why=why,
        output=output,
        begun=True,
    )


def _delete(
    place: Home, names: Sequence[str], question: str, yes: bool, person: str, why: str, output: Output, begun: bool
) -> None:
    """Deletes runs in this order, if the person agrees, and says what became of each."""
    from flows.run.deletion import Deleted, delete_run
    from ops.integrations.mlflow_tracker import MlflowTracker

    reason = line_of_text("--why", why)
    if not agreed(question, yes):
        message("nothing was deleted")
        return
    tracker = MlflowTracker(place.tracking_uri, place.artifacts)
    done = list[Deleted]()
    try:
        for name in names:
            each = delete_run(home=place, run=name, by=person, why=reason, tracker=tracker, begun=begun)
            done.append(each)
            if output is Output.TEXT:
                write(f"{each.run} is deleted")
            for left in each.left:
                message(f"{each.run}: not removed yet: {left}; to try again: yatt rm {each.run}")
            for kept in each.elsewhere:
                message(f"{each.run}: not removed by YATT: {kept}")
    finally:  # what was deleted is said although a later run is refused
        if output is Output.JSON and done:
            write_json({"deleted": [asdict(each) for each in done]})
    if any(each.left for each in done):
        raise typer.Exit(ExitCode.FAILURE)


@app.command(epilog=examples("yatt archive quickstart-4", "yatt archive quickstart-4 --yes -o json"))
def archive(
    runs: Annotated[
        list[str], typer.Argument(metavar="RUN...", help="Full ids of runs, or `latest`.", autocompletion=complete_run)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Archive without asking.")] = False,
    why: Annotated[str, typer.Option("--why", help="Reason; recorded in the audit chain.")] = "",
    by: Annotated[str | None, typer.Option("--by", help="Who archives them. Default: your login name.")] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete what runs that have ended no longer need: older checkpoints, experience, their own Prefect databases.

    Rows, metrics, audit chain, logs, inputs and exports stay, and so do the newest checkpoint, that of iteration 0, and those of
    aliases and branches. The run can still be shown, evaluated, exported and resumed.
    """
    from flows.disposal.archiving import Archived, archive_run, require_archivable

    place = Home.locate(home)
    person = named(by, "archives the runs")
    reason = line_of_text("--why", why)
    with opened_ledger(place) as ledger:
        names = list(dict.fromkeys(_full(run, find_run(ledger, run), "archive") for run in runs))
        for name in names:
            require_archivable(ledger, name)
        if not agreed(f"delete older checkpoints and experience of {', '.join(names)}?", yes):
            message("nothing was archived")
            return
        done = list[Archived]()
        try:
            for name in names:
                each = archive_run(home=place, ledger=ledger, run=name, by=person, why=reason)
                done.append(each)
                if output is Output.TEXT:
                    checkpoints = many(len(each.checkpoints), "checkpoint")
                    what = f"{checkpoints} and the experience of {many(len(each.experience), 'iteration')}"
                    write(f"{each.run} is archived: {what} deleted, {size(each.freed)} less")
        finally:  # what was deleted is said although a later run is refused
            if output is Output.JSON and done:
                write_json({"archived": [asdict(each) for each in done]})


def _meant(ledger: Ledger, name: str) -> str:
    """Returns the id of the run to delete, which may be deleted already except for remains.

    Raises `RunNotFound`; `ConfigurationError` for the beginning of an id, since it could match another run than meant.
    """
    deleted = ledger.deletions.find(name)
    if deleted is not None and deleted.cleaned_at is None:
        return name
    return _full(name, find_run(ledger, name), "delete")


def _full(name: str, found: str, verb: str) -> str:
    """Returns the id that was found. Raises `ConfigurationError` for its beginning, which could match another run than meant."""
    if name not in (found, LATEST):
        raise ConfigurationError(f"RUN: {name!r} is the beginning of an id; to {verb} a run, give its full id: {found}")
    return found
