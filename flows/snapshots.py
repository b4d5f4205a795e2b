"""The snapshots of a segment: begun by the trainer's first rank, recorded here once they are durable, pruned behind that.

At most one is in flight. Only what the ledger names exists: a row is written after the manifest, and marked as pruned before
the files go.
"""

from __future__ import annotations

import logging
from pathlib import Path

from db.engine import Fence
from db.ledger import Ledger
from db.records import SnapshotRow
from yatt_core.checkpoints.retention import delete_snapshot, snapshots_to_keep, sweep_snapshots
from yatt_core.controllers.fleet import Fleet
from yatt_core.errors import InfrastructureError
from yatt_core.spec import RunSpec

log = logging.getLogger("yatt_core.flow")


class SnapshotKeeper:
    """Takes, records and prunes the snapshots of one run under one epoch."""

    def __init__(self, ledger: Ledger, fence: Fence, fleet: Fleet, folder: Path, spec: RunSpec) -> None:
        self._ledger, self._fence, self._fleet, self._folder, self._spec = ledger, fence, fleet, folder, spec
        self._under_way = False

    def kept(self) -> list[SnapshotRow]:
        """Those that can be restored on the current branch's line, newest first."""
        return self._ledger.records.snapshots(self._fence.run)

    def at(self, iteration: int) -> SnapshotRow | None:
        """The kept snapshot of an iteration."""
        return next((row for row in self.kept() if row.iteration == iteration), None)

    def forget(self) -> None:
        """The actors are new ones: nothing is in flight any more, and what a lost one left half done goes."""
        self._under_way = False
        sweep_snapshots(self._folder, [row.folder for row in self.kept()])

    def begin(self, iteration: int) -> None:
        """Copies the tensors and publishes them in the background, after the one in flight."""
        self.wait()
        log.info("snapshot of iteration %d begins", iteration)
        self._fleet.begin_snapshot(self._fence.run, self._ledger.events.head(self._fence.run).hash)
        self._under_way = True

    def wait(self) -> None:
        """Waits until the one in flight, if any, is durable and recorded. Raises `InfrastructureError` if it hangs."""
        deadline = self._spec.recovery.phase_deadline_seconds
        self.collect(wait_seconds=deadline)
        if self._under_way:
            raise InfrastructureError(f"the snapshot in flight is not durable after {deadline:g} s")

    def collect(self, wait_seconds: float = 0.0) -> None:
        """Records the one in flight if it is durable by now, then prunes."""
        if not self._under_way:
            return
        receipt = self._fleet.snapshot_result(wait_seconds)
        if receipt is None:
            return
        self._under_way = False
        row = SnapshotRow(
            run=self._fence.run,
            branch=receipt.branch,
            iteration=receipt.iteration,
            epoch=receipt.epoch,
            folder=receipt.folder,
            manifest_sha256=receipt.manifest_sha256,
            bytes=receipt.bytes,
            weights_digest=receipt.weights_digest,
            seconds=receipt.seconds,
        )
        self._ledger.records.snapshot(self._fence, row)
        self._prune()

    def _prune(self) -> None:
        """Removes those that are neither new enough nor the first."""
        rows = self.kept()
        keep = snapshots_to_keep([row.iteration for row in rows], self._spec.snapshots.keep)
        for row in rows:
            if row.iteration not in keep:
                self._ledger.records.snapshot_pruned(self._fence, row)
                delete_snapshot(self._folder, row.folder)
