"""A folder of backups: objects named by their sha256, which backups share, and a manifest for each backup.

    backups/20260921T141320250Z-0123456789ab.json
    objects/01/0123...

Consumes files and lines; produces objects, each written whole or not at all. What a killed backup leaves is used by the
next one, and is not visible as a backup.
"""

from __future__ import annotations

import fcntl
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from flows.backup.manifest import BackupManifest, id_of, read_text
from yatt_core import durable
from yatt_core.errors import ConfigurationError, DataError
from yatt_core.manifests import FileEntry

ID = re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{12}")
PIECE = 1 << 20
LOCK = ".lock"


@dataclass(frozen=True, slots=True)
class Added:
    """An object that was added.

    new: its bytes if it is new; 0 if there was one with the same contents.
    """

    entry: FileEntry
    new: int


class BackupFolder:
    """The backups of a folder, which is made with the first one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._objects = folder / "objects"
        self._backups = folder / "backups"

    @contextmanager
    def in_use(self, alone: bool = False) -> Iterator[None]:
        """Locks the folder: shared while a backup is made, exclusive while objects are deleted.

        alone: waits until nobody else uses the folder.
        """
        durable.make_folder(self.folder)
        with _locked(self.folder / LOCK, "a", fcntl.LOCK_EX if alone else fcntl.LOCK_SH):
            yield

    @contextmanager
    def being_read(self) -> Iterator[None]:
        """Keeps objects from being deleted while a backup is read; writes nothing, since the disk may be read-only."""
        path = self.folder / LOCK
        if not path.exists():  # a copy of the folder, in which nobody deletes
            yield
            return
        with _locked(path, "rb", fcntl.LOCK_SH):
            yield

    def ids(self) -> list[str]:
        """Returns the backups, oldest first."""
        found = [path.stem for path in self._backups.glob("*.json")] if self._backups.is_dir() else []
        return sorted(name for name in found if ID.fullmatch(name))

    def find(self, backup: str | None) -> str:
        """Returns the id of a backup given by its id or the beginning of it; by default the newest.

        Raises `ConfigurationError` if there is none, or several.
        """
        known = self.ids()
        if self.folder.is_file():
            raise ConfigurationError(f"{self.folder}: is a file; expected the folder of the backups")
        if not known:
            raise ConfigurationError(
                f"{self.folder}: there are no backups here; `yatt backup create {self.folder}` makes one"
            )
        if backup is None:
            return known[-1]
        meant = [name for name in known if name.startswith(backup)]
        if len(meant) != 1:
            said = "several backups begin so" if meant else "there is no such backup"
            raise ConfigurationError(f"--id {backup!r:.60}: {said}; {self.folder} has {', '.join(known[-5:])}")
        return meant[0]

    def manifest_path(self, backup: str) -> Path:
        """Returns the file of a backup's manifest."""
        return self._backups / f"{backup}.json"

    def read(self, backup: str) -> BackupManifest:
        """Returns a backup's manifest. Raises `DataError` if it was altered or cannot be read."""
        path = self.manifest_path(backup)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        return read_text(text, backup, str(path))

    def publish(self, manifest: BackupManifest) -> str:
        """Writes the manifest, with which the backup exists; returns its id."""
        backup = id_of(manifest)
        durable.make_folder(self._backups)
        durable.write_file(self.manifest_path(backup), manifest.text())
        return backup

    def remove(self, backup: str) -> None:
        """Deletes a backup's manifest; its objects stay until `sweep`."""
        path = self.manifest_path(backup)
        with durable.refusals(f"{path}: cannot be deleted"):
            path.unlink(missing_ok=True)
        durable.sync_folder(self._backups)

    def object_path(self, sha256: str) -> Path:
        """Returns the file of an object."""
        return self._objects / sha256[:2] / sha256

    def scratch(self) -> Path:
        """Returns a folder on the same disk for files that become objects; `sweep` removes what is left there."""
        durable.make_folder(self._objects)
        return self._objects

    def has(self, entry: FileEntry) -> bool:
        """Returns True if there is an object of this digest and size; its bytes are not read."""
        path = self.object_path(entry.sha256)
        return path.is_file() and path.stat().st_size == entry.size

    def add_file(self, source: Path) -> Added:
        """Copies a file, unless there is an object with its contents. Raises `DataError` if it cannot be read."""
        try:
            with source.open("rb") as stream:
                return self.add(iter(lambda: stream.read(PIECE), b""))
        except OSError as error:
            raise DataError(f"{source}: cannot be read: {error.strerror}") from error

    def add(self, pieces: Iterable[bytes]) -> Added:
        """Writes an object. Errors of reading the pieces are passed on; those of this disk are `InfrastructureError`."""
        durable.make_folder(self._objects)
        temporary = durable.temporary_name(self._objects / "object")
        digest = hashlib.sha256()
        size = 0
        try:
            with _opened(temporary) as stream:
                for piece in pieces:
                    digest.update(piece)
                    size += len(piece)
                    with durable.refusals(f"{temporary}: cannot be written"):
                        stream.write(piece)
            entry = FileEntry(size, digest.hexdigest())
            if self.has(entry):
                return Added(entry, 0)
            durable.sync_file(temporary)
            self._move(temporary, self.object_path(entry.sha256))
            return Added(entry, size)
        finally:
            temporary.unlink(missing_ok=True)

    def _move(self, temporary: Path, path: Path) -> None:
        durable.make_folder(path.parent)
        with durable.refusals(f"{path}: cannot be moved into place"):
            temporary.rename(path)
        durable.sync_folder(path.parent)

    def pieces(self, name: str, entry: FileEntry) -> Iterator[bytes]:
        """Yields an object's bytes, and compares size and digest once all are read.

        name: what the object is, for messages.

        Raises `DataError`, which names it.
        """
        path = self.object_path(entry.sha256)
        digest = hashlib.sha256()
        size = 0
        try:
            with path.open("rb") as stream:
                while piece := stream.read(PIECE):
                    digest.update(piece)
                    size += len(piece)
                    yield piece
        except FileNotFoundError as error:
            raise DataError(f"{name}: is missing from the backup ({path})") from error
        except OSError as error:
            raise DataError(f"{name}: cannot be read ({path}): {error.strerror}") from error
        if size != entry.size:
            raise DataError(f"{name}: was altered in the backup ({path}): it has {size} bytes, expected {entry.size}")
        if digest.hexdigest() != entry.sha256:
            raise DataError(f"{name}: was altered in the backup ({path}): its sha256 is {digest.hexdigest()}")

    def sweep(self, keep: Iterable[str]) -> int:
        """Deletes all objects but those to be kept, and what killed backups left; returns the bytes.

        keep: their sha256. The caller must be alone (`in_use`).
        """
        kept = set(keep)
        freed = 0
        with durable.refusals(f"{self._objects}: cannot be swept"):
            for path in sorted(self._objects.rglob("*"), reverse=True):  # what is in a folder comes before it
                if path.is_dir():
                    if path.name.startswith("."):
                        path.rmdir()
                elif path.name not in kept:
                    freed += path.stat().st_size
                    path.unlink()
        return freed


@contextmanager
def _locked(path: Path, mode: str, operation: int) -> Iterator[None]:
    with durable.refusals(f"{path}: cannot be locked"):
        lock = path.open(mode)
    with lock:
        with durable.refusals(f"{path}: cannot be locked"):
            fcntl.flock(lock, operation)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with durable.refusals(f"{path}: cannot be created"):
        stream = path.open("wb")
    try:
        yield stream
    finally:
        with durable.refusals(f"{path}: cannot be written"):
            stream.close()
