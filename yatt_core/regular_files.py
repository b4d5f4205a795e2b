"""Files that a user names: only regular ones, so that no read can block on a pipe or go on forever.

Consumes paths. Produces the object in a JSON file, or nothing for a check.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError


def check_regular(path: Path, key: str) -> None:
    """Raises `ConfigurationError` unless the path is a regular file.

    key: the spec key with which the message starts.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigurationError(f"{key}: {path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise ConfigurationError(f"{key}: {path} cannot be read: not a regular file")


def read_object(path: Path, key: str) -> dict[str, Any]:
    """Returns the object in a JSON file. Raises `ConfigurationError` if there is none.

    key: the spec key with which the message starts.
    """
    check_regular(path, key)
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{key}: {path} cannot be read as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{key}: {path} does not contain a JSON object")
    return value
