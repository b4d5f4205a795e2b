"""Restores the state of the run's last commit: from live actors if they still hold it, else by checkpoint and replay.

state(k) = control state of commit k + tensors of the newest good checkpoint s <= k + replay of updates s+1 .. k. Replay
writes no metrics and runs no evaluation; each replayed update must reproduce the fingerprint recorded in its commit.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from db.write.commit import CommitRow
from db.write.records import CheckpointRow
from flows.driver.checkpoints import other_weights
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.files.storage import fetch_sealed
from flows.phases.attempts import phase, recorded_receipt
from flows.phases.batches import committed_batch, learn_task, prepared_columns
from flows.phases.experience import has_damage, is_gathered, rebuild_shards
from flows.phases.failure_policy import CURSOR, is_skipped, obey_rollback
from flows.phases.needed_shards import BranchIteration, Damage, lagging_damage, sliced_damage
from flows.phases.placement import begin_planning
from flows.phases.waves import planned_waves
from flows.run.control_state import ControlState, Recovered
from yatt_core.counting import many
from yatt_core.engine_environments import VLLM
from yatt_core.engines.environment import BFLOAT16_PRODUCTS, ROLLOUT_BITS, WORKLOAD_PACKAGE
from yatt_core.errors import DataError, DriftError, InfrastructureError, ReplayError
from yatt_core.experience.sampled import sweep_sampled
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor
from yatt_core.protocols.receipts import PrepareReceipt, RecoverReceipt
from yatt_core.run_actors.actors_state import ActorsState

log = logging.getLogger("yatt_core.flow")
DRIFT = "drift"
NOT_RECORDED = "not recorded"
NOT_YET_RECORDED = frozenset({"tokenizers", ROLLOUT_BITS, WORKLOAD_PACKAGE})
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
    session.ahead = {}
    session.begun_until = last_begun(context, state)
    standing, receipt = make_ready(session, state)
    held = what_is_held(session, state, standing)
    session.trainer_is_ahead = held is not Held.TOO_LITTLE and standing.trainer_version > state.iteration
    if held is not Held.TOO_LITTLE:
        if held is Held.ALL:
            _sync(session, standing.trainer_version)
            check_weights(session, standing.trainer_version)
        return Recovered(state, receipt)
    loading = context.clock.monotonic()
    restored, damaged = restore_for(session, state)
    replaying = context.clock.monotonic()
    check_environment(session, state, restored)
    rebuild_sampled_under(session, damaged, restored)
    for update in range(restored + 1, state.iteration + 1):
        session.threads.check()
        session.threads.allow(2 * session.actors.deadline, f"the replay of update {update}")
        context.observer.stage(f"replaying update {update} of {state.iteration}")
        replay(session, update)
        rebuild_sampled_under(session, damaged, update)
    ended = context.clock.monotonic()
    _sync(session, state.iteration)
    check_weights(session, state.iteration)
    replayed = state.iteration - restored
    log.info("restored checkpoint %d and replayed %d updates", restored, replayed)
    receipt = replace(receipt, restore_seconds=replaying - loading, replay_seconds=ended - replaying)
    return Recovered(state, replace(receipt, restored=restored, replayed=replayed))


def _sync(session: DriverSession, version: int) -> None:
    """Brings the engines to a version, if the run's workload has engines that get weights."""
    if session.context.spec.has.sync:
        session.actors.sync(version)


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
        if session.start.is_exact and not context.accept_drift:
            raise
        log.warning("%s", error)
        context.observer.warned(str(error))
        session.actors.check_weights(version, None)


def make_ready(session: DriverSession, state: ControlState) -> tuple[ActorsState, RecoverReceipt]:
    """Starts the missing actors; returns what the actors hold, and the receipt of a recovery that restores nothing."""
    context = session.context
    started = context.clock.monotonic()
    begin_planning(session, max(state.iteration, 0) + 1, state.placement)
    standing = session.start.ready()
    session.threads.deliver()
    for iteration in open_iterations(session, state):
        fetch_sealed(context.store, context.folder, context.branch, iteration)
    warm = not any(name.startswith("trainer") for name in standing.created)
    return standing, RecoverReceipt(
        restored=None,
        replayed=0,
        warm=warm,
        start_seconds=context.clock.monotonic() - started,
        restore_seconds=0.0,
        replay_seconds=0.0,
    )


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
    if (commit.run, commit.branch) != (run, branch):
        # What was collected ahead belongs to the line that it was collected for; what is in flight is drawn anew.
        anew = tuple(group.anew(state.iteration + 1) for group in state.carried)
        state = replace(state, in_flight=(), carried=anew)
    choices = context.ledger.records.choices(run, branch, state.iteration + 1)
    if CURSOR in choices:
        # The line goes on without the prompts that led to it, whether new or in flight.
        return replace(state, cursor=Cursor.from_json(choices[CURSOR].body["cursor"]), carried=())
    return state


