"""The phases of an iteration, each a Prefect task: which room does the work, and what of it is recorded.

Every phase takes (segment, iteration, ...) and may be run again after a crash: what is already in the ledger is used, what is
not is done with the same keys and seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from db.commit import IterationCommit
from db.metrics import RESULT, TIMING, Metric
from db.records import DecisionRow
from flows.answers import is_skipped
from flows.attempts import phase, recorded_receipt
from flows.batches import batch_task, prepared_columns
from flows.experience import Experience, gather
from flows.metrics import (
    evaluation_metrics,
    experience_metrics,
    judge_metrics,
    learning_metrics,
    timing_metrics,
    tool_seconds,
)
from flows.placement import decide, drop_usage, note_work, record_outcome
from flows.protocols import IterationSummary
from flows.retention import prune_experience
from flows.segment import Segment
from flows.state import ControlState
from flows.storage import restore_kept
from flows.transport import book_sync, watch_transport
from yatt_core.controllers.sampling import sampling_metrics
from yatt_core.data.prepared import sweep_prepared
from yatt_core.data.shard_log import sweep
from yatt_core.data.telemetry import read_telemetry
from yatt_core.errors import DataError
from yatt_core.keys import iteration_folder
from yatt_core.placement.seen import Usage
from yatt_core.receipts import (
    EvaluateReceipt,
    PrepareReceipt,
    SyncReceipt,
    UpdateReceipt,
    WarmupReceipt,
)


@phase
def warm_up(segment: Segment, iteration: int) -> WarmupReceipt:
    """Brings the trainer to its initial policy and publishes that as snapshot 0, which a resumed run starts from."""
    done = recorded_receipt(segment, segment.branch, iteration, "warm_up", WarmupReceipt)
    kept = segment.snapshots.at(iteration)
    if done is not None and kept is not None:
        try:
            restore_kept(segment, kept)
        except DataError as error:
            segment.observer.warned(
                f"the snapshot of iteration {iteration} is damaged, the warm-up is done again: {error}"
            )
        else:
            return done
    receipt = segment.fleet.warm_up()
    segment.snapshots.begin(iteration)
    segment.snapshots.wait()
    return receipt


@phase
def place(segment: Segment, iteration: int, state: ControlState) -> DecisionRow:
    """Decides which role sits on which device, before it takes effect; a decision that is recorded already is obeyed."""
    drop_usage(segment)
    decision, conduct = decide(segment, iteration, state.placement)
    segment.fleet.place(str(decision.decision["start"]), conduct)
    return decision


@phase
def collect(segment: Segment, iteration: int, state: ControlState, decision: DecisionRow) -> Experience:
    """Has experience made and sealed, wave by wave; a shard or a wave that the ledger knows is not made again."""
    experience = gather(segment, iteration, state)
    segment.fleet.rest()
    note_work(segment, iteration, decision, experience)
    segment.start.book_losses()  # of controllers whose shards went to others
    watch_transport(segment)
    return experience


@phase
def prepare(segment: Segment, iteration: int, state: ControlState, experience: Experience) -> PrepareReceipt:
    """Has old and reference log-probabilities and advantages written, unless an earlier attempt left them whole."""
    return prepared_columns(segment, segment.branch, iteration, experience.batch, state.reward_moments)


@phase
def learn(segment: Segment, iteration: int, experience: Experience, prepared: PrepareReceipt) -> UpdateReceipt:
    """Has the trainer apply the iteration's optimizer steps, unless a recorded choice says that the update is skipped."""
    task = batch_task(segment, segment.branch, iteration, "learn", experience.batch)
    if is_skipped(segment, segment.run, segment.branch, iteration):
        return segment.fleet.skip(task)
    return segment.fleet.learn(task, prepared)


@phase
def sync(segment: Segment, iteration: int) -> list[SyncReceipt]:
    """Brings the new weights into the rollout engines, in place."""
    receipts = segment.fleet.sync(iteration)
    book_sync(segment, receipts)
    return receipts


@phase
def evaluate(segment: Segment, iteration: int) -> list[EvaluateReceipt]:
    """Answers the held-out tasks greedily."""
    return segment.fleet.evaluate(segment.run, iteration, segment.start.inputs.held_out_prompts)


@phase
def checkpoint(segment: Segment, iteration: int) -> None:
    """Copies the tensors; they are published in the background and the ledger's row may trail the commits."""
    if segment.snapshots.lacks(iteration):
        segment.snapshots.begin(iteration)


