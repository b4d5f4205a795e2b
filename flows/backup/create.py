"""Makes a backup of a home while its runs go on.

    1. MLflow's store is copied, if it is in the home: rows delivered after that are sent again once they are restored
    2. the ledger's rows are written as of one moment, in one transaction
    3. the files that these rows need are copied; objects that the folder has already are not
    4. the manifest is written: the backup exists

Between 2 and 3 a driver may delete a checkpoint or experience that the cut still names, for a newer one: retention knows
nothing of backups, and must not wait for one. The backup then takes a fresh cut, which no longer names what was deleted and
needs little more than what was copied already. What two cuts in a row name, and the home lacks in both, was not deleted by
retention: it is damage of the home, which the backup records and names. A driver would have to delete something
between each of `CUTS` cuts and its copies for the backup to give up.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from db.ledger import Ledger
from db.portable.cut import Cut
from flows.backup.folder import BackupFolder
from flows.backup.manifest import BackupManifest, StoredFile, StoredTable
from flows.backup.needs import BackupNeeds, SealedFolder, needs_of, other_files, sealed_files
from flows.backup.tracker_copy import NAME, artifact_files, copy_database, tracked_database
from flows.files.storage import store_of
from flows.run.home import Home
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.manifests import FileEntry

log = logging.getLogger("yatt_core.flow")
CUTS = 5
MODE = 0o777
Progress = Callable[[int, int], None]
"""Called with the number of folders that are copied, and the total."""


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """A backup that was made.

    added: bytes of new objects.
    cuts: how many cuts it took.
    """

    id: str
    manifest: BackupManifest
    added: int
    cuts: int


@dataclass
class _Copies:
    """The files of the home that are copied so far, by path."""

    home: Home
    folder: BackupFolder
    files: dict[str, StoredFile] = field(default_factory=dict)
    added: int = 0

    def copy(self, name: str, sha256: str | None = None) -> None:
        """Copies a file. Raises `DataError` if it cannot be read, or has another sha256 than expected."""
        source = self.home.folder / name
        try:
            state = source.stat()
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror}") from error
        entry = FileEntry(state.st_size, sha256) if sha256 else None
        if entry is None or not self.folder.has(entry):
            entry = self._added(source, sha256)
        self.files[name] = StoredFile(entry.size, entry.sha256, state.st_mode & MODE)

    def _added(self, source: Path, sha256: str | None) -> FileEntry:
        added = self.folder.add_file(source)
        if sha256 not in (None, added.entry.sha256):
            raise DataError(f"{source}: sha256 is {added.entry.sha256}, expected {sha256}")
        self.added += added.new
        return added.entry


def create_backup(
    home: Home,
    ledger: Ledger,
    folder: BackupFolder,
    settings: Sequence[str] = (),
    progress: Progress = lambda *_: None,
) -> MadeBackup:
    """Makes a backup of a home.

    settings: names of further files in the home folder that belong to it.

    Raises `ConfigurationError` if the folder is in the home, `InfrastructureError` if a disk or the object store fails, or
    files are deleted faster than they are copied.
    """
    if folder.folder == home.folder or home.folder in folder.folder.parents:
        raise ConfigurationError(
            f"{folder.folder}: is in the home folder {home.folder}; choose a folder on another disk"
        )
    with folder.in_use():
        copies = _Copies(home, folder)
        tracked_at = _copy_tracker(ledger, copies)
        tracked = dict(copies.files)
        lacked = dict[str, str]()
        for cuts in range(1, CUTS + 1):
            with ledger.exports.cut() as cut:
                tables = _tables(cut, copies)
                needs = needs_of(cut)
                at = cut.at
                revision = cut.revision
            copies.files = dict(tracked)
            lacking = _copy_files(ledger=ledger, copies=copies, needs=needs, settings=settings, progress=progress)
            if lacking.keys() <= lacked.keys():
                files = dict(sorted(copies.files.items()))
                place = str(home.folder)
                manifest = BackupManifest(
                    at=at,
                    yatt=version("yatt"),
                    revision=revision,
                    home=place,
                    tracked_at=tracked_at,
                    tables=tables,
                    files=files,
                    lacking=lacking,
                )
                return MadeBackup(folder.publish(manifest), manifest, copies.added, cuts)
            log.info("taking a fresh cut: %s", next(iter(lacking.values())))
            lacked = lacking
    raise InfrastructureError(
        f"{home.folder}: files were deleted faster than they were copied, {CUTS} times in a row: {next(iter(lacked.values()))}; "
        "repeat the backup, which continues with what is copied"
    )


def _copy_tracker(ledger: Ledger, copies: _Copies) -> int | None:
    """Copies MLflow's store; returns the time before the copy, None if there is nothing to copy."""
    database = tracked_database(copies.home)
    if database is None:
        return None
    at = ledger.exports.now()
    with TemporaryDirectory(prefix=".mlflow-", dir=copies.folder.scratch()) as temporary:
        copy = Path(temporary) / NAME
        copy_database(database, copy)
        added = copies.folder.add_file(copy)
    copies.added += added.new
    copies.files[NAME] = StoredFile(added.entry.size, added.entry.sha256, database.stat().st_mode & MODE)
    _copy_present(copies, artifact_files(copies.home))
    return at


def _tables(cut: Cut, copies: _Copies) -> dict[str, StoredTable]:
    tables = {}
    for head, lines in cut.tables():
        counted = _Counted(lines)
        added = copies.folder.add(counted)
        copies.added += added.new
        tables[head.name] = StoredTable(dict(head.columns), counted.count, added.entry.size, added.entry.sha256)
    return tables


class _Counted:
    """Lines that are counted as they pass."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = lines
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._lines:
            self.count += 1
            yield line


def _copy_files(
    ledger: Ledger, copies: _Copies, needs: BackupNeeds, settings: Sequence[str], progress: Progress
) -> dict[str, str]:
    """Copies the files that a cut needs; returns the folders that are not intact, with the reason."""
    lacking = dict[str, str]()
    for number, sealed in enumerate(needs.sealed, start=1):
        try:
            _copy_sealed(ledger, copies, needs, sealed)
        except DataError as error:
            if not sealed.spare:
                lacking[sealed.name] = str(error)
        progress(number, len(needs.sealed))
    _copy_present(copies, other_files(copies.home, needs, settings))
    return lacking


def _copy_sealed(ledger: Ledger, copies: _Copies, needs: BackupNeeds, sealed: SealedFolder) -> None:
    """Copies a folder; one that the run's folder lacks, or has damaged, is fetched from the run's object store first."""
    try:
        _copy_folder(copies, sealed)
    except DataError:
        run_folder = copies.home.run_folder(sealed.run)
        if sealed.run not in needs.stores or sealed.spare:
            raise
        if not store_of(ledger, sealed.run, run_folder).fetch(sealed.folder, sealed.manifest_sha256):
            raise
        _copy_folder(copies, sealed)


def _copy_folder(copies: _Copies, sealed: SealedFolder) -> None:
    files = {f"{sealed.name}/{name}": sha256 for name, sha256 in sealed_files(copies.home, sealed).items()}
    try:
        for name, sha256 in files.items():
            copies.copy(name, sha256)
    except DataError:
        for name in files:
            copies.files.pop(name, None)
        raise


def _copy_present(copies: _Copies, names: Iterable[str]) -> None:
    """Copies optional files; leaves out one that was deleted meanwhile."""
    for name in names:
        try:
            copies.copy(name)
        except DataError as error:
            log.info("left out of the backup: %s", error)
