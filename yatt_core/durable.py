"""Durable files on a local disk: written, synced, renamed, and the folder synced, so that a crash shows all or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder (creations, renames) durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, each entry durable."""
    missing = [folder]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Makes the bytes of an already written file durable."""
    with path.open("rb+") as stream:
        os.fsync(stream.fileno())


def write_file(path: Path, data: bytes) -> None:
    """Publishes a file: whoever sees the name sees all the bytes, also after a crash."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Publishes a JSON file."""
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())
