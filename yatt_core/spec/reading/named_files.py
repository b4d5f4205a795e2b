"""Finds the files and folders that a spec names and that do not exist. Consumes a tree; produces mistakes."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yatt_core.spec.reading.documents import FILLED_IN_PATH, FREE_KEYS, HUB, names_file
from yatt_core.spec.reading.mistakes import Mistake


def missing_files(node: Any, place: tuple[str | int, ...] = ()) -> Iterator[Mistake]:
    """Yields a mistake for each path without a file or folder; patterns and the values of `options` are not looked at.

    place: the keys and list indexes that lead to the node.
    """
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in FREE_KEYS and not (node.get("kind") == HUB and key == FILLED_IN_PATH):
                yield from missing_files(value, (*place, key))
    elif isinstance(node, list):
        for index, item in enumerate(node):
            yield from missing_files(item, (*place, index))
    elif isinstance(node, str) and place and names_file((str(place[-1]),)):
        path = node.rpartition(":")[0] or node if place[-1] == "file" else node
        if _is_missing(path):
            yield Mistake(place, f"{path} does not exist")


def _is_missing(path: str) -> bool:
    """Returns False also for a path that cannot be examined; what reads it reports why."""
    try:
        return not glob.has_magic(path) and not Path(path).exists()
    except (OSError, ValueError):
        return False
