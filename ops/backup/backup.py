"""`yatt backup`: copies of a home from which its runs go on elsewhere.

Consumes a home whose runs may go on, and a folder of backups; writes tables or one JSON object to standard output, progress
and advice to standard error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.run.home import Home
from ops.presentation.columns import Column, Columns, MomentCell, SizeCell
from ops.presentation.output import console, message, write, write_json, write_list
from ops.presentation.words import size
from ops.terminal.lookup import opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError, DataError, ExitCode

if TYPE_CHECKING:
    from flows.backup.folder import BackupFolder
    from flows.backup.verify import VerifiedBackup

ToArgument = Annotated[Path, typer.Argument(metavar="TO", help="Folder of backups, outside the home folder.")]
IdOption = Annotated[
    str | None, typer.Option("--id", metavar="ID", help="A backup's id, or the beginning of it. Default: the newest.")
]
CREATE = (
    "yatt backup create /backups/yatt",
    "yatt backup create /backups/yatt --with-tokens",
    "yatt backup create /backups/yatt -o json",
)
LIST = ("yatt backup list /backups/yatt", "yatt backup list /backups/yatt -o json")
VERIFY = ("yatt backup verify /backups/yatt", "yatt backup verify /backups/yatt --id 20260921T14 -o json")
PRUNE = ("yatt backup prune /backups/yatt --keep 14",)
app = typer.Typer(
    name="backup",
    epilog=examples(CREATE[0], LIST[0], VERIFY[0], "yatt restore /backups/yatt --home /data/runs"),
    no_args_is_help=True,
    help="Back up the ledger and the files of all runs, while they go on.",
)


@app.command(epilog=examples(*CREATE))
def create(
    to: ToArgument,
    with_tokens: Annotated[
        bool, typer.Option("--with-tokens", help="Include the digests of tokens: they are valid in the restored home.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Back up the home: the ledger as of one moment, and every file that its rows need to resume and audit.

    Runs go on meanwhile. Only what the folder lacks is copied. Exit code 1 if the home itself lacks something; the backup
    then has the rest.
    """
    from flows.backup.create import create_backup
    from flows.maintenance.settings import NAME
    from ops.people.settings_files import SETTINGS_FILES, TOKEN_FILES

    place = Home.locate(home)
    folder = backup_folder(to)
    settings = (*SETTINGS_FILES, *(TOKEN_FILES if with_tokens else ()), NAME)
    with opened_ledger(place) as ledger, progress_bar("copying") as progress:
        made = create_backup(home=place, ledger=ledger, folder=folder, settings=settings, progress=progress)
    manifest = made.manifest
    if output is Output.JSON:
        write_json(
            {"id": made.id, "folder": str(folder.folder), "at": manifest.at, "files": len(manifest.files)}
            | {"rows": sum(table.rows for table in manifest.tables.values()), "bytes": manifest.size}
            | {"added": made.added, "cuts": made.cuts, "lacking": dict(manifest.lacking)}
        )
    else:
        write(
            f"{made.id}: {many(len(manifest.files), 'file')}, {size(manifest.size)}, of which {size(made.added)} are new"
        )
    for name, why in manifest.lacking.items():
        message(f"not in the backup: {name}: {why}")
    if manifest.lacking:
        raise typer.Exit(ExitCode.FAILURE)


BACKUPS: Columns[Mapping[str, Any]] = (
    Column("id", lambda row: row["id"]),
    Column("made", lambda row: MomentCell(row.get("at"))),
    Column("home", lambda row: row.get("home", "damaged")),
    Column("runs", lambda row: row.get("runs"), number=True),
    Column("files", lambda row: row.get("files"), number=True),
    Column("size", lambda row: SizeCell(row.get("bytes")), number=True),
    Column("yatt", lambda row: row.get("yatt")),
    Column("lacking", lambda row: row.get("lacking"), number=True),
)


@app.command("list", epilog=examples(*LIST))
def list_backups(to: ToArgument, output: OutputOption = Output.TEXT) -> None:
    """List the backups of a folder, oldest first; exit code 1 if the manifest of one is damaged."""
    folder = backup_folder(to)
    rows = list[dict[str, Any]]()
    if not folder.folder.is_dir():
        raise ConfigurationError(f"{folder.folder}: there is no such folder; `yatt backup create {to}` makes one")
    for name in folder.ids():
        try:
            manifest = folder.read(name)
        except DataError as error:
            rows.append({"id": name, "error": str(error)})
            continue
        runs = manifest.tables["run"].rows
        facts: dict[str, Any] = {
            "at": manifest.at,
            "home": manifest.home,
            "runs": runs,
            "files": len(manifest.files),
        }
        more: dict[str, Any] = {"bytes": manifest.size, "yatt": manifest.yatt, "lacking": len(manifest.lacking)}
        rows.append({"id": name, **facts, **more})
    if output is Output.JSON:
        write_json({"folder": str(folder.folder), "backups": rows})
    else:
        write_list(BACKUPS, rows)
    damaged = [row["error"] for row in rows if "error" in row]
    for said in damaged:
        message(str(said))
    if damaged:
        raise typer.Exit(ExitCode.FAILURE)


@app.command(epilog=examples(*VERIFY))
def verify(to: ToArgument, backup: IdOption = None, output: OutputOption = Output.TEXT) -> None:
    """Read every byte of a backup and compare it with its digest; exit code 1 if something is missing or altered."""
    from flows.backup.verify import verify_backup

    folder = backup_folder(to)
    with progress_bar("verifying") as progress:
        found = verify_backup(folder, folder.find(backup), progress)
    if output is Output.JSON:
        write_json(asdict(found) | {"sound": found.sound})
    else:
        _print(found)
    if not found.sound:
        raise typer.Exit(ExitCode.FAILURE)


def _print(found: VerifiedBackup) -> None:
    for damage in found.damage:
        write(damage)
    for lacking in found.lacking:
        message(f"the home lacked this already when the backup was made: {lacking}")
    if found.sound:
        write(
            f"{found.id} is sound: {many(found.rows, 'row')} of {many(found.tables, 'table')}, {many(found.files, 'file')}"
        )
    else:
        write(f"{found.id} is not sound")


@app.command(epilog=examples(*PRUNE))
def prune(
    to: ToArgument,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Number of the newest backups to keep.")],
    output: OutputOption = Output.TEXT,
) -> None:
    """Delete all but the newest backups, and what only they need; waits for a backup that is being made."""
    from flows.backup.prune import prune_backups

    done = prune_backups(backup_folder(to), keep)
    if output is Output.JSON:
        write_json({"deleted": list(done.deleted), "freed": done.freed})
    else:
        write(f"{many(len(done.deleted), 'backup')} deleted, {size(done.freed)} freed")


def backup_folder(path: Path) -> BackupFolder:
    """Returns the folder of backups at a path."""
    from flows.backup.folder import BackupFolder

    return BackupFolder(path.resolve())


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Shows a progress bar, on terminals only."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    screen = console(to_stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal) as bars:
        task = bars.add_task(what, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)
