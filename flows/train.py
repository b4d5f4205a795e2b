"""The training loop: a Prefect flow. Each of its flow runs is one driver session of a YATT run.

Consumes a run's name; everything else is in the ledger. Produces committed iterations. The driver may be killed at any
line: the next session continues from the last commit, keeps sealed experience, and replays updates from it bit for bit.

The phases of iteration k, in order:

    phase       runs on           consumes                              produces
    place       placement policy  control state k-1, past work          Placement: a recorded role for each device
    collect     controllers       control state k-1, Placement          Collected: sealed experience, device work
    prepare     trainer ranks     experience, reward moments            PrepareReceipt: log-probabilities, advantages
    learn       trainer ranks     experience, PrepareReceipt            UpdateReceipt: weights k on every rank
    sync        rollout engines   weights k                             SyncReceipts: engines updated in place
    evaluate    controllers       weights k, held-out prompts           EvaluateReceipts (if due)
    checkpoint  trainer ranks     weights k                             a checkpoint, in the background (if due)
    commit      ledger            control state k-1, all of the above   control state k: the iteration is done

With `asynchrony.lag` L, controllers collect iteration k + L (`begin_ahead`, `collect_ahead`) while the trainer learns from
iteration k, and engines hold weights k-1 until both are done. With `asynchrony.streamed`, ranks learn from shards of iteration
k, in the order of their numbers, while `collect` waits for the rest; `learn` then takes the step.
A run without controllers (`objective` over rows, `workload`) has no `place`; it has `collect` and `sync` only with samplers.
"""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run

from db.core.errors import LedgerUnavailable
from flows.driver.iteration_meter import IterationMeter
from flows.driver.outages import CLOSE
from flows.driver.run_status import SessionOutcome
from flows.driver.session import DriverSession
from flows.driver.session_claims import claimed_session
from flows.driver.stopping import StopNow
from flows.phases import rows
from flows.phases.ahead import finish_ahead, start_ahead, take_turn
from flows.phases.commit import IterationResults, commit, commit_start
from flows.phases.failure_policy import Paused, PhaseRetry
from flows.phases.flow_run_report import FlowRunReport, flow_run_report
from flows.phases.guard_rollback import roll_back
from flows.phases.links import publish_links
from flows.phases.recovery import recover, start
from flows.phases.tasks import checkpoint, evaluate, learn, prepare, sft, sync
from flows.reports.session_report import publish_reports
from flows.run.control_state import ControlState
from yatt_core.errors import AwayError


@flow(name="train", flow_run_name="{run}", retries=0, persist_result=False, validate_parameters=False)
def train(run: str) -> SessionOutcome:
    """Drives the run from its last commit towards its target; a stop request, a guard or a failure may end it early."""
    with claimed_session(run) as session:
        session.book(flow_run.get_id() or "", flow_run.get_name() or "")
        with flow_run_report(session) as report:
            publish_links(session.context, flow_run.get_id() or "", report.note)
            outcome = drive(session, report)
            report.conclude(outcome)
        publish_reports(session.context)
    return outcome


def drive(session: DriverSession, report: FlowRunReport) -> SessionOutcome:
    """Advances the run until its target, a stop request, or a failure that needs an operator.

    A failed phase leads back to the last commit; a guard may roll back further. What is away is waited for between two rounds,
    so that whatever fails meanwhile is dealt with as in any other round.
    """
    with session.profile.open():
        return _rounds(session, report)


def _rounds(session: DriverSession, report: FlowRunReport) -> SessionOutcome:
    state: ControlState | None = None
    silence: LedgerUnavailable | None = None
    pause: Paused | None = None
    failures = 0
    while True:
        if silence is not None:
            session.ledger_outage.wait(silence)
            silence = None
            state = None
        try:
            if pause is not None:
                return session.pause(str(pause))
            session.back_off(failures)
            failures = 0
            if (ending := session.outages.wait()) is not None:
                return session.conclude(ending)
            if state is not None and (roll_back(session, state) or session.must_restore(state)):
                state = None
            elif state is not None and not session.should_continue(state):
                return session.close(state)
            state = _round(session, report, state)
        except PhaseRetry as retry:
            state = None
            failures = retry.failures
        except AwayError as error:  # not in a phase, which has a policy of its own, but at the last checkpoint
            session.outages.found(error, CLOSE)
            state = None
        except LedgerUnavailable as error:
            silence = error
        except StopNow:
            assert state is not None, "recovery is not interruptible"
        except Paused as error:
            pause = error


