"""The manifest of a backup: its tables and files, each with its digest. A backup exists once its manifest does.

    {"kind": "backup", "format": 1, "at": 1790000000000, "yatt": "0.1.0", "revision": "0005", "home": "/data/runs",
     "tracked_at": null, "tables": {"run": {"columns": {"id": "text", ...}, "rows": 3, "size": 900, "sha256": "..."}, ...},
     "files": {"toy-1/inputs/manifest.json": {"size": 900, "sha256": "...", "mode": 420}, ...}, "lacking": {}}

A backup's id is the time of its cut, to the millisecond so that ids are in order, and the first digits of the sha256 of its
manifest, so that an altered manifest is noticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath

from yatt_core.errors import DataError
from yatt_core.manifests import FileEntry

KIND = "backup"
FORMAT = 1
DIGITS = 12


@dataclass(frozen=True, slots=True)
class StoredTable:
    """A table's rows, as an object of the backup.

    columns: the kind of each column, in order.
    """

    columns: Mapping[str, str]
    rows: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, as an object of the backup.

    mode: its permissions.
    """

    size: int
    sha256: str
    mode: int


@dataclass(frozen=True, slots=True)
class BackupManifest:
    """What a backup contains.

    at: the moment of the cut by the database's clock, milliseconds since 1970.
    yatt: the version that wrote it.
    revision: the migration that its rows are at.
    home: absolute path of the home folder that was backed up.
    tracked_at: the moment of the copy of MLflow's store, milliseconds since 1970; None if there is no copy.
    tables: in the order in which they are loaded.
    files: by their path relative to the home folder.
    lacking: what the rows name, but the home did not have intact, with the reason.
    """

    at: int
    yatt: str
    revision: str
    home: str
    tracked_at: int | None
    tables: Mapping[str, StoredTable]
    files: Mapping[str, StoredFile]
    lacking: Mapping[str, str] = field(default_factory=dict)

    @property
    def objects(self) -> list[FileEntry]:
        """The objects of all tables and files."""
        tables = [FileEntry(each.size, each.sha256) for each in self.tables.values()]
        return tables + [FileEntry(each.size, each.sha256) for each in self.files.values()]

    @property
    def size(self) -> int:
        """The bytes of all tables and files."""
        return sum(each.size for each in self.objects)

    def text(self) -> bytes:
        """Returns the manifest's bytes."""
        document = {"kind": KIND, "format": FORMAT, **asdict(self)}
        return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def id_of(manifest: BackupManifest) -> str:
    """Returns the id of the backup that has this manifest."""
    moment = datetime.fromtimestamp(manifest.at / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{manifest.at % 1000:03d}Z-{hashlib.sha256(manifest.text()).hexdigest()[:DIGITS]}"


def read_text(text: bytes, backup: str, place: str) -> BackupManifest:
    """Reads the manifest of a backup.

    place: where it is, for messages.

    Raises `DataError` if it was altered, is not a manifest, or names files outside the home.
    """
    if hashlib.sha256(text).hexdigest()[:DIGITS] != backup.rpartition("-")[2]:
        raise DataError(f"{place}: was altered: its sha256 does not begin as its name ends")
    try:
        document = json.loads(text)
        found = (document.pop("kind"), document.pop("format"))
        if found != (KIND, FORMAT):
            raise DataError(f"{place}: kind and format are {found}, expected {(KIND, FORMAT)}")
        tables = {name: StoredTable(**entry) for name, entry in document.pop("tables").items()}
        files = {name: StoredFile(**entry) for name, entry in document.pop("files").items()}
        manifest = BackupManifest(tables=tables, files=files, **document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{place}: not a backup's manifest: {error!r}") from error
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{place}: names {name!r}, which is outside the home folder")
    return manifest
