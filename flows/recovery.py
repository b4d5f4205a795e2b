"""Brings a segment to the state of the run's last commit: what the actors still hold, else a snapshot and replay of `learn`.

state(k) = control state of commit k + tensors of the newest good snapshot s <= k + replay of updates s+1 .. k. Replay writes
no metrics and runs no evaluation; each replayed update has to reproduce the fingerprint that its commit recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from db.commit import CommitRow
from db.records import SnapshotRow
from flows.answers import CURSOR, is_skipped, obey_rollback
from flows.attempts import phase, recorded_receipt
from flows.batches import batch_task, prepared_columns
from flows.experience import is_gathered, sealed_batch
from flows.segment import Segment
from flows.snapshots import other_weights
from flows.state import ControlState, Recovered
from flows.storage import fetch_sealed, restore_kept
from yatt_core.controllers.fleet import FleetStanding
from yatt_core.data.prompts import Cursor
from yatt_core.errors import DataError, DriftError, InfrastructureError, ReplayError
from yatt_core.keys import WorkKey
from yatt_core.receipts import PrepareReceipt, RecoverReceipt

log = logging.getLogger("yatt_core.flow")
DRIFT = "drift"


@phase
def recover(segment: Segment, iteration: int) -> Recovered:
    """The state after the last commit, with trainer and engines holding its weights (or those of the update behind it)."""
    started = segment.clock.monotonic()
    state = committed_state(segment)
    if obey_rollback(segment, state):
        state = committed_state(segment)
    standing = segment.start.ready()
    fetch_sealed(segment.store, segment.folder, segment.branch, state.iteration + 1)
    start_seconds = segment.clock.monotonic() - started
    warm = not any(name.startswith("trainer") for name in standing.created)
    if state.iteration < 0:
        return Recovered(state, RecoverReceipt(None, 0, warm, start_seconds, 0.0, 0.0))
    if holds_state(segment, state, standing):
        segment.fleet.sync(standing.trainer_version)
        return Recovered(state, RecoverReceipt(None, 0, warm, start_seconds, 0.0, 0.0))
    loading = segment.clock.monotonic()
    restored = restore_newest(segment, state.iteration)
    replaying = segment.clock.monotonic()
    check_environment(segment, state, restored)
    for update in range(restored + 1, state.iteration + 1):
        segment.check()
        segment.allow(2 * segment.fleet.deadline, f"the replay of update {update}")
        segment.observer.stage(f"replaying update {update} of {state.iteration}")
        replay(segment, update)
    ended = segment.clock.monotonic()
    segment.fleet.sync(state.iteration)
    replayed = state.iteration - restored
    log.info("restored snapshot %d and replayed %d updates", restored, replayed)
    return Recovered(
        state, RecoverReceipt(restored, replayed, warm, start_seconds, replaying - loading, ended - replaying)
    )


def committed_state(segment: Segment) -> ControlState:
    """The control state of the last commit on the current line, as the branch begins where it is a branch's first."""
    commit = segment.ledger.commits.latest(segment.run)
    if commit is None:
        return ControlState.initial(segment.spec.data)
    state = ControlState.from_json(commit.state)
    choices = segment.ledger.records.choices(segment.run, segment.branch, state.iteration + 1)
    if CURSOR in choices:
        return replace(state, cursor=Cursor.from_json(choices[CURSOR].body["cursor"]))
    return state


def holds_state(segment: Segment, state: ControlState, standing: FleetStanding) -> bool:
    """True if the trainer is where the last commit left it, or one update further with all of its experience on disk."""
    if standing.trainer_version == state.iteration:
        return True
    following = state.iteration + 1
    if standing.trainer_version != following:
        return False
    if standing.trainer_key != WorkKey(segment.run, segment.branch, following, "learn"):
        return False
    prepared = recorded_receipt(segment, segment.branch, following, "prepare", PrepareReceipt)
    return is_gathered(segment, following) and prepared is not None and segment.fleet.prepared_is_whole(prepared)


