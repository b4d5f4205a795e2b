"""Marks bytes that arrive from the object store as progress, so that a deadline does not depend on how many there are.

Imports fsspec, which the extra `s3` installs.
"""

from __future__ import annotations

from typing import Any

from fsspec import Callback

from yatt_core.progress import advanced


class ArrivingBytes(Callback):  # type: ignore[misc]
    """Passed to a transfer, which reports to it."""

    def relative_update(self, inc: int = 1) -> None:
        """Marks a piece that has arrived, however large it is."""
        advanced()

    def branched(self, path_1: str, path_2: str, **_: Any) -> Callback:
        """Returns what the transfer of one of several files reports to."""
        return self
