"""What a fork takes over from the run that it was forked from: its own copies of everything that it stands on.

Consumes the parent's folder and rows; produces the fork's inputs, its first checkpoint, and the experience between that and its
first iteration, each published whole, then its row. The files are hard links: they take no room, and the parent prunes its own
names whenever it likes. (Paths into the parent's folder would bind its retention to all forks of forks.) Doing it again does
nothing, so that a fork whose making was cut off is finished by its first `resume`.

Copies keep the branch numbers of those that made them, which seeds come from, and have term 0: no driver of the fork made them.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path

from db.core.engine import Fence
from db.ledger import Ledger
from db.write.records import CheckpointRow
from flows.delivery.registry import published_entries
from flows.run.home import Home
from yatt_core import durable
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import WorkKey, checkpoint_folder, shard_folder
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore

log = logging.getLogger("yatt_core.flow")
COPIED = 0
"""Term of what was copied; drivers count from 1."""
NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})
"""What file systems answer that cannot link, or not that far."""


def inherit(
    home: Home,
    ledger: Ledger,
    fence: Fence,
    parent: str,
    branch: int,
    at: int,
    base: CheckpointRow,
    spec: RunSpec,
    store: RunStore,
) -> None:
    """Gives a fork what it needs of its parent's branch: inputs, the base checkpoint, and the experience behind it up to `at`.

    spec: the fork's. store: its durable tier, which has a copy before its row is written. Raises `InfrastructureError` when the
    disk or the store refuses, `Fenced`.
    """
    source, target = home.run_folder(parent), home.run_folder(fence.run)
    copy_folder(source / INPUTS, target / INPUTS)
    store.publish(INPUTS)
    for iteration in range(base.iteration + 1, at + 1):
        _copy_experience(ledger, fence, source, target, parent, branch, iteration, store)
    folder = str(checkpoint_folder(base.branch, base.iteration, COPIED))
    copy_folder(source / base.folder, target / folder)
    store.publish(folder)
    # Last: a fork that has a checkpoint has everything.
    copy = replace(base, run=fence.run, term=COPIED, folder=folder, seconds=0.0)
    ledger.records.checkpoint(fence, copy, published_entries(spec, copy))


def is_whole(ledger: Ledger, run: str) -> bool:
    """True unless the run is a fork that has not got all of its copies yet."""
    first = ledger.overview.branches(run)[0]
    return first.parent_run is None or bool(ledger.records.own_checkpoints(run))


def _copy_experience(
    ledger: Ledger,
    fence: Fence,
    source: Path,
    target: Path,
    parent: str,
    branch: int,
    iteration: int,
    store: RunStore,
) -> None:
    commit = ledger.commits.at(parent, iteration, branch)
    assert commit is not None, "the caller has looked at every iteration"
    for wave in ledger.records.waves(parent, commit.branch, iteration):
        ledger.records.wave(fence, wave)
    for row in ledger.records.shards(parent, commit.branch, iteration):
        key = WorkKey(fence.run, commit.branch, iteration, "collect", wave=row.wave, shard=row.shard)
        folder = str(shard_folder(key, COPIED))
        copy_folder(source / row.folder, target / folder)
        store.publish(folder)
        ledger.records.shard(fence, replace(row, term=COPIED, folder=folder, adopted=True))


def copy_folder(source: Path, target: Path) -> None:
    """A folder of the same files under another name, whole or not at all; one that is there already is left as it is."""
    if target.exists():
        return
    durable.make_folder(target.parent)
    partial = target.with_name(f".{target.name}.copy")
    shutil.rmtree(partial, ignore_errors=True)
    with durable.refusals(f"{target}: the copy of {source}"):
        partial.mkdir()
        for path in sorted(source.rglob("*")):
            copy = partial / path.relative_to(source)
            if path.is_dir():
                copy.mkdir()
            else:
                _link(path, copy)
        for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            durable.sync_folder(folder)
        durable.move_folder(partial, target)


def _link(path: Path, copy: Path) -> None:
    try:
        os.link(path, copy)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        log.info("%s cannot be linked (%s), it is copied", path, error.strerror)
        shutil.copyfile(path, copy)
        durable.sync_file(copy)
