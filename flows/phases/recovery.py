"""Restores the state of the run's last commit: from live actors if they still hold it, else by checkpoint and replay.

state(k) = control state of commit k + tensors of the newest good checkpoint s <= k + replay of updates s+1 .. k. Replay
writes no metrics and runs no evaluation; each replayed update must reproduce the fingerprint recorded in its commit.
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
from flows.phases.batches import batch_task, committed_batch, prepared_columns
from flows.phases.experience import is_gathered
from flows.phases.failure_policy import CURSOR, is_skipped, obey_rollback
from flows.run.control_state import ControlState, Recovered
from yatt_core.counting import many
from yatt_core.engine_environments import VLLM
from yatt_core.engines.environment import BFLOAT16_PRODUCTS
from yatt_core.errors import DataError, DriftError, InfrastructureError, ReplayError
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import PrepareReceipt, RecoverReceipt
from yatt_core.run_actors.actors_state import ActorsState

log = logging.getLogger("yatt_core.flow")
DRIFT = "drift"
NOT_RECORDED = "not recorded"
NOT_YET_RECORDED = frozenset({"tokenizers"})
"""Facts of the environment that were added to those of commits later on."""
BEFORE_RECORDED = {BFLOAT16_PRODUCTS: "native"}
"""Facts that were added later on, with the only value that they could have had before."""
NOT_EVERYWHERE = tuple(VLLM.packages)
"""Begin the names of facts that a node without vLLM's environment does not know."""


@phase
def start(session: DriverSession, iteration: int) -> Recovered:
    """Returns the initial state of a run that has committed nothing; its actors are ready.

    Consumes: the ledger, and actors that an earlier start left alive.
    Waits for: the actors.
    Unblocked by: the last of them that is ready.
    """
    state = committed_state(session.context)
    return Recovered(state, make_ready(session, state)[1])


@phase
def recover(session: DriverSession, iteration: int) -> Recovered:
    """Returns the state of the last commit; trainer and engines hold its weights, or those of the next update.

    Consumes: the ledger, live actors, checkpoints and sealed experience.
    Waits for: the actors, then for loading and replay if the trainer does not hold the weights.
    Unblocked by: engines in sync with the trainer.
    """
    context = session.context
    state = committed_state(context)
    if obey_rollback(session, state):
        context = session.context  # replaced: the session is on the new branch
        state = committed_state(context)
    standing, receipt = make_ready(session, state)
    if holds_state(session, state, standing):
        session.actors.sync(standing.trainer_version)
        check_weights(session, standing.trainer_version)
        return Recovered(state, receipt)
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
    check_weights(session, state.iteration)
    replayed = state.iteration - restored
    log.info("restored checkpoint %d and replayed %d updates", restored, replayed)
    receipt = replace(receipt, restore_seconds=replaying - loading, replay_seconds=ended - replaying)
    return Recovered(state, replace(receipt, restored=restored, replayed=replayed))


def check_weights(session: DriverSession, version: int) -> None:
    """Has the trainer's weights compared with their commit, if they are committed, and the engines' with the trainer's.

    Raises what `RunActors.check_weights` raises, but a trainer that differs is only a warning if bits may differ.
    """
    context = session.context
    commit = context.ledger.commits.at(context.run, version)
    committed = None if commit is None else commit.weights_digest
    try:
        session.actors.check_weights(version, committed)
    except ReplayError as error:
        if context.spec.exact and not context.accept_drift:
            raise
        log.warning("%s", error)
        context.observer.warned(str(error))
        session.actors.check_weights(version, None)


def make_ready(session: DriverSession, state: ControlState) -> tuple[ActorsState, RecoverReceipt]:
    """Starts the missing actors; returns what the actors hold, and the receipt of a recovery that restores nothing."""
    context = session.context
    started = context.clock.monotonic()
    standing = session.start.ready()
    session.threads.deliver()
    fetch_sealed(context.store, context.folder, context.branch, state.iteration + 1)
    warm = not any(name.startswith("trainer") for name in standing.created)
    return standing, RecoverReceipt(None, 0, warm, context.clock.monotonic() - started, 0.0, 0.0)


def committed_state(context: RunContext) -> ControlState:
    """Returns the control state of the last commit on the current line.

    At the start of a branch that a rollback opened, the cursor is the one recorded for that branch.
    """
    commit = context.ledger.commits.latest(context.run)
    if commit is None:
        return ControlState.initial(context.spec.data)
    return state_after(context, commit, context.run, context.branch)


def state_after(context: RunContext, commit: CommitRow, run: str, branch: int) -> ControlState:
    """Returns the control state from which a branch continues after a commit."""
    state = ControlState.from_json(commit.state)
    choices = context.ledger.records.choices(run, branch, state.iteration + 1)
    if CURSOR in choices:
        return replace(state, cursor=Cursor.from_json(choices[CURSOR].body["cursor"]))
    return state


