"""Brings a segment to the state of the run's last commit: snapshot, then replay of `learn` from the sealed experience.

state(k) = control state of commit k + tensors of the newest good snapshot s <= k + replay of updates s+1 .. k. Replay writes
no metrics and runs no evaluation; each replayed update has to reproduce the fingerprint that its commit recorded.
"""

from __future__ import annotations

import logging

from db.records import SnapshotRow
from flows.attempts import phase
from flows.batches import batch_task, prepared_columns
from flows.segment import Segment
from flows.state import ControlState
from yatt_core.errors import DataError, InfrastructureError, NumericError
from yatt_core.receipts import ShardRef

log = logging.getLogger("yatt_core.flow")


@phase
def recover(segment: Segment, iteration: int) -> ControlState:
    """The state after the last commit, with trainer and engines holding its weights."""
    segment.ready_fleet()
    commit = segment.ledger.commits.latest(segment.run)
    if commit is None:
        return ControlState.initial(segment.spec.data)
    state = ControlState.from_json(commit.state)
    restored = restore_newest(segment, state.iteration)
    for update in range(restored + 1, state.iteration + 1):
        segment.check()
        segment.observer.stage(f"replaying update {update} of {state.iteration}")
        replay(segment, update)
    segment.fleet.sync(state.iteration)
    if restored < state.iteration:
        log.info("restored snapshot %d and replayed %d updates", restored, state.iteration - restored)
    return state


def restore_newest(segment: Segment, iteration: int) -> int:
    """Loads the newest snapshot at or before an iteration whose files agree with their digests; returns its iteration."""
    rows = [row for row in segment.snapshots.kept() if row.iteration <= iteration]
    for row in rows:
        try:
            _restore(segment, row)
        except DataError as error:
            log.error("snapshot %s is passed over: %s", row.folder, error)
            segment.observer.warned(f"snapshot of iteration {row.iteration} is damaged, an older one is used: {error}")
        else:
            return row.iteration
    raise InfrastructureError(f"run {segment.run}: none of its {len(rows)} snapshots can be loaded; see `yatt logs`")


def _restore(segment: Segment, row: SnapshotRow) -> None:
    segment.observer.stage(f"loading the snapshot of iteration {row.iteration}")
    segment.fleet.restore(row.folder, row.manifest_sha256, row.iteration)


def replay(segment: Segment, iteration: int) -> None:
    """Applies a committed update again. Raises `NumericError` when it comes out differently."""
    commit = segment.ledger.commits.at(segment.run, iteration)
    if commit is None:
        raise InfrastructureError(f"run {segment.run}: iteration {iteration} is not in the ledger")
    rows = segment.ledger.records.shards(segment.run, commit.branch, iteration)
    references = tuple(ShardRef(row.folder, row.manifest_sha256) for row in rows)
    prepared = prepared_columns(segment, commit.branch, iteration, references)
    receipt = segment.fleet.learn(batch_task(segment, commit.branch, iteration, "learn", references), prepared)
    if dict(receipt.fingerprint) != dict(commit.fingerprint):
        raise NumericError(
            f"replaying update {iteration} of run {segment.run} gives {dict(receipt.fingerprint)}, its commit says "
            f"{dict(commit.fingerprint)}: code, libraries, processor or layout differ from those that made it"
        )
