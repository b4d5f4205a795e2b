"""Verifies a backup: every object of its tables and files, byte by byte, and what the home lacked when it was made.

Changes nothing. Produces what is missing or altered, by the name of the file or the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from db.portable.lines import DamagedRow, values_of
from flows.backup.folder import BackupFolder
from flows.backup.manifest import BackupManifest, StoredTable
from yatt_core.errors import DataError
from yatt_core.manifests import FileEntry

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class VerifiedBackup:
    """The result of a verification.

    damage: what is missing or altered in the backup.
    lacking: what the home lacked already when the backup was made, with the reason.
    """

    id: str
    tables: int
    rows: int
    files: int
    damage: tuple[str, ...]
    lacking: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """True if the backup has everything that its manifest names."""
        return not self.damage


def verify_backup(folder: BackupFolder, backup: str, progress: Progress = lambda *_: None) -> VerifiedBackup:
    """Verifies one backup.

    progress: called with the number of objects that are verified, and the total.
    """
    with folder.being_read():
        try:
            manifest = folder.read(backup)
        except DataError as error:
            return VerifiedBackup(id=backup, tables=0, rows=0, files=0, damage=(str(error),), lacking=())
        damage = list[str]()
        total = len(manifest.tables) + len(manifest.files)
        for number, found in enumerate(_damage(folder, manifest), start=1):
            damage += [found] if found else []
            progress(number, total)
    rows = sum(table.rows for table in manifest.tables.values())
    lacking = tuple(manifest.lacking.values())
    return VerifiedBackup(
        id=backup,
        tables=len(manifest.tables),
        rows=rows,
        files=len(manifest.files),
        damage=tuple(damage),
        lacking=lacking,
    )


def _damage(folder: BackupFolder, manifest: BackupManifest) -> Iterator[str]:
    """Yields what is wrong with each object, or nothing."""
    for name, table in manifest.tables.items():
        yield _damage_of_table(folder, name, table)
    intact = set[str]()
    for name, file in manifest.files.items():
        said = "" if file.sha256 in intact else _damage_of(folder, name, FileEntry(file.size, file.sha256))
        if not said:
            intact.add(file.sha256)
        yield said


def _damage_of(folder: BackupFolder, name: str, entry: FileEntry) -> str:
    try:
        for _ in folder.pieces(name, entry):
            pass
    except DataError as error:
        return str(error)
    return ""


def _damage_of_table(folder: BackupFolder, name: str, table: StoredTable) -> str:
    whole = _damage_of(folder, f"table {name}", FileEntry(table.size, table.sha256))
    if not whole:
        return ""
    try:
        for _ in rows_of(folder, name, table):
            pass
    except DataError:
        return whole
    except DamagedRow as error:
        return f"{error} ({folder.object_path(table.sha256)})"
    return whole


def rows_of(folder: BackupFolder, name: str, table: StoredTable) -> Iterator[list[object]]:
    """Yields the rows of a table. Raises `DataError` if it cannot be read, `DamagedRow` naming a row that was altered."""
    path = folder.object_path(table.sha256)
    try:
        with path.open("rb") as lines:
            yield from values_of(name, lines, table.rows)
    except OSError as error:
        raise DataError(f"table {name}: cannot be read ({path}): {error.strerror}") from error
