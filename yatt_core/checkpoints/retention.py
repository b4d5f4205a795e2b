"""Which snapshots stay, and how the others go.

The choice is a pure function of what the ledger names. The caller strikes the rest from the ledger first and deletes then, so
that a crash in between leaves a folder nobody names, which the next sweep removes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from yatt_core import durable
from yatt_core.keys import snapshot_folder

_HIDDEN = re.compile(r"\.(b\d+-i\d+\.e\d+)\..+")


@dataclass(frozen=True, slots=True, order=True)
class KeptSnapshot:
    """A snapshot as the ledger names it; ordered by branch, then iteration."""

    branch: int
    iteration: int
    folder: str


def expired_snapshots(snapshots: Sequence[KeptSnapshot], keep: int, pinned: Collection[str] = ()) -> list[KeptSnapshot]:
    """Those that may go: not among the newest `keep`, not of iteration 0, and not pinned (by folder).

    snapshots: those of the current branch and, up to where it left them, of its ancestors; others are the caller's to pin
    or to strike.
    """
    newest = sorted(snapshots)[-keep:]
    return [s for s in sorted(snapshots) if s not in newest and s.iteration != 0 and s.folder not in pinned]


def delete_snapshot(run_folder: Path, folder: str) -> None:
    """Deletes a snapshot that the ledger no longer names; no half of it is ever seen. One that is gone already is no error."""
    if (run_folder / folder).exists():
        durable.remove_folder(run_folder / folder)


def sweep_snapshots(run_folder: Path, keep_folders: Collection[str]) -> list[str]:
    """Deletes every snapshot, whole or half, that is not to be kept; returns the folders.

    keep_folders: what the ledger names, and the one that may be in flight. For a driver that holds the lease.
    """
    root = snapshot_folder(0, 0, 0).parent
    kept = {Path(folder).name for folder in keep_folders}
    removed = []
    for path in sorted((run_folder / root).iterdir()) if (run_folder / root).exists() else []:
        hidden = _HIDDEN.fullmatch(path.name)
        if hidden and (path.suffix == ".trash" or hidden[1] not in kept):
            shutil.rmtree(path)
        elif not hidden and path.name not in kept:
            delete_snapshot(run_folder, str(root / path.name))
        else:
            continue
        removed.append(str(root / path.name))
    return removed
