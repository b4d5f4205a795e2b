"""The phases of an iteration, each a Prefect task: which room does the work, and what of it is recorded.

Every phase takes (session, iteration, ...) and may be run again after a crash: what is already in the ledger is used, what is
not is done with the same keys and seeds.
"""

from __future__ import annotations

from flows.driver.session import DriverSession
from flows.phases.attempts import phase, recorded_receipt
from flows.phases.batches import batch_task, prepared_columns
from flows.phases.commit import Collected
from flows.phases.experience import Experience, gather
from flows.phases.failure_policy import is_skipped
from flows.phases.placement import Placement, decide, discard_usage, keep_work
from flows.phases.recovery import restore
from flows.phases.transport import collect_gauges, spill_warning
from flows.run.control_state import ControlState
from yatt_core.errors import DataError
from yatt_core.protocols.receipts import EvaluateReceipt, PrepareReceipt, SftReceipt, SyncReceipt, UpdateReceipt


@phase
def sft(session: DriverSession, iteration: int) -> SftReceipt:
    """Brings the trainer to its initial policy and publishes that as checkpoint 0, which a resumed run starts from."""
    done = recorded_receipt(session.context, session.context.branch, iteration, "sft", SftReceipt)
    kept = session.checkpoints.at(iteration)
    if done is not None and kept is not None:
        try:
            restore(session, kept)
        except DataError as error:
            session.context.observer.warned(
                f"the checkpoint of iteration {iteration} is damaged, SFT is done again: {error}"
            )
        else:
            return done
    receipt = session.actors.sft()
    session.checkpoints.begin(iteration)
    session.checkpoints.wait()
    return receipt


@phase
def place(session: DriverSession, iteration: int, state: ControlState) -> Placement:
    """Decides which role sits on which device, before it takes effect; a decision that is recorded already is obeyed."""
    discard_usage(session)
    placement, runtime_policy = decide(session, iteration, state.placement)
    session.actors.place(str(placement.decision.decision["start"]), runtime_policy)
    return placement


@phase
def collect(session: DriverSession, iteration: int, state: ControlState, placement: Placement) -> Collected:
    """Has experience made and sealed, wave by wave; a shard or a wave that the ledger knows is not made again."""
    experience = gather(session, iteration, state)
    session.actors.rest()
    work = keep_work(session, iteration, placement, experience.shards)
    session.start.book_losses()  # of controllers whose shards went to others
    spilled = session.actors.spilled_bytes()
    if spilled:
        session.context.observer.warned(spill_warning(spilled))
    return Collected(experience, work, collect_gauges(experience.peak_bytes, spilled))


@phase
def prepare(session: DriverSession, iteration: int, state: ControlState, experience: Experience) -> PrepareReceipt:
    """Has old and reference log-probabilities and advantages written, unless an earlier attempt left them whole."""
    return prepared_columns(session, session.context.branch, iteration, experience.batch, state.reward_moments)


@phase
def learn(session: DriverSession, iteration: int, experience: Experience, prepared: PrepareReceipt) -> UpdateReceipt:
    """Has the trainer apply the iteration's optimizer steps, unless a recorded choice says that the update is skipped."""
    context = session.context
    task = batch_task(context, context.branch, iteration, "learn", experience.batch)
    if is_skipped(context, context.run, context.branch, iteration):
        return session.actors.skip(task)
    return session.actors.learn(task, prepared)


@phase
def sync(session: DriverSession, iteration: int) -> list[SyncReceipt]:
    """Brings the new weights into the rollout engines, in place."""
    return session.actors.sync(iteration)


@phase
def evaluate(session: DriverSession, iteration: int) -> list[EvaluateReceipt]:
    """Answers the held-out tasks greedily."""
    return session.actors.evaluate(session.context.run, iteration, session.start.inputs.held_out_prompts)


@phase
def checkpoint(session: DriverSession, iteration: int) -> None:
    """Copies the tensors; they are published in the background and the ledger's row may trail the commits."""
    if session.checkpoints.lacks(iteration):
        session.checkpoints.begin(iteration)
