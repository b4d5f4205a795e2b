"""Copies to a fork everything that it needs from its parent.

Consumes the parent's folder and rows. Produces the fork's inputs, its first checkpoint, and the experience from there
up to its first iteration; each is published whole before its row is written. The files are hard links: they take no
space, and the parent remains free to prune its own files. (If a fork used paths into the parent's folder, the parent
would have to keep the files for all its forks.) The operation is idempotent, so a fork whose creation was interrupted
is completed by its first `resume`.

Copies keep the branch numbers under which they were made, since seeds depend on them. Their term is 0, since no
driver of the fork made them.
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
from flows.branching.restore_points import first_replayed
from flows.delivery.registry import published_entries
from flows.run.home import Home
from yatt_core import durable
from yatt_core.inputs.manifest import INPUTS
from yatt_core.keys import WorkKey, checkpoint_folder, shard_folder
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore

log = logging.getLogger("yatt_core.flow")
COPIED = 0
"""Term of copies; drivers' terms begin at 1."""
NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP})
"""Errors raised by file systems that do not support hard links, or not between the two folders."""


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
    """Copies to a fork its parent's inputs, the base checkpoint, and the experience after it up to `at`.

    With slices, also the experience before the checkpoint that updates after it have learnt from.

    branch: the parent's branch.
    spec: the fork's spec.
    store: the fork's durable tier, which receives each copy before its row is written.

    Raises `InfrastructureError` if the disk or the store fails, `Fenced`.
    """
    source = home.run_folder(parent)
    target = home.run_folder(fence.run)
    copy_folder(source / INPUTS, target / INPUTS)
    store.publish(INPUTS)
    first = first_replayed(ledger.runs.line(parent, branch), base.iteration, at, spec)
    for iteration in range(first, at + 1):
        _copy_experience(
            ledger=ledger,
            fence=fence,
            source=source,
            target=target,
            parent=parent,
            branch=branch,
            iteration=iteration,
            store=store,
        )
    folder = str(checkpoint_folder(base.branch, base.iteration, COPIED))
    copy_folder(source / base.folder, target / folder)
    store.publish(folder)
    # Last, since a fork with a checkpoint counts as complete.
    copy = replace(base, run=fence.run, term=COPIED, folder=folder, seconds=0.0)
    ledger.records.checkpoint(fence, copy, published_entries(spec, copy))


def is_whole(ledger: Ledger, run: str) -> bool:
    """Returns True unless the run is a fork that does not have all of its copies yet."""
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
    assert commit is not None, "the caller has checked every iteration"
    for wave in ledger.records.waves(parent, commit.branch, iteration):
        ledger.records.wave(fence, wave)
    for row in ledger.records.shards(parent, commit.branch, iteration):
        key = WorkKey(fence.run, commit.branch, iteration, "collect", wave=row.wave, shard=row.shard)
        folder = str(shard_folder(key, COPIED))
        copy_folder(source / row.folder, target / folder)
        store.publish(folder)
        ledger.records.shard(fence, replace(row, term=COPIED, folder=folder, adopted=True))


def copy_folder(source: Path, target: Path) -> None:
    """Copies a folder, all or nothing, as hard links where possible; leaves an existing target unchanged."""
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
                link_file(path, copy)
        for folder in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
            durable.sync_folder(folder)
        durable.move_folder(partial, target)


def link_file(path: Path, copy: Path) -> None:
    """Links a file, or copies and syncs it where links are not supported."""
    try:
        os.link(path, copy)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        log.info("copying %s, which cannot be linked (%s)", path, error.strerror)
        shutil.copyfile(path, copy)
        durable.sync_file(copy)
