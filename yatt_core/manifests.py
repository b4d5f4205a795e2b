"""Folders that exist by their manifest: files with size and sha256, `manifest.json` written last.

A folder without a manifest is unfinished work. What a manifest names is checked before it is used: first the manifest against
the digest that the ledger keeps, then each file against the manifest.
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
    """A file as its manifest names it; size in bytes."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """A manifest that was read: what it says, the files it names, and its own sha256."""

    fields: Mapping[str, Any]
    files: Mapping[str, FileEntry]
    sha256: str


def entry_of_bytes(data: bytes) -> FileEntry:
    """Entry of a file with these bytes."""
    return FileEntry(len(data), hashlib.sha256(data).hexdigest())


def entry_of_file(path: Path) -> FileEntry:
    """Entry of a file as it stands on disk."""
    return FileEntry(path.stat().st_size, file_sha256(path))


def publish_manifest(folder: Path, kind: str, fields: Mapping[str, Any], files: Mapping[str, FileEntry]) -> str:
    """Writes the manifest durably and returns its sha256; the files have to be durable already."""
    named = {name: asdict(entry) for name, entry in files.items()}
    document = {**fields, "kind": kind, "format": FORMAT, "files": named}
    text = json.dumps(document, indent=1, sort_keys=True, allow_nan=False) + "\n"
    durable.write_file(folder / MANIFEST, text.encode())
    return hashlib.sha256(text.encode()).hexdigest()


def load_manifest(folder: Path, kind: str, sha256: str | None = None) -> Manifest:
    """Reads a folder's manifest; sha256: what it has to have, where that is known.

    Raises `DataError` when it is missing, differs from its sha256, or is not a manifest of this kind and format.
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
        raise DataError(f"{path}: is no manifest: {error!r}") from error
    if found != (kind, FORMAT):
        raise DataError(f"{path}: is a manifest of kind and format {found}, expected {(kind, FORMAT)}")
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise DataError(f"{path}: names {name!r}, which lies outside its folder")
    return Manifest(document, files, digest)


def read_file(folder: Path, name: str, entry: FileEntry) -> bytes:
    """A file's bytes, checked: what is parsed is what was hashed. Raises `DataError` naming the file."""
    path = folder / name
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from error
    _compare(path, entry_of_bytes(data), entry)
    return data


def verify_files(folder: Path, files: Mapping[str, FileEntry]) -> None:
    """Compares size and sha256 of every file. Raises `DataError` naming the first that differs."""
    for name in sorted(files):
        path = folder / name
        try:
            found = entry_of_file(path)
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from error
        _compare(path, found, files[name])


def _compare(path: Path, found: FileEntry, expected: FileEntry) -> None:
    if found.size != expected.size:
        raise DataError(f"{path}: has {found.size} bytes, its manifest says {expected.size}")
    if found.sha256 != expected.sha256:
        raise DataError(f"{path}: sha256 is {found.sha256}, its manifest says {expected.sha256}")
