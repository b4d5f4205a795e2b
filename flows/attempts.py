"""A phase as a Prefect task with our own accounting: intent before dispatch, budgets charged in the ledger.

Prefect's retries are 0, since its counters die with the flow run. A phase that fails within its budget raises `PhaseRetry`,
which takes the flow back to the last commit; beyond it, the error itself ends the segment.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from pydantic import TypeAdapter

from flows.segment import Segment
from yatt_core.errors import FailureClass, FencedError, YattError
from yatt_core.logs import log_context, redact
from yatt_core.receipts import PrepareReceipt, WarmupReceipt

P = ParamSpec("P")
R = TypeVar("R")
log = logging.getLogger("yatt_core.flow")
KEPT_RECEIPTS = (WarmupReceipt, PrepareReceipt)


class PhaseRetry(Exception):
    """A phase failed and its budget is not used up: recover to the last commit and go on."""


def phase(body: Callable[Concatenate[Segment, int, P], R]) -> Callable[Concatenate[Segment, int, P], R]:
    """Makes a phase of a function of (segment, iteration, ...); its name is the function's.

    The receipts that recovery needs are kept in the ledger with the attempt.
    """
    name = body.__name__

    def attempted(segment: Segment, iteration: int, *args: P.args, **kwargs: P.kwargs) -> R:
        segment.check()
        segment.observer.phase_started(iteration, name)
        attempt = segment.ledger.phases.plan(segment.fence, segment.branch, iteration, name)
        segment.ledger.phases.dispatch(segment.fence, attempt)
        started, bytes_before = time.monotonic(), segment.meter.total
        with log_context(iteration=iteration, phase=name):
            try:
                result = body(segment, iteration, *args, **kwargs)
            except FencedError:
                raise
            except YattError as error:
                reason = redact(str(error))
                log.error("%s of iteration %d failed: %s", name, iteration, reason)
                segment.ledger.phases.fail(segment.fence, attempt, error.failure_class.value, reason)
                if within_budget(segment, iteration, name, error.failure_class):
                    segment.observer.warned(f"{name} of iteration {iteration} failed and is tried again: {reason}")
                    raise PhaseRetry(reason) from error
                raise
        seconds = time.monotonic() - started
        segment.seconds[name] = seconds
        driver_bytes = segment.meter.total - bytes_before
        segment.ledger.phases.finish(segment.fence, attempt, receipt_json(result), seconds, driver_bytes)
        return result

    attempted.__name__, attempted.__doc__ = name, body.__doc__
    prefect_task: Any = task(
        name=name,
        task_run_name=f"{name} {{iteration}}",
        retries=0,
        cache_policy=NO_CACHE,
        persist_result=False,
        log_prints=False,
    )(attempted)
    return prefect_task  # type: ignore[no-any-return]


def within_budget(segment: Segment, iteration: int, name: str, failure: FailureClass) -> bool:
    """True if the phase may be tried again after one more failure of this class."""
    budgets = segment.spec.recovery.budgets
    allowed = {
        FailureClass.INFRASTRUCTURE: budgets.infrastructure,
        FailureClass.DATA: budgets.data,
        FailureClass.NUMERIC: budgets.numeric,
    }.get(failure, 1)
    charged = segment.ledger.phases.charged(segment.run, segment.branch, iteration, name)
    return charged.get(failure.value, 0) < allowed


def receipt_json(result: Any) -> dict[str, Any]:
    """A receipt as plain JSON values; empty for what recovery does not need."""
    if not isinstance(result, KEPT_RECEIPTS):
        return {}
    dumped: dict[str, Any] = TypeAdapter(type(result)).dump_python(result, mode="json")
    return dumped


def recorded_receipt(segment: Segment, branch: int, iteration: int, name: str, kind: type[R]) -> R | None:
    """The receipt of a phase that was finished before; none if it was not."""
    row = segment.ledger.phases.done(segment.run, branch, iteration, name)
    return None if row is None else TypeAdapter(kind).validate_python(row.receipt)
