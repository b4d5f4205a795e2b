"""The commit of an iteration: one transaction, after which the iteration is done.

Consumes the results of the phases. Produces metrics, the next control state, and the commit in the ledger with its
outbox rows, alarms and audit-chain link; then prunes files that are no longer needed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from db.write.commit import IterationCommit
from db.write.metrics import RESULT, TIMING, Metric
from db.write.outbox import OutboxEntry
from flows.driver.context import RunContext
from flows.driver.iteration_meter import IterationMeter
from flows.driver.session import DriverSession
from flows.files.retention import prune_experience
from flows.phases.attempts import phase, recording_phase
from flows.phases.metrics import (
    device_metrics,
    endpoint_metrics,
    evaluation_metrics,
    experience_metrics,
    hidden_seconds,
    judge_metrics,
    learning_metrics,
    slice_metrics,
    staleness_metrics,
    tail_metrics,
    timing_metrics,
    tool_seconds,
)
from flows.phases.placement import record_outcome
from flows.phases.process_gauges import process_gauges
from flows.phases.transport import sync_gauges
from flows.phases.turn import Turn
from flows.run.control_state import ControlState, InFlight
from flows.run.protocols import IterationSummary
from yatt_core.actors.leftovers import CommittedIteration, Leftovers
from yatt_core.engines.train.steps.coefficients import adapted
from yatt_core.experience.dynamic_sampling import sampling_metrics
from yatt_core.experience.prepared import sweep_prepared
from yatt_core.experience.sampled import sweep_sampled
from yatt_core.experience.shard_log import sweep
from yatt_core.experience.telemetry import read_telemetry
from yatt_core.keys import iteration_folder
from yatt_core.protocols.receipts import EvaluateReceipt, PrepareReceipt, SftReceipt, SyncReceipt, UpdateReceipt
from yatt_core.spent_time import DATA, spent


@dataclass(frozen=True, slots=True)
class IterationResults:
    """The results of an iteration's phases.

    turn: the placement, and what was collected.
    in_flight: what is collected ahead.
    evaluation: None if none was due.
    """

    turn: Turn
    in_flight: tuple[InFlight, ...]
    prepared: PrepareReceipt
    update: UpdateReceipt
    synced: Sequence[SyncReceipt]
    evaluation: EvaluateReceipt | None


@phase
def commit_start(
    session: DriverSession,
    iteration: int,
    state: ControlState,
    fine_tuned: SftReceipt,
    evaluation: EvaluateReceipt,
    meter: IterationMeter,
) -> ControlState:
    """Commits iteration 0."""
    metrics: list[Metric] = [
        Metric("sft/steps", float(fine_tuned.steps), RESULT),
        Metric("sft/probe_accuracy", fine_tuned.probe_accuracy, RESULT),
        Metric("sft/seconds", fine_tuned.seconds, TIMING),
        *evaluation_metrics(evaluation, session.context.spec),
    ]
    after = replace(state, iteration=iteration, fingerprint={"weights_digest": fine_tuned.weights_digest})
    session.profile.hear(session.actors.process_use())
    return write_commit(session=session, state=after, metrics=metrics, experience_digest=None, meter=meter)


@recording_phase
def commit(
    session: DriverSession, iteration: int, state: ControlState, results: IterationResults, meter: IterationMeter
) -> ControlState:
    """Commits an iteration: results, control state, outbox rows and audit link, all or nothing.

    Consumes: the control state of the last commit and the results of every phase.
    Waits for: the ledger.
    Unblocked by: the ledger's confirmation of the transaction. Returns the control state that was committed.
    """
    context = session.context
    experience = results.turn.collected.experience
    session.actors.ask_use()
    new_checkpoint = session.checkpoints.collect()
    seconds = context.ledger.phases.seconds(context.run, context.branch, iteration)
    record_outcome(context, iteration, seconds, results.turn.collected.work)
    after = replace(
        state,
        iteration=iteration,
        cursor=experience.cursor,
        sampling_average=experience.sampling.average_now,
        fingerprint=dict(results.update.fingerprint),
        reward_moments=results.prepared.reward_moments,
        coefficients=adapted(context.spec, state.coefficients, {**results.prepared.metrics, **results.update.metrics}),
        placement=results.turn.placement.decision.decision["state"],
        sampled_under=results.turn.collected.version,
        in_flight=results.in_flight,
        carried=() if experience.sliced is None else experience.sliced.slicing.carried,
        learnt_lengths=state.learnt_lengths.after(
            () if experience.sliced is None else experience.sliced.slicing.learnt
        ),
    )
    metrics = [
        *_result_metrics(session.context, iteration, results),
        *(tail_metrics(after.learnt_lengths, after.carried) if context.spec.tail is not None else ()),
        *_timing_metrics(session=session, iteration=iteration, results=results, seconds=seconds, meter=meter),
    ]
    committed = write_commit(
        session=session, state=after, metrics=metrics, experience_digest=experience.digest, meter=meter
    )
    session.accounted()
    clear_up(
        session=session,
        iteration=iteration,
        shards=[row.folder for row in experience.shards],
        prepared=results.prepared,
        new_checkpoint=new_checkpoint,
    )
    return committed


def _result_metrics(context: RunContext, iteration: int, results: IterationResults) -> list[Metric]:
    """Returns the metrics of class result: functions of (spec, data, seed, iteration)."""
    experience = results.turn.collected.experience
    metrics = experience_metrics(experience.sums) + learning_metrics(results.prepared, results.update)
    if experience.cursor.curriculum is not None:
        metrics += [Metric(key, value, RESULT) for key, value in sorted(experience.cursor.curriculum.metrics().items())]
    if context.spec.samples_dynamically or len(experience.sampling.outcomes) > 1:
        metrics += [Metric(key, value, RESULT) for key, value in sampling_metrics(experience.sampling).items()]
    if experience.sliced is not None:
        metrics += slice_metrics(iteration - 1, experience.sliced.slicing, experience.sliced.facts)
    elif context.spec.asynchrony.lag:
        metrics += staleness_metrics(iteration - 1, {results.turn.collected.version: 1})
    if results.evaluation is not None:
        metrics += evaluation_metrics(results.evaluation, context.spec)
    return metrics


def _timing_metrics(
    session: DriverSession,
    iteration: int,
    results: IterationResults,
    seconds: Mapping[str, float],
    meter: IterationMeter,
) -> list[Metric]:
    """Returns the metrics of class timing."""
    context = session.context
    collected = results.turn.collected
    sums = collected.experience.sums
    used = session.actors.process_use()
    session.profile.hear(used)
    gauges = {
        **collected.gauges,
        **sync_gauges(results.synced),
        **session.machine.read(),
        **process_gauges(used),
        **session.billing.gauges(),
        **session.waited,
        **hidden_seconds(results.prepared),
    }
    metrics = timing_metrics(
        seconds=seconds,
        iteration_seconds=meter.seconds,
        tokens=sums["loss_tokens"],
        samples=sums["samples"],
        driver_bytes=meter.driver_bytes,
        gauges=gauges,
    )
    tools = context.spec.rollout.tools is not None
    judges = bool(context.spec.rewards.judges)
    if tools or judges:
        telemetry = read_telemetry(context.folder, context.branch, iteration)
        metrics += [tool_seconds(telemetry)] if tools else []
        metrics += [*judge_metrics(telemetry, collected.usage), *endpoint_metrics(telemetry)] if judges else []
    return metrics + device_metrics(collected.usage)


def write_commit(
    session: DriverSession,
    state: ControlState,
    metrics: list[Metric],
    experience_digest: str | None,
    meter: IterationMeter,
    outbox: Sequence[OutboxEntry] = (),
) -> ControlState:
    """Judges the metrics and writes the transaction. Returns the control state that was committed.

    outbox: rows for trackers, beside those of the guards and of the metrics.
    """
    context = session.context
    judged = session.guards.judge(context.branch, state.iteration, state.guards, metrics)
    after = replace(state, best=_best(state, metrics), environment=session.start.environment, guards=judged.since)
    digest = after.fingerprint.get("weights_digest")
    row = IterationCommit(
        branch=context.branch,
        iteration=after.iteration,
        control_state=after.to_json(),
        logged_at_ms=context.clock.time_ms(),
        experience_digest=experience_digest,
        weights_digest=None if digest is None else str(digest),
        fingerprint=after.fingerprint,
        metrics=metrics,
        outbox=[*judged.entries, *outbox],
        alarms=judged.alarms,
        trackers=context.spec.tracking.names,
    )
    context.ledger.commits.commit(context.fence, row)
    session.guards.committed(judged)
    values = {metric.key: metric.value for metric in metrics}
    context.observer.committed(IterationSummary(after.iteration, session.goal, values, meter.seconds))
    return after


def _best(state: ControlState, metrics: Sequence[Metric]) -> tuple[float, int] | None:
    """Returns the best evaluation so far, as accuracy and iteration; the earliest wins a tie."""
    accuracy = next((metric.value for metric in metrics if metric.key == "evaluation/accuracy"), None)
    if accuracy is None or (state.best is not None and state.best[0] >= accuracy):
        return state.best
    return accuracy, state.iteration


def clear_up(
    session: DriverSession, iteration: int, shards: Sequence[str], prepared: PrepareReceipt, new_checkpoint: bool
) -> None:
    """Removes the leftovers of killed attempts at a committed iteration, and what a new checkpoint makes superfluous.

    shards: folders of the iteration's shards.
    """
    context = session.context
    with spent(DATA, "sweep"):
        sweep(context.folder, context.branch, iteration, shards)
        context.store.sweep(str(iteration_folder(context.branch, iteration)), shards, context.fence.term)
        sweep_prepared(context.folder, context.branch, iteration, [prepared.folder])
        sweep_sampled(context.folder, context.branch, iteration)
    done = CommittedIteration(context.branch, iteration, (*shards, prepared.folder))
    session.actors.tidy(Leftovers(committed=done))
    if new_checkpoint:
        elsewhere = session.actors.tidy
        with spent(DATA, "prune"):
            prune_experience(
                ledger=context.ledger,
                fence=context.fence,
                run_folder=context.folder,
                spec=context.spec,
                store=context.store,
                elsewhere=elsewhere,
            )
