"""Names that no file can have, so that they are a mistake of whoever gives them, and not a fault of the disk."""

from __future__ import annotations

import os

LONGEST_PART = 255
LONGEST = 4_095
"""Bytes of a part of a path between two slashes, and of all of it, on the file systems of Linux."""


def nameable(path: str) -> str:
    """Returns a path. Raises `ValueError` if no file can have it."""
    whole = os.fsencode(path)
    longest = max(map(len, whole.split(b"/")))
    if longest > LONGEST_PART or len(whole) > LONGEST:
        raise ValueError(
            f"a name of {max(longest, len(whole))} bytes; expected at most {LONGEST_PART} between two slashes, {LONGEST} in all"
        )
    if b"\0" in whole:
        raise ValueError("a name with a NUL character")
    return path
