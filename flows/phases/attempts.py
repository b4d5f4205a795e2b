"""Phases as Prefect tasks with our own accounting: attempts are recorded before dispatch, and failures use up a budget.

Prefect's own retries are off, since Prefect's counters are lost with the flow run. A failed phase raises `PhaseRetry`
to return to the last commit, `Paused` if an operator is needed, and otherwise the original error, which ends the
session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from uuid import uuid4

from prefect import State, Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import StateDetails, TaskRun, TaskRunPolicy
from prefect.context import FlowRunContext
from prefect.states import Pending
from prefect.task_engine import run_task
from prefect.utilities.annotations import opaque
from prefect.utilities.callables import get_call_parameters
from pydantic import TypeAdapter

from db.write.phases import Attempt
from flows.driver.context import RunContext
from flows.driver.session import DriverSession
from flows.driver.stopping import StopNow
from flows.phases.failure_policy import handle_failure
from flows.run.control_state import Recovered
from flows.run.evaluations import TASKS
from flows.run.profile_record import DRIVER
from yatt_core.errors import FencedError, YattError
from yatt_core.logs import log_context, redact
from yatt_core.protocols.receipts import (
    EvaluateReceipt,
    PrepareReceipt,
    RecoverReceipt,
    SftReceipt,
    SyncReceipt,
    TaskResult,
)
from yatt_core.spent_time import OTHER, PREFECT, spent

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("yatt_core.flow")
adapter_of: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)
"""Returns what converts values of a type to JSON values and back. Made once: that takes longer than a phase's bookkeeping."""
KEPT_RECEIPTS = (SftReceipt, PrepareReceipt, RecoverReceipt)
SYNCED = "engines"
"""Key of the receipts of `sync`, one for each engine that received weights."""
STOPPED = "stopped"
"""Failure class of an attempt that was abandoned because the session had to end; charged to no budget."""


class PhaseTask(Task[..., Any]):
    """A Prefect task whose time is named in the session's profile: what the body does not take is Prefect's.

    Its task runs begin in the state Running. A task run that Prefect makes says before that it is pending, which costs driver and
    server as much as any other state, and a phase runs as soon as it is called.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the task: a function of (session, iteration, ...)."""
        session, iteration, *others = args
        # Prefect would look for results of other tasks in everything that the parameters contain, three times.
        unseen = [opaque(each) for each in others]
        named = {key: opaque(each) for key, each in kwargs.items()}
        parameters = get_call_parameters(self.fn, (opaque(session), iteration, *unseen), named)
        with spent(PREFECT, self.name):
            return run_task(task=self, task_run=self._task_run(iteration), parameters=parameters)

    def _task_run(self, iteration: int) -> TaskRun:
        """Returns a new task run of the current flow run, if there is one; the server hears of it with its first state."""
        parent = FlowRunContext.get()
        flow_run = None if parent is None or parent.flow_run is None else parent.flow_run.id
        number = uuid4()
        state: State[Any] = Pending(state_details=StateDetails(task_run_id=number, flow_run_id=flow_run))
        return TaskRun(
            id=number,
            name=f"{self.name} {iteration}",
            flow_run_id=flow_run,
            task_key=self.task_key,
            dynamic_key=str(number),
            task_version=self.version,
            empirical_policy=TaskRunPolicy(retries=0, retry_delay=0),
            expected_start_time=state.timestamp,
            state_id=state.id,
            state_type=state.type,
            state_name=state.name,
            state=state,
            created=state.timestamp,
            updated=state.timestamp,
        )


def phase(body: Callable[Concatenate[DriverSession, int, P], R]) -> Callable[Concatenate[DriverSession, int, P], R]:
    """Turns a function of (session, iteration, ...) into a phase of the same name.

    Receipts that recovery needs are kept in the ledger with the attempt.
    """
    return _phase(body, records_first=False)


def recording_phase(
    body: Callable[Concatenate[DriverSession, int, P], R],
) -> Callable[Concatenate[DriverSession, int, P], R]:
    """Turns a function into a phase in which nothing is done before a durable record of the ledger.

    The record is the plan of the iteration's first wave, or its commit. The intent of the first attempt becomes durable with
    it, and does not wait for the disk on its own. Later attempts may find the record there, and do.
    """
    return _phase(body, records_first=True)


