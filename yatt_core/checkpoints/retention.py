"""Which checkpoints stay, and how the others go.

The choice is a pure function of what the ledger names. The caller strikes the rest from the ledger first and deletes then, so
that a crash in between leaves a folder nobody names, which the next sweep removes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from yatt_core import durable
from yatt_core.keys import checkpoint_folder
from yatt_core.storage.fetching import FETCHED, fetching

_HIDDEN = re.compile(r"\.(b\d+-i\d+\.e\d+)\..+")


def checkpoints_to_keep(iterations: Iterable[int], keep: int) -> frozenset[int]:
    """Iterations whose checkpoints stay: the newest `keep`, and iteration 0.

    iterations: of the checkpoints of the current branch and, up to where it left them, of its ancestors.
    """
    newest = sorted(set(iterations), reverse=True)
    return frozenset(i for place, i in enumerate(newest) if place < keep or i == 0)


def delete_checkpoint(run_folder: Path, folder: str) -> None:
    """Deletes a checkpoint that the ledger no longer names; no half of it is ever seen. One that is gone already is no error."""
    if (run_folder / folder).exists():
        durable.remove_folder(run_folder / folder)


def sweep_checkpoints(run_folder: Path, keep_folders: Collection[str], in_flight: bool = False) -> list[str]:
    """Deletes every checkpoint, whole or half, that is not to be kept; returns the folders.

    keep_folders: what the ledger names. in_flight: somebody is publishing, so that the half ones stay. For a driver that
    holds the lease.
    """
    root = checkpoint_folder(0, 0, 0).parent
    kept = {Path(folder).name for folder in keep_folders}
    removed = []
    for path in sorted((run_folder / root).iterdir()) if (run_folder / root).exists() else []:
        if _HIDDEN.fullmatch(path.name):
            gone = (path.suffix == ".trash" or not in_flight) and _sweep_hidden(run_folder, path)
        else:
            gone = path.name not in kept
            if gone:
                delete_checkpoint(run_folder, str(root / path.name))
        if gone:
            removed.append(str(root / path.name))
    return removed


def _sweep_hidden(run_folder: Path, path: Path) -> bool:
    """Deletes it, unless somebody is just fetching it."""
    if path.suffix == FETCHED:
        with fetching(run_folder, wait=False) as alone:
            if alone:
                shutil.rmtree(path, ignore_errors=True)
            return alone
    # Its own publisher may be deleting it at the same time.
    shutil.rmtree(path, ignore_errors=True)
    return True
