"""`yatt restore`: restores a backup into a new home.

Consumes a folder of backups; writes what was restored to standard output, progress and advice to standard error.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from flows.run.home import LEDGER_VARIABLE, Home
from ops.backup.backup import IdOption, backup_folder, progress_bar
from ops.presentation.output import message, write, write_json
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many

app = typer.Typer()
FromArgument = Annotated[Path, typer.Argument(metavar="FROM", help="Folder of backups.")]


@app.command(
    epilog=examples(
        "yatt restore /backups/yatt --home /data/runs",
        "yatt restore /backups/yatt --id 20260921T14 --home /data/runs --ledger postgresql://yatt@db/ledger",
    )
)
def restore(
    source: FromArgument,
    backup: IdOption = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            "--ledger", metavar="URL", help="Database of the ledger. Default: $YATT_LEDGER, else in the home."
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Restore a backup into a new home, under any path and into SQLite or PostgreSQL.

    Home and ledger must be empty. Nobody drives the restored runs: `yatt resume` continues them. If the command is
    interrupted, repeat it. Stop the original runs first if they use an object store, or MLflow on a server.
    """
    from db.core.engine import dsn_url
    from flows.backup.restore import restore_backup

    place = Home.locate(home)
    folder = backup_folder(source)
    if ledger is not None:
        dsn_url(ledger)
    with progress_bar("restoring") as progress:
        name = folder.find(backup)
        manifest = restore_backup(
            folder=folder, backup=name, home=place, address=ledger or place.ledger_address, progress=progress
        )
    runs = manifest.tables["run"].rows
    if output is Output.JSON:
        write_json({"id": name, "home": str(place.folder), "runs": runs, "files": len(manifest.files)})
    else:
        write(f"{place.folder}: {many(runs, 'run')} and {many(len(manifest.files), 'file')} of {name} are restored")
    for lacking in manifest.lacking.values():
        message(f"the home lacked this already when the backup was made: {lacking}")
    if ledger is not None and ledger != os.environ.get(LEDGER_VARIABLE):
        message(f"the ledger is not in the home folder: set {LEDGER_VARIABLE} to its address for all commands")
