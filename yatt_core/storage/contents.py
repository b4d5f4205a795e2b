"""What the files of a run's folder and their manifests say, as the durable tier needs it. Pure functions over paths and bytes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from yatt_core.digests import file_sha256
from yatt_core.errors import DataError
from yatt_core.keys import TERM

_TERM = re.compile(TERM + r"(\.\d+)?$")


def inode(path: Path) -> int | None:
    """Returns the number that tells a folder from another one of the same name; None if there is none."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def entries_of(manifest: bytes, place: str) -> dict[str, Any]:
    """Returns a manifest's files by name: entries with size and sha256, or for inputs only the sha256.

    Raises `DataError` if the bytes are not a manifest.
    """
    try:
        return dict(json.loads(manifest)["files"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{place}: is not a manifest: {error!r}") from error


def is_intact(path: Path, entry: Any) -> bool:
    """Returns True if a local file matches its manifest's entry; False without a size, as for inputs."""
    if not isinstance(entry, dict) or not path.is_file() or path.stat().st_size != entry["size"]:
        return False
    return file_sha256(path) == str(entry["sha256"])


def term_of(folder: str) -> int:
    """Returns the term in a folder's name; 0 if it has none."""
    match = _TERM.search(folder)
    return int(match[1]) if match else 0
