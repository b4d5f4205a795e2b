"""An iteration's experience as a task for the trainer, shared by the loop and by replay."""

from __future__ import annotations

from dataclasses import replace

from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.attempts import recorded_receipt
from flows.phases.experience import SealedBatch
from flows.run.control_state import ControlState
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt


def batch_task(context: RunContext, branch: int, iteration: int, name: str, batch: SealedBatch) -> BatchTask:
    """Builds the trainer's task for a phase over an iteration's experience."""
    key = WorkKey(context.run, branch, iteration, name)
    return BatchTask(key, context.fence.term, batch.shards, batch.admission)


def prepared_columns(
    session: DriverSession,
    branch: int,
    iteration: int,
    batch: SealedBatch,
    before: ControlState,
    same_layout: bool = True,
) -> PrepareReceipt:
    """Returns the columns of an earlier attempt at `prepare`; recomputes them if they are missing or damaged.

    before: the control state of the last commit before the iteration.
    same_layout: whether the trainer's ranks are laid out as when the columns were written. If not, the columns are
        recomputed, since each rank stores only its own part of them.
    """
    done = recorded_receipt(session.context, branch, iteration, "prepare", PrepareReceipt)
    if done is not None and same_layout and session.actors.prepared_is_whole(done):
        return done
    task = batch_task(session.context, branch, iteration, "prepare", batch)
    return session.actors.prepare(replace(task, reward_moments=before.reward_moments, coefficients=before.coefficients))
