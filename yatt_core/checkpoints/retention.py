"""Which checkpoints are kept, and how the others are deleted.

The choice is a pure function of what the ledger names. The caller first removes the other checkpoints from the
ledger and then deletes them, so that a crash in between leaves only a folder without a ledger row, which the next sweep
removes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Iterable
from pathlib import Path

from yatt_core import durable
from yatt_core.keys import CHECKPOINT_NAME, CHECKPOINTS
from yatt_core.manifests import MANIFEST
from yatt_core.storage.fetching import FETCHED, fetching

_HIDDEN = re.compile(rf"\.({CHECKPOINT_NAME})\..+")


def checkpoints_to_keep(iterations: Iterable[int], keep: int) -> frozenset[int]:
    """Returns the iterations whose checkpoints are kept: the newest `keep`, and iteration 0.

    iterations: the iterations that have checkpoints on the current branch or, up to the point of branching, on
        its ancestors.
    """
    newest = sorted(set(iterations), reverse=True)
    return frozenset(i for place, i in enumerate(newest) if place < keep or i == 0)


def delete_checkpoint(run_folder: Path, folder: str) -> None:
    """Deletes a checkpoint that the ledger no longer names, without ever exposing a partial one.

    Does nothing if it is already gone.
    """
    if (run_folder / folder).exists():
        durable.remove_folder(run_folder / folder)


def sweep_checkpoints(run_folder: Path, keep_folders: Collection[str], in_flight: bool = False) -> list[str]:
    """Deletes all checkpoints, complete or partial, except those to be kept; returns the deleted folders.

    The caller must be a driver that holds the lease.

    keep_folders: the folders that the ledger names.
    in_flight: a checkpoint is being published, so partial ones are kept.
    """
    kept = {Path(folder).name for folder in keep_folders}
    removed = []
    for path in sorted((run_folder / CHECKPOINTS).iterdir()) if (run_folder / CHECKPOINTS).exists() else []:
        if _HIDDEN.fullmatch(path.name):
            gone = (path.suffix == ".trash" or not in_flight) and _sweep_hidden(run_folder, path)
        else:
            # Without a manifest, a folder holds files of ranks that send them to the durable tier.
            gone = path.name not in kept and not (in_flight and not (path / MANIFEST).exists())
            if gone:
                delete_checkpoint(run_folder, str(CHECKPOINTS / path.name))
        if gone:
            removed.append(str(CHECKPOINTS / path.name))
    return removed


def _sweep_hidden(run_folder: Path, path: Path) -> bool:
    """Deletes a hidden folder unless it is being fetched; returns True if it was deleted."""
    if path.suffix == FETCHED:
        with fetching(run_folder, wait=False) as alone:
            if alone:
                shutil.rmtree(path, ignore_errors=True)
            return alone
    # The folder's publisher may be deleting it at the same time.
    shutil.rmtree(path, ignore_errors=True)
    return True
