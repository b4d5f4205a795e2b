"""The phases of an iteration, each a Prefect task.

Every phase takes (session, iteration, ...) and may be repeated after a crash: it uses what is already in the ledger
and does the rest with the same keys and seeds. A phase blocks the driver; each docstring gives what the phase
consumes, what it waits for, and what unblocks it.
"""

from __future__ import annotations

from flows.driver.session import DriverSession
from flows.phases.attempts import phase, recorded_receipt, recording_phase
from flows.phases.batches import Batch, learn_task, prepared_columns
from flows.phases.evaluation import answer_held_out
from flows.phases.failure_policy import is_skipped
from flows.phases.gathering import Gathering, begin_gathering, finish_gathering
from flows.phases.placement import Placement, decide, discard_usage, keep_work, usage_of
from flows.phases.recovery import restore
from flows.phases.transport import collect_gauges, spill_warning
from flows.phases.turn import Collected
from flows.run.control_state import ControlState
from yatt_core.errors import DataError
from yatt_core.experience.telemetry import write_telemetry
from yatt_core.protocols.receipts import EvaluateReceipt, PrepareReceipt, SftReceipt, SyncReceipt, UpdateReceipt


@phase
def sft(session: DriverSession, iteration: int) -> SftReceipt:
    """Trains the initial policy and publishes it as checkpoint 0.

    Consumes: the run's inputs.
    Waits for: supervised fine-tuning on the trainer ranks, then the publication of the checkpoint.
    Unblocked by: a durable checkpoint; immediately, if an earlier attempt left one that can be loaded.
    """
    done = recorded_receipt(
        context=session.context, branch=session.context.branch, iteration=iteration, name="sft", kind=SftReceipt
    )
    kept = session.checkpoints.at(iteration)
    if done is not None and kept is not None:
        try:
            restore(session, kept)
        except DataError as error:
            session.context.observer.warned(
                f"the checkpoint of iteration {iteration} is damaged, repeating SFT: {error}"
            )
        else:
            return done
    receipt = session.actors.sft()
    session.checkpoints.begin(iteration)
    session.checkpoints.wait()
    return receipt


@recording_phase
def place(session: DriverSession, iteration: int, state: ControlState) -> Placement:
    """Decides which role each device has, and records the decision before it takes effect.

    Consumes: the placement policy's state after the last commit, and the work of past iterations.
    Waits for: the policy's plan, usually made while the trainer was learning.
    Unblocked by: the ledger, which returns the decision in force: if an earlier driver has recorded one, that one.
    """
    discard_usage(session)
    placement, runtime_policy = decide(session, iteration, state.placement)
    session.actors.place(str(placement.decision.decision["start"]), runtime_policy)
    if not placement.lends:
        keep_trainer_devices(session)
    return placement


def keep_trainer_devices(session: DriverSession) -> None:
    """Keeps the trainer's devices free for it, if they are lent at all."""
    if lent := session.context.spec.lent_instances:
        session.actors.keep_instances(lent)


def lend_trainer_devices(session: DriverSession, placement: Placement) -> None:
    """Has the trainer's devices generate, since it has learnt, unless the placement keeps them."""
    if session.context.spec.lent_instances and placement.lends:
        session.actors.keep_instances(())


@recording_phase
def collect(
    session: DriverSession, iteration: int, state: ControlState, placement: Placement, version: int
) -> Collected:
    """Has the controllers make and seal experience, wave by wave; keeps shards and waves already in the ledger.

    Consumes: the prompt cursor and sampling average from which the iteration goes on, the placement, the engines' weights,
    which are those of `version` unless nothing is left to sample.
    Waits for: the controllers' shards.
    Unblocked by: enough sealed shards in every wave, and a settled last wave.
    """
    return _collected(session, placement, begin_gathering(session, iteration, state, version))


@recording_phase
def begin_ahead(session: DriverSession, iteration: int, state: ControlState, version: int) -> Gathering:
    """Has the controllers begin with an iteration whose turn comes later; they go on while the trainer learns.

    Consumes: as `collect`.
    Waits for: nothing but the ledger.
    Unblocked by: calls to the controllers.
    """
    return begin_gathering(session, iteration, state, version)


