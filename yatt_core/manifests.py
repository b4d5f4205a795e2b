"""Folders identified by a manifest: the files with their sizes and sha256, and `manifest.json`, written last.

A folder without a manifest is unfinished work. Contents are checked before they are used: first the manifest
against the digest in the ledger, then each file against the manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from yatt_core import durable
from yatt_core.digests import file_sha256
from yatt_core.errors import DataError

MANIFEST = "manifest.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file's entry in a manifest.

    size: size of the file in bytes.
    """

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A loaded manifest: its fields, the files it names, and its own sha256."""

    fields: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    sha256: str


def entry_of_bytes(data: bytes) -> FileEntry:
    """Returns the entry of a file with these bytes."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def entry_of_file(path: Path) -> FileEntry:
    """Returns the entry of a file on disk."""
    return FileEntry(path.stat().st_size, file_sha256(path))


def publish_manifest(folder: Path, kind: str, fields: Mapping[str, Any], files: Mapping[str, FileEntry]) -> str:
    """Writes the manifest durably and returns its sha256.

    The bytes of the files in its folder must already be durable; their names become so with the manifest's.
    """
    named = {name: asdict(entry) for name, entry in files.items()}
    document = {**fields, "kind": kind, "format": FORMAT, "files": named}
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    durable.write_file(folder / MANIFEST, text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def load_manifest(folder: Path, kind: str, sha256: str | None = None) -> Manifest:
    """Reads a folder's manifest.

    sha256: the expected sha256, if known.

    Raises `DataError` if the manifest is missing, differs from its sha256, or is not a manifest of this kind
    and format.
    """
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(data).hexdigest()
    if sha256 is not None and digest != sha256:
        raise DataError(f"{path}: sha256 is {digest}, expected {sha256}")
    try:
        document = json.loads(data)
        found = (document.pop("kind"), document.pop("format"))
        files = {str(name): FileEntry(**entry) for name, entry in document.pop("files").items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not a manifest: {error!r}") from error
    if found != (kind, FORMAT):
        raise DataError(f"{path}: kind and format are {found}, expected {(kind, FORMAT)}")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path}: names {name!r}, which is outside its folder")
    return Manifest(document, files, digest)


def read_file(folder: Path, name: str, entry: FileEntry) -> bytes:
    """Returns a file's bytes after verifying them, so that callers parse exactly what was hashed.

    Raises `DataError`, which names the file.
    """
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    _compare(path, entry_of_bytes(data), entry)
    return data


def verify_files(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Verifies size and sha256 of every file. Raises `DataError`, which names the first file that differs."""
    for name in sorted(files):
        path = folder / name
        try:
            found = entry_of_file(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        _compare(path, found, files[name])


def require_size(path: Path, entry: FileEntry) -> None:
    """Raises `DataError` unless a file exists and has the size that its manifest says."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    _compare(path, FileEntry(size, entry.sha256), entry)


def _compare(path: Path, found: FileEntry, expected: FileEntry) -> None:
    if found.size != expected.size:
        raise DataError(f"{path}: has {found.size} bytes, its manifest says {expected.size}")
    if found.sha256 != expected.sha256:
        raise DataError(f"{path}: sha256 is {found.sha256}, its manifest says {expected.sha256}")
