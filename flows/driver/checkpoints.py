"""The checkpoints of a session: begun by the trainer, recorded in the ledger once they are durable, and pruned.

At most one checkpoint is in flight. A checkpoint exists only if the ledger names it: its row is written after the
manifest, and marked as pruned before the files are deleted. A published checkpoint that a lost driver did not record
is verified and recorded when the next session begins. If there is a durable tier, the row is written only after the
manifest is on that tier as well.
"""

from __future__ import annotations

import logging
from pathlib import Path

from db.core.ancestry import own_places
from db.core.engine import Fence
from db.ledger import Ledger
from db.write.commit import CommitRow
from db.write.records import CheckpointRow
from flows.delivery.registry import pruned_entries, published_entries
from flows.files.retention import needed_checkpoints
from flows.files.storage import fetch_missing
from yatt_core.actors.leftovers import Leftovers
from yatt_core.checkpoints.publish import CheckpointIdentity
from yatt_core.checkpoints.retention import delete_checkpoint, sweep_checkpoints
from yatt_core.checkpoints.unrecorded import find_unrecorded
from yatt_core.errors import InfrastructureError
from yatt_core.keys import CHECKPOINTS
from yatt_core.protocols.receipts import CheckpointReceipt
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import NoStore, RunStore

log = logging.getLogger("yatt_core.flow")


def other_weights(commit: CommitRow, held: CheckpointIdentity | CheckpointRow) -> str | None:
    """Returns the reason why a checkpoint may hold other weights than its iteration's commit; None if it does not.

    They can differ only in a run that is not exact and was killed between a checkpoint and its iteration's commit.
    """
    if commit.weights_digest is None and held.term < commit.term:
        return f"term {commit.term} committed the iteration, and its weights cannot be compared"
    if commit.weights_digest not in (None, held.weights_digest):
        return "its weights differ from those of the commit"
    return None


