"""Durable files on a local disk: written, synced, renamed, and the folder synced, so that a crash shows all or nothing.

Names that begin with a dot are in the making or on their way out: whoever finds one after a crash may delete it. A disk that
refuses is an `InfrastructureError`, a full one (or a spent quota) a `StorageFullError`; what stood there before stays.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yatt_core.errors import InfrastructureError, StorageFullError

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def refusal(what: str, error: BaseException) -> InfrastructureError:
    """A disk's refusal as one of our errors; what: the path, and what could not be done to it."""
    if isinstance(error, OSError) and error.errno in FULL:
        return StorageFullError(f"{what}: {error.strerror}; make room")
    return InfrastructureError(f"{what}: {error.strerror or error if isinstance(error, OSError) else error}")


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Turns an `OSError` within into `refusal(what, ...)`."""
    try:
        yield
    except OSError as error:
        raise refusal(what, error) from error


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder (creations, renames) durable."""
    with refusals(f"{folder}: cannot be synced"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, each entry durable."""
    with refusals(f"{folder}: cannot be created"):
        missing = []
        while not folder.exists():
            missing.append(folder)
            folder = folder.parent
        if os.access(folder.parent, os.W_OK):
            # Whoever made the last one that exists may have been killed before its entry was durable.
            sync_folder(folder.parent)
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)


def claim_folder(folder: Path) -> bool:
    """Creates a folder that nobody else has, its entry durable; False where somebody was first."""
    make_folder(folder.parent)
    with refusals(f"{folder}: cannot be created"):
        try:
            folder.mkdir()
        except FileExistsError:
            return False
    sync_folder(folder.parent)
    return True


def sync_file(path: Path) -> None:
    """Makes the bytes of an already written file durable."""
    with refusals(f"{path}: cannot be synced"), path.open("rb+") as stream:
        os.fsync(stream.fileno())


def temporary_name(path: Path) -> Path:
    """A name beside a file to make it under. No other writer has it: on a shared disk, others may have the same process id."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_file(path: Path, data: bytes) -> None:
    """Publishes a file: whoever sees the name sees all the bytes, also after a crash.

    Raises `InfrastructureError` when the disk refuses; nothing half-written is then left behind.
    """
    temporary = temporary_name(path)
    try:
        with refusals(f"{path}: {len(data)} bytes cannot be written"):
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.rename(path)
        sync_folder(path.parent)
    except InfrastructureError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Publishes a JSON file."""
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def move_folder(source: Path, target: Path) -> None:
    """Publishes a folder whose contents are durable under its final name, which must be free, on the same disk."""
    with refusals(f"{target}: cannot be put in place"):
        source.rename(target)
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Deletes a folder: whoever still sees the name sees all of it, also after a crash."""
    trash = folder.with_name(f".{folder.name.lstrip('.')}.{os.getpid()}.trash")
    shutil.rmtree(trash, ignore_errors=True)
    move_folder(folder, trash)
    with refusals(f"{trash}: cannot be deleted"):
        shutil.rmtree(trash)
