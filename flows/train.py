"""The training loop: a Prefect flow, one run of which is one session of a YATT run.

Consumes a run's name; everything else is in the ledger. Produces committed iterations. Killed at any line, the next session
goes on behind the last commit: experience that is sealed is not made again, updates are replayed from it bit for bit.

    place      placement policy   -> which role sits on which device (a recorded decision)
    collect    controllers        -> sealed experience of every logical shard
    prepare    trainer ranks      -> old and reference log-probabilities, advantages
    learn      trainer ranks      -> weights of the next version
    sync       rollout engines    <- weights, in place
    evaluate   controllers        -> held-out accuracy, when due
    checkpoint trainer rank 0     -> checkpoint in the background, when due
    commit     ledger             -> one transaction; after it, the iteration is done
"""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run

from db.core.errors import LedgerUnavailable
from flows.driver.iteration_meter import IterationMeter
from flows.driver.run_status import Outcome
from flows.driver.session import DriverSession
from flows.driver.session_claims import claimed_session
from flows.driver.stopping import StopNow
from flows.phases import artifacts
from flows.phases.commit import IterationResults, commit, commit_start
from flows.phases.failure_policy import Paused, PhaseRetry
from flows.phases.guard_rollback import roll_back
from flows.phases.recovery import recover
from flows.phases.tasks import checkpoint, collect, evaluate, learn, place, prepare, sft, sync
from flows.run.control_state import ControlState


@flow(name="train", flow_run_name="{run}", retries=0, persist_result=False, validate_parameters=False)
def train(run: str) -> Outcome:
    """Takes the run's lease, goes on behind its last commit, and ends at its target, at a stop request or at a failure."""
    with claimed_session(run) as session:
        session.book(flow_run.get_id() or "", flow_run.get_name() or "")
        with artifacts.progress(session.context) as progress:
            outcome = drive(session, progress)
        artifacts.report(session.context, outcome)
    return outcome


def drive(session: DriverSession, progress: artifacts.Progress) -> Outcome:
    """Goes on until the target, a stop request, or what only a person can answer.

    A failure leads back to the last commit, a guard perhaps further.
    """
    state: ControlState | None = None
    while True:
        try:
            if state is not None and roll_back(session, state):
                state = None
            elif state is not None and not session.goes_on(state):
                return session.close(state)
            state = advance(session, state)
            progress.update(state.iteration)
        except PhaseRetry:
            state = None
        except LedgerUnavailable as error:
            session.await_ledger(error)
            state = None
        except StopNow:
            assert state is not None, "a recovery is not left in the middle"
        except Paused as paused:
            return session.pause(str(paused))


def advance(session: DriverSession, state: ControlState | None) -> ControlState:
    """Returns the next state: one iteration further.

    At the start, after a failure, and where nodes have come or gone, it is the last commit's, recovered from the ledger.
    """
    if state is None or session.actors.outgrown():
        return recover(session, session.context.committed_iteration).state
    meter = IterationMeter.start(session.context.clock, session.meter)
    return begin(session, state, meter) if state.iteration < 0 else iterate(session, state, meter)


def begin(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """Iteration 0: the policy before the first update, warmed up, kept as a checkpoint and measured."""
    warm = sft(session, 0)
    sync(session, 0)
    evaluation = evaluate(session, 0)
    return commit_start(session, 0, state, warm, evaluation, meter)


def iterate(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """One iteration: every phase in order, ended by its commit."""
    iteration = state.iteration + 1
    placement = place(session, iteration, state)
    collected = collect(session, iteration, state, placement)
    prepared = prepare(session, iteration, state, collected.experience)
    update = learn(session, iteration, collected.experience, prepared)
    synced = sync(session, iteration)
    evaluation = evaluate(session, iteration) if session.evaluates(iteration) else None
    if session.takes_checkpoint(iteration):
        checkpoint(session, iteration)
    results = IterationResults(placement, collected, prepared, update, synced, evaluation)
    return commit(session, iteration, state, results, meter)
