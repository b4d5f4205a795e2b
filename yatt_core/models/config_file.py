"""A model folder's config.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yatt_core.errors import ConfigurationError
from yatt_core.regular_files import read_object

CONFIG = "config.json"


def read_config(folder: Path) -> dict[str, Any]:
    """Returns the model's config.json. Raises `ConfigurationError` if it cannot be read."""
    path = folder / CONFIG
    try:
        is_there = path.is_file()
    except OSError as error:
        raise ConfigurationError(f"model.path: {folder} cannot be read: {error.strerror}") from None
    if not is_there:
        raise ConfigurationError(f"model.path: {folder} has no {CONFIG}")
    return read_object(path, "model.path")