class Held(Enum):
    """What live actors hold of the state of the last commit.

    ALL: the trainer has its weights or those of the next update, and nothing is left to be sampled under older ones.
    WAITING: the trainer has those of the next update, and the engines still those of the last commit, under which something is
        left to be sampled; they must not take newer ones before.
    TOO_LITTLE: a checkpoint has to be restored.
    """

    ALL = "all"
    WAITING = "waiting"
    TOO_LITTLE = "too little"


def last_begun(context: RunContext, state: ControlState) -> int:
    """Returns the last iteration after a commit of which the ledger knows a wave; the commit's own if there is none."""
    number = state.iteration
    while planned_waves(context, context.branch, number + 1):
        number += 1
    return number


def open_iterations(session: DriverSession, state: ControlState) -> range:
    """Returns the iterations after the last commit that are, or will be, collected under its weights or older ones."""
    last = state.ahead(session.context.spec) or state.iteration + 1
    return range(state.iteration + 1, max(last, session.begun_until) + 1)


def what_is_held(session: DriverSession, state: ControlState, standing: ActorsState) -> Held:
    """Returns what the actors hold of the state of the last commit.

    If the trainer has learnt already, the update's inputs must be intact. What was collected ahead must be in either case, since
    it was sampled under weights that are older.
    """
    context = session.context
    if any(has_damage(context, context.branch, entry.iteration) for entry in state.in_flight):
        return Held.TOO_LITTLE
    if sliced_damage(context, state, state.iteration):
        return Held.TOO_LITTLE
    if standing.trainer_version == state.iteration:
        return Held.ALL
    following = state.iteration + 1
    if standing.trainer_version != following:
        return Held.TOO_LITTLE
    if standing.trainer_key != WorkKey(context.run, context.branch, following, "learn"):
        return Held.TOO_LITTLE
    if session.ends_at_commit:
        return Held.TOO_LITTLE
    prepared = recorded_receipt(
        context=context, branch=context.branch, iteration=following, name="prepare", kind=PrepareReceipt
    )
    if not is_gathered(context, following) or prepared is None or not session.actors.prepared_is_whole(prepared):
        return Held.TOO_LITTLE
    if all(is_gathered(context, number) for number in open_iterations(session, state) if number != following):
        return Held.ALL
    engines_wait = all(version == state.iteration for version in standing.engine_versions)
    return Held.WAITING if engines_wait else Held.TOO_LITTLE


def restore_for(session: DriverSession, state: ControlState) -> tuple[int, dict[BranchIteration, Damage]]:
    """Loads the newest intact checkpoint from which the last commit can be reached; returns its iteration.

    Also returns the damaged experience that is needed on the way, was collected ahead or is in flight. Of experience that was
    sampled under older weights than those before its update, the checkpoint must be old enough for it to be made again.
    """
    newest = state.iteration
    while True:
        restored = restore_newest(session, newest)
        damaged = lagging_damage(session.context, state, restored)
        oldest = min((each.version for each in damaged.values()), default=restored)
        if oldest >= restored:
            return restored, damaged
        newest = oldest


def rebuild_sampled_under(session: DriverSession, damaged: Mapping[BranchIteration, Damage], version: int) -> None:
    """Has the experience made again that was sampled under a version, which the trainer holds now, in order of iteration."""
    for (branch, iteration), each in sorted(damaged.items(), key=lambda item: item[0][1]):
        if each.version == version:
            rebuild_shards(session=session, branch=branch, iteration=iteration, version=version, only=each.only)


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
    context = session.context
    actors = session.actors
    shared = actors.files.are_shared
    sha256 = row.manifest_sha256
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
    of_updates = differences.keys() - {ROLLOUT_BITS}  # an update is repeated from responses that are durable
    if replayed and of_updates and session.start.is_exact and not context.accept_drift:
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
    version = ControlState.from_json(commit.state).sampled_under
    batch = committed_batch(
        session=session, before=preceding, branch=commit.branch, iteration=iteration, sampled_under=version
    )
    task = learn_task(context=context, branch=commit.branch, iteration=iteration, batch=batch, before=preceding)
    if is_skipped(context, commit.run, commit.branch, iteration):
        receipt = session.actors.skip(task)
    else:
        then = commit.state["environment"].get("layout")
        now = session.start.environment.get("layout")
        prepared = prepared_columns(
            session=session,
            branch=commit.branch,
            iteration=iteration,
            batch=batch,
            before=preceding,
            same_layout=then == now,
        )
        # What samplers have drawn once more is in the columns.
        sweep_sampled(context.folder, commit.branch, iteration)
        receipt = session.actors.learn(task, prepared)
    _compare(session, commit, dict(receipt.fingerprint))


def _compare(session: DriverSession, commit: CommitRow, found: dict[str, float | str]) -> None:
    context = session.context
    if found == dict(commit.fingerprint):
        return
    said = (
        f"replaying update {commit.iteration} of run {context.run} gave {found}, but its commit has "
        f"{dict(commit.fingerprint)}: code, libraries, processor or layout differ from those of the original update"
    )
    if session.start.is_exact and not context.accept_drift:
        raise ReplayError(said)
    log.warning("%s", said)
    context.observer.warned(said)