def restore_newest(segment: Segment, iteration: int) -> int:
    """Loads the newest snapshot at or before an iteration whose files agree with their digests; returns its iteration."""
    rows = [row for row in segment.snapshots.kept() if row.iteration <= iteration and is_committed(segment, row)]
    for row in rows:
        try:
            _restore(segment, row)
        except DataError as error:
            log.error("snapshot %s is passed over: %s", row.folder, error)
            segment.observer.warned(f"snapshot of iteration {row.iteration} is damaged, an older one is used: {error}")
        else:
            return row.iteration
    raise InfrastructureError(f"run {segment.run}: none of its {len(rows)} snapshots can be loaded; see `yatt logs`")


def is_committed(segment: Segment, row: SnapshotRow) -> bool:
    """True if a snapshot holds what its iteration's commit says, and not what an attempt before it came to."""
    commit = segment.ledger.commits.at(segment.run, row.iteration)
    return commit is not None and other_weights(commit, row) is None


def _restore(segment: Segment, row: SnapshotRow) -> None:
    segment.observer.stage(f"loading the snapshot of iteration {row.iteration}")
    segment.allow(2 * segment.fleet.deadline, f"loading the snapshot of iteration {row.iteration}")
    restore_kept(segment, row)


def check_environment(segment: Segment, state: ControlState, restored: int) -> None:
    """Marks the lineage where the environment is another than the last commit's.

    Raises `DriftError` where updates would have to be replayed in it, unless that was accepted.
    """
    differences = changes(state.environment, segment.start.environment)
    if not differences:
        return
    replayed = state.iteration - restored
    said = "; ".join(f"{name}: {before} -> {now}" for name, (before, now) in differences.items())
    if replayed and segment.spec.exact and not segment.accept_drift:
        raise DriftError(
            f"run {segment.run}: {replayed} updates would have to be replayed, but the environment has changed ({said}). Go "
            f"back to the recorded one, or accept other last bits: `yatt resume {segment.run} --accept-drift`"
        )
    segment.observer.warned(f"the environment has changed: {said}")
    body = {"at": state.iteration, "replayed": replayed, "changes": {k: list(v) for k, v in differences.items()}}
    segment.ledger.events.append(segment.run, DRIFT, body, segment.fence)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Facts that differ, each as it was and as it is; empty text for one that is missing."""
    names = sorted(before.keys() | now.keys())
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def replay(segment: Segment, iteration: int) -> None:
    """Applies a committed update again, or skips it again. Raises `ReplayError` when it comes out differently."""
    before, commit = (segment.ledger.commits.at(segment.run, i) for i in (iteration - 1, iteration))
    if before is None or commit is None:
        raise InfrastructureError(
            f"run {segment.run}: iterations {iteration - 1} and {iteration} are not in the ledger"
        )
    # Of a parent's iterations a fork has copies of its own.
    batch = sealed_batch(segment, commit.branch, iteration)
    task = batch_task(segment, commit.branch, iteration, "learn", batch)
    if is_skipped(segment, commit.run, commit.branch, iteration):
        receipt = segment.fleet.skip(task)
    else:
        then, now = commit.state["environment"].get("layout"), segment.start.environment.get("layout")
        moments = ControlState.from_json(before.state).reward_moments
        prepared = prepared_columns(segment, commit.branch, iteration, batch, moments, same_layout=then == now)
        receipt = segment.fleet.learn(task, prepared)
    _compare(segment, commit, dict(receipt.fingerprint))


def _compare(segment: Segment, commit: CommitRow, found: dict[str, float | str]) -> None:
    if found == dict(commit.fingerprint):
        return
    said = (
        f"replaying update {commit.iteration} of run {segment.run} gives {found}, its commit says "
        f"{dict(commit.fingerprint)}: code, libraries, processor or layout differ from those that made it"
    )
    if segment.spec.exact and not segment.accept_drift:
        raise ReplayError(said)
    log.warning("%s", said)
    segment.observer.warned(said)