@phase
def commit_start(
    segment: Segment, iteration: int, state: ControlState, warm: WarmupReceipt, evaluation: list[EvaluateReceipt]
) -> ControlState:
    """Commits iteration 0."""
    metrics: list[Metric] = [
        Metric("warmup/steps", float(warm.steps), RESULT),
        Metric("warmup/probe_accuracy", warm.probe_accuracy, RESULT),
        Metric("warmup/seconds", warm.seconds, TIMING),
        *evaluation_metrics(evaluation),
    ]
    fingerprint = {"weights_digest": warm.weights_digest}
    after = _scored(replace(state, iteration=iteration, fingerprint=fingerprint), metrics)
    return _commit(segment, after, metrics, experience_digest=None)


@phase
def commit(
    segment: Segment,
    iteration: int,
    state: ControlState,
    decision: DecisionRow,
    experience: Experience,
    prepared: PrepareReceipt,
    update: UpdateReceipt,
    evaluation: list[EvaluateReceipt] | None,
) -> ControlState:
    """One transaction, after which the iteration is done: results, control state, outbox, audit link."""
    new_snapshot = segment.snapshots.collect()
    sums = experience.sums
    metrics = experience_metrics(sums) + learning_metrics(prepared, update)
    if segment.spec.samples_dynamically:
        metrics += [Metric(key, value, RESULT) for key, value in sampling_metrics(experience.sampling).items()]
    if evaluation is not None:
        metrics += evaluation_metrics(evaluation)
    seconds, elapsed = segment.seconds, segment.iteration_seconds()
    usage = record_outcome(segment, iteration, seconds)
    metrics += _collecting_metrics(segment, iteration, usage)
    metrics += timing_metrics(
        seconds, elapsed, sums["loss_tokens"], sums["samples"], segment.iteration_bytes(), segment.gauges
    )
    after = replace(
        state,
        iteration=iteration,
        cursor=experience.cursor,
        sampling_average=experience.sampling.average_now,
        fingerprint=dict(update.fingerprint),
        reward_moments=prepared.reward_moments,
        placement=decision.decision["state"],
    )
    committed = _commit(segment, _scored(after, metrics), metrics, experience.digest)
    # What killed attempts left of this iteration; nothing of it can be asked for any more.
    stays = [row.folder for row in experience.shards]
    sweep(segment.folder, segment.branch, iteration, stays)
    segment.store.sweep(str(iteration_folder(segment.branch, iteration)), stays, segment.fence.epoch)
    sweep_prepared(segment.folder, segment.branch, iteration, [prepared.folder])
    if new_snapshot:
        prune_experience(segment.ledger, segment.fence, segment.folder, segment.spec, segment.store)
    return committed


def _collecting_metrics(segment: Segment, iteration: int, usage: Sequence[Usage]) -> list[Metric]:
    """What tools and judges took, for runs that have them."""
    tools, judges = segment.spec.rollout.tools is not None, bool(segment.spec.rewards.judges)
    if not tools and not judges:
        return []
    telemetry = read_telemetry(segment.folder, segment.branch, iteration)
    return [*([tool_seconds(telemetry)] if tools else []), *(judge_metrics(telemetry, usage) if judges else [])]


def _scored(state: ControlState, metrics: Sequence[Metric]) -> ControlState:
    """The state with its best evaluation brought up to date; the earliest of equals stays."""
    accuracy = next((metric.value for metric in metrics if metric.key == "evaluation/accuracy"), None)
    if accuracy is None or (state.best is not None and state.best[0] >= accuracy):
        return state
    return replace(state, best=(accuracy, state.iteration))


def _commit(
    segment: Segment, state: ControlState, metrics: list[Metric], experience_digest: str | None
) -> ControlState:
    judged = segment.guards.judge(segment.branch, state.iteration, state.guards, metrics)
    after = replace(state, environment=segment.start.environment, guards=judged.since)
    digest = after.fingerprint.get("weights_digest")
    row = IterationCommit(
        branch=segment.branch,
        iteration=after.iteration,
        control_state=after.to_json(),
        logged_at_ms=segment.clock.time_ms(),
        experience_digest=experience_digest,
        weights_digest=None if digest is None else str(digest),
        fingerprint=after.fingerprint,
        metrics=metrics,
        outbox=judged.entries,
        alarms=judged.alarms,
        tracked=segment.spec.tracking.enabled,
    )
    segment.ledger.commits.commit(segment.fence, row)
    segment.guards.committed(judged)
    values = {metric.key: metric.value for metric in metrics}
    segment.observer.committed(
        IterationSummary(after.iteration, segment.spec.iterations, values, segment.iteration_seconds())
    )
    return after
