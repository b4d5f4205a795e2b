"""What an iteration learns from, as a task for the trainer, shared by the loop and by replay.

It is sealed experience or, in a run without controllers, the next rows of its data or the next draw of its workload, with the
shards that samplers have sealed if it has any.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from db.write.events import COLUMNS_REGENERATED
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.phases.attempts import recorded_receipt
from flows.phases.experience import sealed_batch
from flows.phases.sampling import sampled_shards
from flows.phases.sealed_groups import SealedBatch
from flows.run.control_state import ControlState
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Cursor, draw
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, PromptRef, ShardRef
from yatt_core.tracing.calls import call_term


@dataclass(frozen=True, slots=True)
class DrawnRows:
    """Rows of the run's data to learn from, or the draw of a workload of one's own.

    cursor: the position after them.
    shards: what samplers have drawn for the iteration, of a workload of one's own; empty if its ranks sample, or nobody has yet.
    """

    rows: tuple[PromptRef, ...]
    cursor: Cursor
    shards: tuple[ShardRef, ...] = ()


Batch = SealedBatch | DrawnRows


def draw_rows(context: RunContext, cursor: Cursor) -> DrawnRows:
    """Returns the next rows of the run's stream; nothing has to be kept, since they are a function of the cursor."""
    return DrawnRows(*draw(context.spec.data, context.spec.seed, cursor, context.spec.data.prompts_per_iteration))


def committed_batch(
    session: DriverSession, before: ControlState, branch: int, iteration: int, sampled_under: int
) -> Batch:
    """Returns what a committed iteration has learned from. Consumes the control state before it."""
    if session.context.spec.has.learns_from == "shards":
        return sealed_batch(session, branch, iteration, sampled_under)
    return draw_rows(session.context, before.cursor)


def batch_task(context: RunContext, branch: int, iteration: int, name: str, batch: Batch) -> BatchTask:
    """Builds the trainer's task for a phase over what an iteration learns from."""
    key = WorkKey(context.run, branch, iteration, name)
    if isinstance(batch, DrawnRows):
        return BatchTask(key, call_term(context.fence.term), batch.shards, rows=batch.rows)
    return BatchTask(key, call_term(context.fence.term), batch.shards, batch.admission)


def learn_task(context: RunContext, branch: int, iteration: int, batch: Batch, before: ControlState) -> BatchTask:
    """Builds the trainer's task of an update. before: the control state of the last commit before the iteration."""
    task = batch_task(context=context, branch=branch, iteration=iteration, name="learn", batch=batch)
    return replace(task, reward_moments=before.reward_moments)


def recorded_columns(context: RunContext, branch: int, iteration: int) -> PrepareReceipt | None:
    """Returns the receipt of an earlier `prepare` of an iteration, whose files may be damaged; None if there is none."""
    return recorded_receipt(context=context, branch=branch, iteration=iteration, name="prepare", kind=PrepareReceipt)


def prepared_columns(
    session: DriverSession,
    branch: int,
    iteration: int,
    batch: Batch,
    before: ControlState,
    same_layout: bool = True,
) -> PrepareReceipt:
    """Returns the columns of an earlier attempt at `prepare`; recomputes them if they are missing or damaged, says so, and adds
    a link to the audit chain that names both folders.

    before: the control state of the last commit before the iteration.
    same_layout: whether the trainer's ranks are laid out as when the columns were written. If not, the columns are
        recomputed, since each rank stores only its own part of them.
    """
    context = session.context
    done = recorded_columns(context, branch, iteration)
    if done is not None and same_layout and session.actors.prepared_is_whole(done):
        return done
    is_lost = done is not None and same_layout
    if done is not None and is_lost:
        context.observer.warned(f"{done.folder} is damaged or missing; making these columns again")
    task = batch_task(context=context, branch=branch, iteration=iteration, name="prepare", batch=batch)
    if context.spec.has.samplers and not task.shards:
        task = replace(task, shards=sampled_shards(session, branch, iteration, task.rows))
    made = session.actors.prepare(replace(task, reward_moments=before.reward_moments, coefficients=before.coefficients))
    if done is not None and is_lost:
        body = {
            "branch": branch,
            "iteration": iteration,
            "term": context.fence.term,
            "lost": {"folder": done.folder},
            "made": {"folder": made.folder, "files": dict(made.files), "images": made.images},
        }
        context.ledger.events.append(context.run, COLUMNS_REGENERATED, body, context.fence)
    return made