def _phase(
    body: Callable[Concatenate[DriverSession, int, P], R], records_first: bool
) -> Callable[Concatenate[DriverSession, int, P], R]:
    name = body.__name__

    @spent(OTHER, DRIVER)
    def attempted(session: DriverSession, iteration: int, *args: P.args, **kwargs: P.kwargs) -> R:
        session.threads.check()
        session.context.observer.phase_started(iteration, name)
        attempt = session.context.ledger.phases.plan(session.context.fence, session.context.branch, iteration, name)
        is_first = attempt.number == 1 and iteration > session.begun_until
        waits = not (records_first and is_first)
        session.context.ledger.phases.dispatch(session.context.fence, attempt, synced=waits)
        started = session.context.clock.monotonic()
        bytes_before = session.meter.total
        session.actors.deadline = session.deadlines.of(name)
        session.threads.allow(session.actors.deadline, f"{name} of iteration {iteration}")
        try:
            with (
                log_context(iteration=iteration, phase=name),
                session.guards.phase(
                    branch=session.context.branch,
                    iteration=iteration,
                    name=name,
                    attempt=attempt.number,
                    deadline=session.actors.deadline,
                ),
                session.stops.phase(name),
                session.tracing.phase(session.context.branch, iteration, name, attempt.number),
            ):
                result = body(session, iteration, *args, **kwargs)
        except FencedError:
            raise
        except StopNow:
            session.context.ledger.phases.fail(session.context.fence, attempt, STOPPED, "the session had to end")
            raise
        except YattError as error:
            _fail(session.context, attempt, error)
            handle_failure(session, iteration, name, error)
            raise
        seconds = session.context.clock.monotonic() - started
        session.outages.over(name)
        session.deadlines.took(name, seconds)
        driver_bytes = session.meter.total - bytes_before
        session.context.ledger.phases.finish(
            fence=session.context.fence,
            attempt=attempt,
            receipt=receipt_json(result),
            seconds=seconds,
            bytes_to_driver=driver_bytes,
        )
        session.ledger_outage.over()
        return result

    attempted.__name__ = name
    attempted.__doc__ = body.__doc__
    prefect_task: Any = PhaseTask(
        fn=attempted,
        name=name,
        retries=0,
        cache_policy=NO_CACHE,
        persist_result=False,
        log_prints=False,
    )
    return prefect_task  # type: ignore[no-any-return]


def _fail(context: RunContext, attempt: Attempt, error: YattError) -> None:
    reason = redact(str(error))
    log.error("%s of iteration %d failed: %s", attempt.phase, attempt.iteration, reason)
    context.ledger.phases.fail(context.fence, attempt, error.failure_class.value, reason)


def receipt_json(result: Any) -> dict[str, Any]:
    """Returns a receipt as plain JSON values; empty if neither recovery nor accounting nor a reader needs it."""
    receipt = result.receipt if isinstance(result, Recovered) else result
    if isinstance(receipt, list) and all(isinstance(each, SyncReceipt) for each in receipt):
        return {SYNCED: adapter_of(list[SyncReceipt]).dump_python(receipt, mode="json")} if receipt else {}
    if isinstance(receipt, EvaluateReceipt):
        return {TASKS: adapter_of(tuple[TaskResult, ...]).dump_python(receipt.tasks, mode="json")}
    if not isinstance(receipt, KEPT_RECEIPTS):
        return {}
    dumped: dict[str, Any] = adapter_of(type(receipt)).dump_python(receipt, mode="json")
    return dumped


def recorded_receipt(context: RunContext, branch: int, iteration: int, name: str, kind: type[R]) -> R | None:
    """Returns the recorded receipt of a finished phase; None if it has not finished."""
    row = context.ledger.phases.done(context.run, branch, iteration, name)
    return None if row is None else cast(R, adapter_of(kind).validate_python(row.receipt))
