"""The training loop: a Prefect flow, one run of which is one segment of a YATT run.

Consumes a run's name; everything else is in the ledger. Produces committed iterations. Killed at any line, the next segment
goes on behind the last commit: experience that is sealed is not made again, updates are replayed from it bit for bit.

    place      placement policy   -> which role sits on which device (a recorded decision)
    collect    controllers        -> sealed experience of every logical shard
    prepare    trainer ranks      -> old and reference log-probabilities, advantages
    learn      trainer ranks      -> weights of the next version
    sync       rollout engines    <- weights, in place
    evaluate   controllers        -> held-out accuracy, when due
    checkpoint trainer rank 0     -> snapshot in the background, when due
    commit     ledger             -> one transaction; after it, the iteration is done
"""

from __future__ import annotations

from prefect import flow
from prefect.runtime import flow_run

from db.errors import LedgerUnavailable
from flows import artifacts
from flows.answers import Paused, PhaseRetry
from flows.claims import claimed_segment
from flows.guard_answers import roll_back
from flows.phases import checkpoint, collect, commit, commit_start, evaluate, learn, place, prepare, sync, warm_up
from flows.recovery import recover
from flows.segment import Outcome, Segment
from flows.state import ControlState
from flows.stopping import StopNow


@flow(name="train", flow_run_name="{run}", retries=0, persist_result=False, validate_parameters=False)
def train(run: str) -> Outcome:
    """Takes the run's lease, goes on behind its last commit, and ends at its target, at a stop request or at a failure."""
    with claimed_segment(run) as segment:
        segment.book(flow_run.get_id() or "", flow_run.get_name() or "")
        with artifacts.progress(segment) as progress:
            outcome = drive(segment, progress)
        artifacts.report(segment, outcome)
    return outcome


def drive(segment: Segment, progress: artifacts.Progress) -> Outcome:
    """Goes on until the target, a stop request, or what only a person can answer.

    A failure leads back to the last commit, a guard perhaps further.
    """
    state: ControlState | None = None
    while True:
        try:
            if state is not None and roll_back(segment, state):
                state = None
            elif state is not None and not segment.goes_on(state):
                return segment.close(state)
            state = advance(segment, state)
            progress.update(state.iteration)
        except PhaseRetry:
            state = None
        except LedgerUnavailable as error:
            segment.await_ledger(error)
            state = None
        except StopNow:
            assert state is not None, "a recovery is not left in the middle"
        except Paused as paused:
            return segment.pause(str(paused))


def advance(segment: Segment, state: ControlState | None) -> ControlState:
    """The next state: recovered from the ledger, at the start, after a failure, and where nodes have come or gone; else one
    iteration further.
    """
    if state is None or segment.fleet.outgrown():
        after = recover(segment, segment.committed_iteration()).state
    elif state.iteration < 0:
        after = begin(segment, state)
    else:
        after = iterate(segment, state)
    segment.restart_clock()
    return after


def begin(segment: Segment, state: ControlState) -> ControlState:
    """Iteration 0: the policy before the first update, warmed up, kept as a snapshot and measured."""
    warm = warm_up(segment, 0)
    sync(segment, 0)
    return commit_start(segment, 0, state, warm, evaluate(segment, 0))


def iterate(segment: Segment, state: ControlState) -> ControlState:
    """One iteration: every phase in order, ended by its commit."""
    iteration = state.iteration + 1
    decision = place(segment, iteration, state)
    experience = collect(segment, iteration, state, decision)
    prepared = prepare(segment, iteration, state, experience)
    update = learn(segment, iteration, experience, prepared)
    sync(segment, iteration)
    evaluation = evaluate(segment, iteration) if segment.evaluates(iteration) else None
    if segment.takes_snapshot(iteration):
        checkpoint(segment, iteration)
    return commit(segment, iteration, state, decision, experience, prepared, update, evaluation)
