"""Brings a session to the state of the run's last commit: what the actors still hold, else a checkpoint and replay of `learn`.

state(k) = control state of commit k + tensors of the newest good checkpoint s <= k + replay of updates s+1 .. k. Replay writes
no metrics and runs no evaluation; each replayed update has to reproduce the fingerprint that its commit recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from db.write.commit import CommitRow
from db.write.records import CheckpointRow
from flows.driver.checkpoints import other_weights
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.files.storage import fetch_sealed
from flows.phases.attempts import phase, recorded_receipt
from flows.phases.batches import batch_task, prepared_columns
from flows.phases.experience import is_gathered, sealed_batch
from flows.phases.failure_policy import CURSOR, is_skipped, obey_rollback
from flows.run.control_state import ControlState, Recovered
from yatt_core.errors import DataError, DriftError, InfrastructureError, ReplayError
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import PrepareReceipt, RecoverReceipt
from yatt_core.run_actors.run_actors import ActorsState

log = logging.getLogger("yatt_core.flow")
DRIFT = "drift"


@phase
def recover(session: DriverSession, iteration: int) -> Recovered:
    """The state after the last commit, with trainer and engines holding its weights (or those of the update behind it)."""
    context = session.context
    started = context.clock.monotonic()
    state = committed_state(context)
    if obey_rollback(session, state):
        context = session.context  # of the branch that was opened
        state = committed_state(context)
    standing = session.start.ready()
    fetch_sealed(context.store, context.folder, context.branch, state.iteration + 1)
    start_seconds = context.clock.monotonic() - started
    warm = not any(name.startswith("trainer") for name in standing.created)
    if state.iteration < 0:
        return Recovered(state, RecoverReceipt(None, 0, warm, start_seconds, 0.0, 0.0))
    if holds_state(session, state, standing):
        session.actors.sync(standing.trainer_version)
        return Recovered(state, RecoverReceipt(None, 0, warm, start_seconds, 0.0, 0.0))
    loading = context.clock.monotonic()
    restored = restore_newest(session, state.iteration)
    replaying = context.clock.monotonic()
    check_environment(session, state, restored)
    for update in range(restored + 1, state.iteration + 1):
        session.threads.check()
        session.threads.allow(2 * session.actors.deadline, f"the replay of update {update}")
        context.observer.stage(f"replaying update {update} of {state.iteration}")
        replay(session, update)
    ended = context.clock.monotonic()
    session.actors.sync(state.iteration)
    replayed = state.iteration - restored
    log.info("restored checkpoint %d and replayed %d updates", restored, replayed)
    return Recovered(
        state, RecoverReceipt(restored, replayed, warm, start_seconds, replaying - loading, ended - replaying)
    )


def committed_state(context: RunContext) -> ControlState:
    """The control state of the last commit on the current line, as the branch begins where it is a branch's first."""
    commit = context.ledger.commits.latest(context.run)
    if commit is None:
        return ControlState.initial(context.spec.data)
    state = ControlState.from_json(commit.state)
    choices = context.ledger.records.choices(context.run, context.branch, state.iteration + 1)
    if CURSOR in choices:
        return replace(state, cursor=Cursor.from_json(choices[CURSOR].body["cursor"]))
    return state


def holds_state(session: DriverSession, state: ControlState, standing: ActorsState) -> bool:
    """True if the trainer is where the last commit left it, or one update further with all of its experience on disk."""
    context = session.context
    if standing.trainer_version == state.iteration:
        return True
    following = state.iteration + 1
    if standing.trainer_version != following:
        return False
    if standing.trainer_key != WorkKey(context.run, context.branch, following, "learn"):
        return False
    prepared = recorded_receipt(context, context.branch, following, "prepare", PrepareReceipt)
    return (
        is_gathered(session.context, following) and prepared is not None and session.actors.prepared_is_whole(prepared)
    )


def restore_newest(session: DriverSession, iteration: int) -> int:
    """Loads the newest checkpoint at or before an iteration whose files agree with their digests; returns its iteration."""
    rows = [
        row for row in session.checkpoints.kept() if row.iteration <= iteration and is_committed(session.context, row)
    ]
    for row in rows:
        try:
            _restore(session, row)
        except DataError as error:
            log.error("checkpoint %s is passed over: %s", row.folder, error)
            session.context.observer.warned(
                f"checkpoint of iteration {row.iteration} is damaged, an older one is used: {error}"
            )
        else:
            return row.iteration
    raise InfrastructureError(
        f"run {session.context.run}: none of its {len(rows)} checkpoints can be loaded; see `yatt logs`"
    )