def holds_state(session: DriverSession, state: ControlState, standing: ActorsState) -> bool:
    """Returns True if the trainer holds the weights of the last commit or of the next update.

    In the latter case, the update's inputs must be intact.
    """
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
    """Loads the newest intact checkpoint at or before an iteration; returns the checkpoint's iteration.

    Raises `InfrastructureError` if there is none.
    """
    rows = [
        row for row in session.checkpoints.kept() if row.iteration <= iteration and is_committed(session.context, row)
    ]
    for row in rows:
        try:
            _restore(session, row)
        except DataError as error:
            log.error("skipping checkpoint %s: %s", row.folder, error)
            session.context.observer.warned(
                f"the checkpoint of iteration {row.iteration} is damaged, trying an older one: {error}"
            )
        else:
            return row.iteration
    raise InfrastructureError(
        f"run {session.context.run}: none of its {many(len(rows), 'checkpoint')} can be loaded; see `yatt logs`"
    )


def is_committed(context: RunContext, row: CheckpointRow) -> bool:
    """Returns True if a checkpoint holds the weights of its iteration's commit, not those of an abandoned attempt."""
    commit = context.ledger.commits.at(context.run, row.iteration)
    return commit is not None and other_weights(commit, row) is None


def _restore(session: DriverSession, row: CheckpointRow) -> None:
    session.context.observer.stage(f"loading the checkpoint of iteration {row.iteration}")
    # At worst it is loaded twice, each time in three calls to the ranks.
    session.threads.allow(6 * session.actors.deadline, f"loading the checkpoint of iteration {row.iteration}")
    restore(session, row)


def restore(session: DriverSession, row: CheckpointRow) -> None:
    """Loads a checkpoint into the trainer; fetches it from the durable tier if the local copy is missing or damaged.

    Raises `DataError` if neither copy is intact.
    """
    context, actors = session.context, session.actors
    shared, sha256 = actors.files.are_shared, row.manifest_sha256
    fetched = shared and not (context.folder / row.folder).exists() and context.store.fetch(row.folder, sha256)
    try:
        actors.restore(row.folder, sha256, row.iteration)
    except DataError:
        if fetched or (shared and not context.store.fetch(row.folder, sha256)):
            raise
        context.observer.warned(f"{row.folder} was damaged; using the copy on the durable tier")
        actors.restore(row.folder, sha256, row.iteration, renew=True)


def check_environment(session: DriverSession, state: ControlState, restored: int) -> None:
    """Records an event in the lineage if the environment differs from that of the last commit.

    Raises `DriftError` if updates would be replayed in the changed environment, unless drift was accepted.
    """
    context = session.context
    differences = changes(state.environment, session.start.environment)
    if not differences:
        return
    replayed = state.iteration - restored
    said = "; ".join(
        f"{name}: {before or NOT_RECORDED} -> {now or NOT_RECORDED}" for name, (before, now) in differences.items()
    )
    if replayed and context.spec.exact and not context.accept_drift:
        raise DriftError(
            f"run {context.run}: {many(replayed, 'update')} must be replayed, but the environment has changed ({said}). "
            f"Restore it, or accept that the last bits may differ: `yatt resume {context.run} --accept-drift`"
        )
    context.observer.warned(f"the environment has changed: {said}")
    body = {"at": state.iteration, "replayed": replayed, "changes": {k: list(v) for k, v in differences.items()}}
    context.ledger.events.append(context.run, DRIFT, body, context.fence)


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Returns the facts that differ, each with its old and new value; a missing value is an empty string.

    A fact that commits of older versions of YATT did not record is no difference, unless its value is a new one, nor is one
    of vLLM that only one of the two has, nor how bfloat16 is multiplied once nothing multiplies it any more.
    """
    unknown = {name for name in before.keys() ^ now.keys() if name.startswith(NOT_EVERYWHERE)}
    unknown |= {
        name for name, value in BEFORE_RECORDED.items() if name not in now or before.get(name, value) == now[name]
    }
    names = sorted((before.keys() | now.keys()) - (NOT_YET_RECORDED - before.keys()) - unknown)
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def replay(session: DriverSession, iteration: int) -> None:
    """Repeats a committed update, or its skip. Raises `ReplayError` if the result differs from the commit."""
    context = session.context
    before, commit = (context.ledger.commits.at(context.run, i) for i in (iteration - 1, iteration))
    if before is None or commit is None:
        raise InfrastructureError(
            f"run {context.run}: iterations {iteration - 1} and {iteration} are not in the ledger"
        )
    # A fork has its own copies of its parent's iterations.
    preceding = state_after(context, before, commit.run, commit.branch)
    batch = committed_batch(session, preceding, commit.branch, iteration)
    task = batch_task(context, commit.branch, iteration, "learn", batch)
    if is_skipped(context, commit.run, commit.branch, iteration):
        receipt = session.actors.skip(task)
    else:
        then, now = commit.state["environment"].get("layout"), session.start.environment.get("layout")
        prepared = prepared_columns(session, commit.branch, iteration, batch, preceding, same_layout=then == now)
        receipt = session.actors.learn(task, prepared)
    _compare(context, commit, dict(receipt.fingerprint))


def _compare(context: RunContext, commit: CommitRow, found: dict[str, float | str]) -> None:
    if found == dict(commit.fingerprint):
        return
    said = (
        f"replaying update {commit.iteration} of run {context.run} gave {found}, but its commit has "
        f"{dict(commit.fingerprint)}: code, libraries, processor or layout differ from those of the original update"
    )
    if context.spec.exact and not context.accept_drift:
        raise ReplayError(said)
    log.warning("%s", said)
    context.observer.warned(said)
