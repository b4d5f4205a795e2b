"""Fetches from the durable tier what the disk of this node lacks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from yatt_core.manifests import MANIFEST
from yatt_core.spent_time import DATA, spent
from yatt_core.storage.run_store import RunStore


class Recorded(Protocol):
    """A folder as the ledger, or a task, names it."""

    @property
    def folder(self) -> str:
        """The folder, relative to the run folder."""
        ...

    @property
    def manifest_sha256(self) -> str:
        """The expected sha256 of its manifest."""
        ...


@spent(DATA, "fetch")
def fetch_lacking(store: RunStore, run_folder: Path, recorded: Iterable[Recorded]) -> None:
    """Fetches recorded folders that the run's folder lacks or of which it has a part; does not check those that it has.

    Processes of a node that call it together fetch each folder once.
    """
    for each in recorded:
        if not (run_folder / each.folder / MANIFEST).exists():
            store.fetch(each.folder, each.manifest_sha256)