def _round(session: DriverSession, report: FlowRunReport, state: ControlState | None) -> ControlState:
    """Advances the run, and tells Prefect."""
    report.before(state)
    after = advance(session, state)
    report.after(after)
    session.round_ended(after.iteration, is_iteration=state is not None and after.iteration > state.iteration)
    return after


def advance(session: DriverSession, state: ControlState | None) -> ControlState:
    """Returns the control state of the next commit.

    At the start, after a failure, or when nodes have joined or left, recovers the state of the last commit instead. A
    run without a commit only starts its actors.
    """
    if state is None or session.actors.outgrown():
        restore = recover if session.context.last_commit >= 0 else start
        return restore(session, session.context.committed_iteration).state
    session.begin_work()
    meter = IterationMeter.start(session.context.clock, session.meter)
    first, each = (begin, iterate) if session.context.spec.has.controllers else (begin_with_rows, iterate_over_rows)
    return first(session, state, meter) if state.iteration < 0 else each(session, state, meter)


def begin(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """Runs iteration 0: trains the initial policy (SFT), publishes it as checkpoint 0, evaluates and commits it."""
    fine_tuned = sft(session, 0)
    sync(session, 0)
    evaluation = evaluate(session, 0)
    return commit_start(session, 0, state=state, fine_tuned=fine_tuned, evaluation=evaluation, meter=meter)


def iterate(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """Runs the next iteration, phase by phase.

    Consumes: the control state of the last commit.
    Waits for: each phase in turn, and for what is collected ahead. A checkpoint is written in the background from `sync` on.
    Unblocked by: the ledger's confirmation of the commit, after which the iteration is never repeated.
    """
    iteration = state.iteration + 1
    turn = take_turn(session, state)
    begun = start_ahead(session, state)
    prepared = prepare(session, iteration, state, turn.batch)
    update = learn(session, iteration, state=state, batch=turn.batch, prepared=prepared)
    in_flight = finish_ahead(session, state, begun)
    synced = sync(session, iteration)
    evaluation = evaluate(session, iteration) if session.evaluates(iteration) else None
    if session.takes_checkpoint(iteration):
        checkpoint(session, iteration)
    results = IterationResults(
        turn=turn, in_flight=in_flight, prepared=prepared, update=update, synced=synced, evaluation=evaluation
    )
    return commit(session, iteration, state=state, results=results, meter=meter)


def begin_with_rows(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """Runs iteration 0 of a run without controllers: publishes the initial model as checkpoint 0, evaluates, commits it."""
    initial = sft(session, 0)
    rows.update_samplers(session, 0)
    evaluation = rows.evaluate(session, 0)
    return rows.commit_start(session, 0, state=state, initial=initial, evaluation=evaluation, meter=meter)


def iterate_over_rows(session: DriverSession, state: ControlState, meter: IterationMeter) -> ControlState:
    """Runs the next iteration of a run without controllers; the contract is that of `iterate`."""
    iteration = state.iteration + 1
    drawn = rows.gather(session, state)
    prepared = prepare(session, iteration, state, drawn)
    update = learn(session, iteration, state=state, batch=drawn, prepared=prepared)
    rows.update_samplers(session, iteration)
    evaluation = rows.evaluate(session, iteration) if session.evaluates(iteration) else None
    if session.takes_checkpoint(iteration):
        checkpoint(session, iteration)
    results = rows.RowsResults(drawn, prepared, update, evaluation)
    return rows.commit(session, iteration, state=state, results=results, meter=meter)