def is_committed(context: RunContext, row: CheckpointRow) -> bool:
    """True if a checkpoint holds what its iteration's commit says, and not what an attempt before it came to."""
    commit = context.ledger.commits.at(context.run, row.iteration)
    return commit is not None and other_weights(commit, row) is None


def _restore(session: DriverSession, row: CheckpointRow) -> None:
    session.context.observer.stage(f"loading the checkpoint of iteration {row.iteration}")
    session.threads.allow(2 * session.actors.deadline, f"loading the checkpoint of iteration {row.iteration}")
    restore(session, row)


def restore(session: DriverSession, row: CheckpointRow) -> None:
    """Has the trainer load a checkpoint, which comes from the durable tier if the run's folder lacks it or it is damaged.

    Raises `DataError` if neither tier has it whole.
    """
    context, actors = session.context, session.actors
    fetched = not (context.folder / row.folder).exists() and context.store.fetch(row.folder, row.manifest_sha256)
    try:
        actors.restore(row.folder, row.manifest_sha256, row.iteration)
    except DataError:
        if fetched or not context.store.fetch(row.folder, row.manifest_sha256):
            raise
        context.observer.warned(f"{row.folder} was damaged; it is taken from the durable tier")
        actors.restore(row.folder, row.manifest_sha256, row.iteration)


def check_environment(session: DriverSession, state: ControlState, restored: int) -> None:
    """Marks the lineage where the environment is another than the last commit's.

    Raises `DriftError` where updates would have to be replayed in it, unless that was accepted.
    """
    context = session.context
    differences = changes(state.environment, session.start.environment)
    if not differences:
        return
    replayed = state.iteration - restored
    said = "; ".join(f"{name}: {before} -> {now}" for name, (before, now) in differences.items())
    if replayed and context.spec.exact and not context.accept_drift:
        raise DriftError(
            f"run {context.run}: {replayed} updates would have to be replayed, but the environment has changed ({said}). Go "
            f"back to the recorded one, or accept other last bits: `yatt resume {context.run} --accept-drift`"
        )
    context.observer.warned(f"the environment has changed: {said}")
    body = {"at": state.iteration, "replayed": replayed, "changes": {k: list(v) for k, v in differences.items()}}
    context.ledger.events.append(context.run, DRIFT, body, context.fence)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Facts that differ, each as it was and as it is; empty text for one that is missing."""
    names = sorted(before.keys() | now.keys())
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def replay(session: DriverSession, iteration: int) -> None:
    """Applies a committed update again, or skips it again. Raises `ReplayError` when it comes out differently."""
    context = session.context
    before, commit = (context.ledger.commits.at(context.run, i) for i in (iteration - 1, iteration))
    if before is None or commit is None:
        raise InfrastructureError(
            f"run {context.run}: iterations {iteration - 1} and {iteration} are not in the ledger"
        )
    # Of a parent's iterations a fork has copies of its own.
    batch = sealed_batch(session, commit.branch, iteration)
    task = batch_task(context, commit.branch, iteration, "learn", batch)
    if is_skipped(context, commit.run, commit.branch, iteration):
        receipt = session.actors.skip(task)
    else:
        then, now = commit.state["environment"].get("layout"), session.start.environment.get("layout")
        moments = ControlState.from_json(before.state).reward_moments
        prepared = prepared_columns(session, commit.branch, iteration, batch, moments, same_layout=then == now)
        receipt = session.actors.learn(task, prepared)
    _compare(context, commit, dict(receipt.fingerprint))


def _compare(context: RunContext, commit: CommitRow, found: dict[str, float | str]) -> None:
    if found == dict(commit.fingerprint):
        return
    said = (
        f"replaying update {commit.iteration} of run {context.run} gives {found}, its commit says "
        f"{dict(commit.fingerprint)}: code, libraries, processor or layout differ from those that made it"
    )
    if context.spec.exact and not context.accept_drift:
        raise ReplayError(said)
    log.warning("%s", said)
    context.observer.warned(said)
