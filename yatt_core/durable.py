"""Durable files on a local disk: written, synced, renamed, and the folder synced, so a crash leaves all or nothing.

Files and folders whose names begin with a dot are being written or deleted; a process that finds one after a crash
may delete it. A disk error raises an `InfrastructureError`, a full disk or exhausted quota a `StorageFullError`;
existing contents are then kept.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from yatt_core.errors import InfrastructureError, StorageFullError
from yatt_core.spent_time import DATA, spent

TRASH = ".trash"
"""Ending of the name of a folder that is being deleted."""
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def refusal(what: str, error: BaseException) -> InfrastructureError:
    """Returns the YATT error for a disk error.

    what: the path and the operation that failed.
    """
    if isinstance(error, OSError) and error.errno in FULL:
        return StorageFullError(f"{what}: {error.strerror}; free some space")
    return InfrastructureError(f"{what}: {error.strerror or error if isinstance(error, OSError) else error}")


@contextmanager
def refusals(what: str) -> Iterator[None]:
    """Converts an `OSError` raised inside into `refusal(what, ...)`."""
    try:
        yield
    except OSError as error:
        raise refusal(what, error) from error


def sync_folder(folder: Path) -> None:
    """Makes the entries of a folder (creations, renames) durable."""
    with refusals(f"{folder}: cannot be synced"):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with spent(DATA, "fsync"):
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
            # The process that created the last existing folder may have been killed before its entry was durable.
            sync_folder(folder.parent)
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            sync_folder(path.parent)


def claim_folder(folder: Path) -> bool:
    """Creates a folder for exclusive use, its entry durable; returns False if it already exists."""
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
    with refusals(f"{path}: cannot be synced"), path.open("rb+") as stream, spent(DATA, "fsync"):
        os.fsync(stream.fileno())


def temporary_name(path: Path) -> Path:
    """Returns a name for a temporary file next to a file.

    No other writer has the name: on a shared disk, processes on other hosts may have the same process id.
    """
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def write_file(path: Path, data: bytes, named: bool = True) -> None:
    """Publishes a file: whenever its name is visible, even after a crash, the file is complete.

    named: whether its name is durable when this returns. If not, it is with that of the next file in the folder, on which
        whoever looks for this one must depend.

    Raises `InfrastructureError` if the disk fails; nothing half-written is left.
    """
    temporary = temporary_name(path)
    try:
        with refusals(f"{path}: {len(data)} bytes cannot be written"):
            with temporary.open("wb") as stream:
                stream.write(data)
                stream.flush()
                with spent(DATA, "fsync"):
                    os.fsync(stream.fileno())
            temporary.rename(path)
        if named:
            sync_folder(path.parent)
    except InfrastructureError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Publishes a JSON file."""
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode())


def move_folder(source: Path, target: Path) -> None:
    """Publishes a folder with durable contents under its final name, which must be free and on the same disk."""
    with refusals(f"{target}: cannot be moved into place"):
        source.rename(target)
    sync_folder(target.parent)


def remove_folder(folder: Path) -> None:
    """Deletes a folder: as long as its name is visible, even after a crash, the folder is complete."""
    trash = folder.with_name(f".{folder.name.lstrip('.')}.{os.getpid()}{TRASH}")
    shutil.rmtree(trash, ignore_errors=True)
    move_folder(folder, trash)
    with refusals(f"{trash}: cannot be deleted"):
        shutil.rmtree(trash)


def remove_whole_folder(folder: Path) -> bool:
    """Deletes a folder, and what killed processes have left of it while they deleted it; returns False if it is gone.

    No other process may be deleting the folder.
    """
    present = folder.exists()
    if present:
        remove_folder(folder)
    name = re.compile(rf"\.{re.escape(folder.name.lstrip('.'))}\.\d+{re.escape(TRASH)}")
    if not folder.parent.is_dir():
        return False
    with refusals(f"{folder.parent}: the remains of {folder.name} cannot be deleted"):
        for path in list(folder.parent.iterdir()):
            if name.fullmatch(path.name):
                shutil.rmtree(path)
    return present