@phase
def collect_ahead(session: DriverSession, iteration: int, placement: Placement, begun: Gathering) -> Collected:
    """Waits for what `begin_ahead` began; the trainer may be one version ahead of the last commit meanwhile.

    Consumes: the gathering that was begun, the placement, the engines' weights.
    Waits for: the controllers' shards.
    Unblocked by: enough sealed shards in every wave, and a settled last wave.
    """
    return _collected(session, placement, begun)


def _collected(session: DriverSession, placement: Placement, gathering: Gathering) -> Collected:
    iteration = gathering.iteration
    experience = finish_gathering(gathering)
    session.actors.rest()
    work = keep_work(session, iteration, placement, experience.shards)
    usage = usage_of(session, work)
    session.start.book_losses()  # controllers lost during the phase, whose shards went to others
    spilled = session.actors.spilled_bytes()
    if spilled:
        session.context.observer.warned(spill_warning(spilled))
    return Collected(
        experience=experience,
        version=gathering.version,
        work=work,
        usage=usage,
        gauges=collect_gauges(experience.peak_bytes, spilled),
    )


@phase
def prepare(session: DriverSession, iteration: int, state: ControlState, batch: Batch) -> PrepareReceipt:
    """Has the trainer write old and reference log-probabilities and advantages.

    Consumes: what the iteration learns from, and the reward moments and coefficients of the last commit.
    Waits for: every trainer rank.
    Unblocked by: the ranks' receipts; immediately, if the columns of an earlier attempt are intact.
    """
    return prepared_columns(
        session=session, branch=session.context.branch, iteration=iteration, batch=batch, before=state
    )


@phase
def learn(
    session: DriverSession, iteration: int, state: ControlState, batch: Batch, prepared: PrepareReceipt
) -> UpdateReceipt:
    """Has the trainer apply the iteration's optimizer steps, unless a recorded choice skips the update.

    Writes what the first rank took and read to a telemetry file.

    Consumes: what the iteration learns from, its prepared columns, and the reward moments of the last commit.
    Waits for: every trainer rank.
    Unblocked by: receipts of all ranks that agree on the result.
    """
    context = session.context
    task = learn_task(context=context, branch=context.branch, iteration=iteration, batch=batch, before=state)
    if is_skipped(context, context.run, context.branch, iteration):
        return session.actors.skip(task)
    receipt = session.actors.learn(task, prepared)
    write_telemetry(
        run_folder=context.folder,
        branch=context.branch,
        iteration=iteration,
        name=f"learn.t{context.fence.term:04d}",
        values=receipt.timing,
    )
    return receipt


@phase
def sync(session: DriverSession, iteration: int) -> list[SyncReceipt]:
    """Updates the weights of the rollout engines in place. Meanwhile the ranks begin to copy what a checkpoint needs.

    Consumes: the trainer's weights after the iteration.
    Waits for: the engines that hold another version.
    Unblocked by: their receipts, which are returned; immediately, if all engines hold this version.
    """
    if session.takes_checkpoint(iteration):
        session.checkpoints.copy_ahead(iteration)
    return session.actors.sync(iteration)


@phase
def evaluate(session: DriverSession, iteration: int) -> EvaluateReceipt:
    """Has the controllers answer the held-out tasks.

    Consumes: the engines' weights after the iteration, and the held-out prompts.
    Waits for: the controllers.
    Unblocked by: their receipts for all tasks, or for those that are answered when `evaluation.deadline` is over.
    """
    return answer_held_out(session, iteration)


@phase
def checkpoint(session: DriverSession, iteration: int) -> None:
    """Begins a checkpoint; it is published in the background, so its row may be written after later commits.

    Consumes: the trainer's tensors, or their copy that was begun while weights were sent.
    Waits for: the checkpoint in flight, if any.
    Unblocked by: the trainer's ranks, which copy and write beside everything that leaves their tensors unchanged.
    """
    if session.checkpoints.lacks(iteration):
        session.checkpoints.begin(iteration)
