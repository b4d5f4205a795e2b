"""The phases that only a run without controllers has: one that learns from rows of its data, or a workload of one's own.

Such a run has no `place`, and its trainer evaluates: its iterations prepare, learn, evaluate, checkpoint and commit. If it has
samplers, its iterations also have `collect`, in which they draw before the ranks prepare, and `sync`, which gives them the
weights that the ranks have learnt.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from db.write.metrics import RESULT, Metric
from db.write.outbox import OutboxEntry
from flows.driver.iteration_meter import IterationMeter
from flows.driver.session import DriverSession
from flows.phases.attempts import phase, recording_phase
from flows.phases.batches import DrawnRows, draw_rows, recorded_columns
from flows.phases.commit import clear_up, write_commit
from flows.phases.evaluation_tables import keep_tables
from flows.phases.image_sheets import sheet_entries
from flows.phases.metrics import learning_metrics, timing_metrics
from flows.phases.process_gauges import process_gauges
from flows.phases.sampling import sampled_shards
from flows.phases.tasks import sync
from flows.run.control_state import ControlState
from yatt_core.evaluation.row_figures import row_figures
from yatt_core.protocols.receipts import PrepareReceipt, RowsReceipt, SftReceipt, UpdateReceipt
from yatt_core.workloads.columns import COLUMNS_DIGEST


@dataclass(frozen=True, slots=True)
class RowsResults:
    """The results of an iteration's phases.

    evaluation: None if none was due.
    """

    rows: DrawnRows
    prepared: PrepareReceipt
    update: UpdateReceipt
    evaluation: RowsReceipt | None


def gather(session: DriverSession, state: ControlState) -> DrawnRows:
    """Returns what the next iteration learns from; if the run has samplers, they have sampled it."""
    drawn = draw_rows(session.context, state.cursor)
    return collect(session, state.iteration + 1, drawn) if session.context.spec.has.samplers else drawn


def update_samplers(session: DriverSession, iteration: int) -> None:
    """Gives the samplers the weights after an iteration, if the run has any."""
    if session.context.spec.has.samplers:
        sync(session, iteration)


@phase
def collect(session: DriverSession, iteration: int, drawn: DrawnRows) -> DrawnRows:
    """Has the samplers draw and seal what the iteration learns from; keeps what is sealed.

    Consumes: the iteration's draw, and the weights of the last commit.
    Waits for: the samplers' shards.
    Unblocked by: the last of them that is sealed; immediately, if the columns of an earlier attempt at `prepare` are intact.
    """
    context = session.context
    done = recorded_columns(context, context.branch, iteration)
    if done is not None and session.actors.prepared_is_whole(done):
        return drawn
    return replace(drawn, shards=sampled_shards(session, context.branch, iteration, drawn.rows))


@phase
def evaluate(session: DriverSession, iteration: int) -> RowsReceipt:
    """Has the trainer score the held-out rows.

    Consumes: the trainer's weights after the iteration, and the held-out rows.
    Waits for: every trainer rank.
    Unblocked by: the ranks' receipts.
    """
    return session.actors.evaluate_rows(session.context.run, iteration)


@phase
def commit_start(
    session: DriverSession,
    iteration: int,
    state: ControlState,
    initial: SftReceipt,
    evaluation: RowsReceipt,
    meter: IterationMeter,
) -> ControlState:
    """Commits iteration 0."""
    after = replace(state, iteration=iteration, fingerprint={"weights_digest": initial.weights_digest})
    session.profile.hear(session.actors.process_use())
    return write_commit(
        session=session,
        state=after,
        metrics=_results(row_figures(evaluation)),
        experience_digest=None,
        meter=meter,
        outbox=keep_tables(session.context, evaluation),
    )


@recording_phase
def commit(
    session: DriverSession, iteration: int, state: ControlState, results: RowsResults, meter: IterationMeter
) -> ControlState:
    """Commits an iteration: results, control state, outbox rows and audit link, all or nothing.

    Consumes: the control state of the last commit and the results of every phase.
    Waits for: the ledger.
    Unblocked by: the ledger's confirmation of the transaction. Returns the control state that was committed.
    """
    context = session.context
    update = results.update
    session.actors.ask_use()
    new_checkpoint = session.checkpoints.collect()
    seconds = context.ledger.phases.seconds(context.run, context.branch, iteration)
    after = replace(
        state, iteration=iteration, cursor=results.rows.cursor, fingerprint=dict(results.update.fingerprint)
    )
    metrics = learning_metrics(results.prepared, update)
    outbox: list[OutboxEntry] = []
    if results.evaluation is not None:
        metrics += _results(row_figures(results.evaluation))
        outbox = [*keep_tables(context, results.evaluation), *sheet_entries(context, results.prepared)]
    without = 0.0 if context.spec.has.language_model else None
    tokens = update.metrics.get("tokens", without)
    rows = float(len(results.rows.rows))
    used = session.actors.process_use()
    session.profile.hear(used)
    gauges = {**session.machine.read(), **process_gauges(used), **session.billing.gauges(), **session.waited}
    metrics += timing_metrics(
        seconds=seconds,
        iteration_seconds=meter.seconds,
        tokens=tokens,
        samples=rows,
        driver_bytes=meter.driver_bytes,
        gauges=gauges,
    )
    # Rows are named by the cursor; columns are drawn or sampled, and sealed.
    learnt = update.fingerprint.get(COLUMNS_DIGEST) if context.spec.has.learns_from == "columns" else None
    committed = write_commit(
        session=session,
        state=after,
        metrics=metrics,
        experience_digest=None if learnt is None else str(learnt),
        meter=meter,
        outbox=outbox,
    )
    session.accounted()
    clear_up(session=session, iteration=iteration, shards=[], prepared=results.prepared, new_checkpoint=new_checkpoint)
    return committed


def _results(values: Mapping[str, float]) -> list[Metric]:
    return [Metric(key, value, RESULT) for key, value in sorted(values.items())]