class CheckpointKeeper:
    """Takes, records and prunes the checkpoints of one run under one term."""

    def __init__(
        self,
        ledger: Ledger,
        fence: Fence,
        actors: RunActors,
        folder: Path,
        spec: RunSpec,
        store: RunStore | None = None,
    ) -> None:
        self._ledger = ledger
        self._fence = fence
        self._actors = actors
        self._folder = folder
        self._spec = spec
        self._store = store or NoStore()
        self._under_way = False

    @property
    def is_under_way(self) -> bool:
        """True while a checkpoint is being written."""
        return self._under_way

    def kept(self) -> list[CheckpointRow]:
        """Returns the checkpoints on the current branch's line, newest first; for a fork, including its parent's."""
        return self._ledger.records.checkpoints(self._fence.run)

    def at(self, iteration: int) -> CheckpointRow | None:
        """Returns the kept checkpoint of an iteration; None if there is none."""
        return next((row for row in self.kept() if row.iteration == iteration), None)

    def attach(self, in_flight: bool) -> list[CheckpointRow]:
        """Takes over from an earlier driver: records intact checkpoints, deletes leftovers; returns the new rows.

        in_flight: a live trainer may still be publishing a checkpoint or hold its receipt; its files are then kept.
        """
        self._under_way = in_flight
        known = {row.folder for row in self._ledger.records.own_checkpoints(self._fence.run)}
        adopted = []
        waiting = []
        published = self._store.folders(str(CHECKPOINTS))
        fetch_missing(
            self._store, self._folder, (name for name, whole in published.items() if whole and name not in known)
        )
        for identity, receipt in find_unrecorded(self._folder, known):
            if (obstacle := self._obstacle(identity)) is None:
                self._store.publish(receipt.folder)
                log.warning("checkpoint %s was published but not recorded; recording it now", receipt.folder)
                adopted.append(self._record(receipt))
            elif in_flight:
                waiting.append(receipt.folder)
            else:
                log.info("deleting checkpoint %s: %s", receipt.folder, obstacle)
        self._sweep(waiting)
        return adopted

    def lacks(self, iteration: int) -> bool:
        """Returns True if the iteration has no checkpoint, after waiting for the one in flight."""
        self.wait()
        return self.at(iteration) is None

    def copy_ahead(self, iteration: int) -> None:
        """Begins to copy the tensors for the iteration's checkpoint, unless another checkpoint is still being written."""
        if not self._under_way and self.at(iteration) is None:
            self._actors.copy_ahead(iteration)

    def begin(self, iteration: int) -> None:
        """Waits for the checkpoint in flight, then has the tensors copied and published in the background."""
        self.wait()
        log.info("checkpoint of iteration %d begins", iteration)
        self._actors.begin_checkpoint(self._fence.run, self._ledger.events.head(self._fence.run).hash)
        self._under_way = True

    def wait(self) -> None:
        """Waits until the checkpoint in flight, if any, is durable and recorded.

        Raises `InfrastructureError` if that takes longer than `recovery.phase_deadline_seconds`.
        """
        deadline = self._spec.recovery.phase_deadline_seconds
        self.collect(wait_seconds=deadline)
        if self._under_way:
            raise InfrastructureError(f"the checkpoint in flight is not durable after {deadline:g} s")

    def collect(self, wait_seconds: float = 0.0) -> bool:
        """Records the checkpoint in flight if it is durable, then prunes; returns True if there is a new row.

        Raises the error with which its publication failed, such as `StorageFullError` for a full disk; after an
        error, no checkpoint is in flight.
        """
        if not self._under_way:
            return False
        try:
            receipt = self._actors.checkpoint_result(wait_seconds)
        except InfrastructureError:
            self._under_way = False
            raise
        if receipt is None:
            return False
        self._under_way = False
        self._record(receipt)
        self._prune()
        return True

    def _record(self, receipt: CheckpointReceipt) -> CheckpointRow:
        row = CheckpointRow(
            run=self._fence.run,
            branch=receipt.branch,
            iteration=receipt.iteration,
            term=receipt.term,
            folder=receipt.folder,
            manifest_sha256=receipt.manifest_sha256,
            bytes=receipt.bytes,
            weights_digest=receipt.weights_digest,
            seconds=receipt.seconds,
        )
        self._ledger.records.checkpoint(self._fence, row, published_entries(self._spec, row))
        return row

    def _obstacle(self, identity: CheckpointIdentity) -> str | None:
        """Returns the reason why the current line cannot use a checkpoint; None if it can."""
        commit = self._ledger.commits.at(self._fence.run, identity.iteration)
        if identity.run != self._fence.run:
            return f"it is of run {identity.run}"
        if commit is None or not self._on_line(identity.branch, identity.iteration):
            return "its iteration is not committed on the current line"
        if identity.term > self._fence.term:
            return f"term {identity.term} is newer than this one, {self._fence.term}"
        if not self._spec_is_known(identity.spec_digest):
            return f"no revision of the spec has the digest {identity.spec_digest}"
        return other_weights(commit, identity)

    def _on_line(self, branch: int, iteration: int) -> bool:
        places = own_places(self._ledger.lines.current(self._fence.run), self._fence.run)
        return any(place.branch == branch and place.first <= iteration <= place.last for place in places)

    def _spec_is_known(self, digest: str) -> bool:
        newest = self._ledger.runs.revision(self._fence.run).revision
        return any(self._ledger.runs.revision(self._fence.run, n).digest == digest for n in range(newest, 0, -1))

    def _prune(self) -> None:
        """Deletes checkpoints that are no longer needed, on every branch of this run, but never a parent's."""
        rows = self._ledger.records.own_checkpoints(self._fence.run, "kept")
        needed = needed_checkpoints(self._ledger, self._fence.run, self._spec.checkpoints.keep, self._spec.version_span)
        for row in rows:
            if row.folder not in needed and self._ledger.records.checkpoint_pruned(
                self._fence, row, pruned_entries(self._spec, row)
            ):
                delete_checkpoint(self._folder, row.folder)
                self._store.remove(row.folder)
        self._sweep([])

    def _sweep(self, waiting: list[str]) -> None:
        rows = self._ledger.records.own_checkpoints(self._fence.run, "kept")
        stays = [*(row.folder for row in rows), *waiting]
        sweep_checkpoints(self._folder, stays, self._under_way)
        self._store.sweep(str(CHECKPOINTS), stays, self._fence.term, self._under_way)
        self._actors.tidy(Leftovers(kept_checkpoints=tuple(stays), in_flight=self._under_way))
