"""Restores a backup into an empty home: its files, then its rows, under any path and into either database.

Consumes a backup; every byte is compared with its digest. Produces a home in which nobody drives anything. Until the end
`restoring.json` marks the home, and every other command refuses it; an interrupted restoration goes on when it is repeated.

    1. the marker is written
    2. files are copied; those that are there already are compared, not copied again
    3. rows are loaded, migrated and settled in one transaction (`db.portable.load`)
    4. the marker says that the rows are loaded; the ledger opens; the marker is deleted
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from db.core.engine import database_url
from db.portable.cut import TableHead
from db.portable.load import Loading, finish, is_loaded, load
from db.portable.settle import BackupOrigin
from flows.backup.folder import BackupFolder
from flows.backup.manifest import BackupManifest, StoredFile
from flows.backup.tracker_copy import NAME, move_addresses
from flows.backup.verify import rows_of
from flows.run.home import RESTORING, Home
from yatt_core import durable
from yatt_core.digests import file_sha256, json_digest
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import FileEntry

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Marker:
    """An unfinished restoration.

    token: identifies it in the ledger.
    ledger: a digest of the ledger's address without its password.
    loaded: whether the ledger has the rows.
    """

    backup: str
    token: str
    ledger: str
    loaded: bool = False

    def write(self, home: Home) -> None:
        body = {"backup": self.backup, "token": self.token, "ledger": self.ledger, "loaded": self.loaded}
        durable.write_json(home.folder / RESTORING, body)


def restore_backup(
    folder: BackupFolder, backup: str, home: Home, address: str, progress: Progress = lambda *_: None
) -> BackupManifest:
    """Restores a backup; returns its manifest.

    address: of the ledger, which must be empty.
    progress: called with the number of files that are restored, and the total.

    Raises `ConfigurationError` if the home is not empty, `LedgerVersionError` if the ledger is not, or the backup is of a
    newer version, `DataError` and `DamagedRow` if the backup is damaged.
    """
    with folder.being_read():
        manifest = folder.read(backup)
        _check_objects(folder, manifest)
        marker = _begun(home, backup, address)
        loading = Loading(address, marker.token)
        if not marker.loaded:
            there = is_loaded(loading)
            _remove_partial(home)
            if not (home.folder / RESTORING).exists():
                durable.make_folder(home.folder)
                marker.write(home)
            _restore_files(folder, manifest, home, progress)
            if not there:
                origin = BackupOrigin(
                    backup=backup,
                    cut_at=manifest.at,
                    old_home=manifest.home,
                    new_home=str(home.folder),
                    tracked_at=manifest.tracked_at,
                )
                load(loading, manifest.revision, _tables(folder, manifest), origin)
            replace(marker, loaded=True).write(home)
        finish(loading)
        with durable.refusals(f"{home.folder / RESTORING}: cannot be deleted"):
            (home.folder / RESTORING).unlink()
        durable.sync_folder(home.folder)
    return manifest


def _check_objects(folder: BackupFolder, manifest: BackupManifest) -> None:
    """Raises `DataError` if an object is missing or has another size, before anything is written."""
    tables = {f"table {name}": FileEntry(table.size, table.sha256) for name, table in manifest.tables.items()}
    files = {name: FileEntry(file.size, file.sha256) for name, file in manifest.files.items()}
    for name, stored in {**tables, **files}.items():
        if not folder.has(stored):
            path = folder.object_path(stored.sha256)
            raise DataError(
                f"{name}: is missing from the backup, or has another size ({path}); `yatt backup verify {folder.folder}` lists "
                "all damage; restore another backup"
            )


def _begun(home: Home, backup: str, address: str) -> _Marker:
    """Returns the restoration that was interrupted, or a new one. Raises `ConfigurationError` if there is something else."""
    ledger = json_digest(database_url(address).set(password=None).render_as_string())
    path = home.folder / RESTORING
    if not path.exists():
        if home.folder.exists() and (not home.folder.is_dir() or _others(home)):
            raise ConfigurationError(
                f"{home.folder}: is not empty; a backup is restored into a new or empty folder only: choose another with --home"
            )
        return _Marker(backup, secrets.token_hex(8), ledger)
    try:
        marker = _Marker(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigurationError(
            f"{path}: cannot be read ({error}); delete {home.folder}, and restore again"
        ) from error
    for what, before, now in (("backup", marker.backup, backup), ("ledger", marker.ledger, ledger)):
        if before != now:
            named = f" {before}" if what == "backup" else ""
            raise ConfigurationError(
                f"{home.folder}: an interrupted restoration has begun with another {what}{named}; repeat it with that one, or "
                "delete the folder and choose an empty ledger"
            )
    return marker


def _others(home: Home) -> list[Path]:
    """Returns what is in a home folder besides a marker that was not complete when its writer was killed."""
    return [path for path in home.folder.iterdir() if not path.name.startswith(f".{RESTORING}.")]


def _remove_partial(home: Home) -> None:
    """Deletes the files that an interrupted restoration was writing."""
    with durable.refusals(f"{home.folder}: what an interrupted restoration has left cannot be deleted"):
        for path in list(home.folder.rglob(".*.tmp")):
            path.unlink()


def _restore_files(folder: BackupFolder, manifest: BackupManifest, home: Home, progress: Progress) -> None:
    for number, (name, file) in enumerate(manifest.files.items(), start=1):
        path = home.folder / name
        if not (path.is_file() and path.stat().st_size == file.size and file_sha256(path) == file.sha256):
            _restore_file(folder=folder, name=name, file=file, path=path, manifest=manifest, home=home)
        progress(number, len(manifest.files))


def _restore_file(
    folder: BackupFolder, name: str, file: StoredFile, path: Path, manifest: BackupManifest, home: Home
) -> None:
    durable.make_folder(path.parent)
    temporary = durable.temporary_name(path)
    try:
        with durable.refusals(f"{path}: cannot be written"):
            with temporary.open("wb") as stream:
                for piece in folder.pieces(name, FileEntry(file.size, file.sha256)):
                    stream.write(piece)
            if name == NAME and manifest.home != str(home.folder):
                move_addresses(temporary, Path(manifest.home), home.folder)
            temporary.chmod(file.mode)
            durable.sync_file(temporary)
            temporary.rename(path)
        durable.sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _tables(folder: BackupFolder, manifest: BackupManifest) -> Iterator[tuple[TableHead, Iterator[list[Any]]]]:
    """Yields each table with its rows, which are compared with the table's digest before any of them is used."""
    for name, table in manifest.tables.items():
        for _ in folder.pieces(f"table {name}", FileEntry(table.size, table.sha256)):
            pass
        yield TableHead(name, table.columns), rows_of(folder, name, table)
