"""Calls reward functions under their time limit, and turns whatever happens into outcomes.

Consumes a `RewardFunction` and the candidates of its calls. Produces one `RewardOutcome` for each candidate. Runs in the main
thread of the reward process.
"""

from __future__ import annotations

import asyncio
import functools
import math
import numbers
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from yatt_core.errors import InfrastructureError, UnreadableResponseError
from yatt_core.installed import error_place, failure_text
from yatt_core.rewards.conventions import Candidate, RewardFunction, Unasked
from yatt_core.rewards.idle_time import IdleTime
from yatt_core.rewards.time_limit import TimeLimitReached, call_within

LARGEST = 1e30
"""Maximum absolute value that a part may add to the total: squares and sums of such rewards stay finite in float64,
and their advantages stay finite in float32."""

RAISED = "raised"
TIME_LIMIT = "time_limit"
PROCESS = "process"
VALUE = "value"
SERVICE = "service"
"""Causes of failures: the function raised, took too long, ended its process, returned no usable value, or said that a service
that it needs does not answer."""


@dataclass(frozen=True, slots=True)
class RewardOutcome:
    """The value that a part gave a response.

    reason: why the value was set to 0 instead of being computed by the part; empty if the part computed it.
    failed: whether the part is at fault, rather than the response.
    cause: of a failure, or of an absent value: one of a few words by which they are counted.
    absent: whether the part has no value without having failed, as a judge that gave no score.
    place: `file:line` of the exception; empty if there was none.
    wrong_steps: the numbers of the wrong steps, from 1, of a function that takes steps.
    asked: whether the function may have asked a service for the value (`conventions.Unasked`).
    """

    value: float
    reason: str = ""
    failed: bool = False
    place: str = ""
    cause: str = ""
    absent: bool = False
    wrong_steps: tuple[int, ...] = ()
    asked: bool = True

    @property
    def failed_for_good(self) -> bool:
        """Whether it is no use to make the call again."""
        return self.failed and self.cause != SERVICE


_USUAL = {field.name: field.default for field in fields(RewardOutcome) if field.name != "value"}


def plain_outcome(outcome: RewardOutcome) -> dict[str, Any]:
    """Returns an outcome as JSON values: its value, and what is not as usual."""
    unusual = {name: found for name, usual in _USUAL.items() if (found := getattr(outcome, name)) != usual}
    return {"value": outcome.value, **unusual}


def outcome_of(plain: Mapping[str, Any]) -> RewardOutcome:
    """Returns the outcome of which `plain_outcome` returned the values."""
    if "wrong_steps" in plain:
        return RewardOutcome(**{**plain, "wrong_steps": tuple(plain["wrong_steps"])})
    return RewardOutcome(**plain)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What bounds the calls of a part.

    seconds: time limit of a call.
    weight: the part's weight, which a value must not overflow.
    concurrency: maximum number of calls of a coroutine function at once.
    """

    seconds: float
    weight: float
    concurrency: int = 1


IDLE_PRECISION = 0.01
"""Seconds by which measured idle time may be short of a time limit that has passed."""

Call = Sequence[Candidate]
"""The candidates of one call."""


def evaluate(function: RewardFunction, call: Call, limits: CallLimits) -> list[RewardOutcome]:
    """Returns the outcomes of one call."""
    try:
        return call_within(limits.seconds, functools.partial(made, function, call, limits.weight))
    except TimeLimitReached as reached:
        place = error_place(reached)
        return [broken(too_long(limits.seconds), TIME_LIMIT, function.blames_response, place)] * len(call)


async def evaluate_concurrently(
    function: RewardFunction, calls: Sequence[Call], limits: CallLimits, idle: IdleTime
) -> AsyncGenerator[tuple[int, list[RewardOutcome]], None]:
    """Yields each call's index and outcomes as the calls of a coroutine function end.

    A call has exceeded its time limit if it does so in idle time of the loop, or when it is alone: while other calls
    keep the loop busy, it cannot run.

    idle: the selector of the running loop.
    """
    free = asyncio.Semaphore(limits.concurrency)
    late = list[int]()

    async def one(index: int) -> tuple[int, tuple[list[RewardOutcome], bool]]:
        async with free:
            return index, await _awaited(function, calls[index], limits, idle if len(calls) > 1 else None)

    tasks = [asyncio.create_task(one(index)) for index in range(len(calls))]
    try:
        for ended in asyncio.as_completed(tasks):
            index, (outcomes, doubtful) = await ended
            if doubtful:
                late.append(index)
            else:
                yield index, outcomes
        for index in sorted(late):
            yield index, (await _awaited(function, calls[index], limits))[0]
    finally:
        for task in tasks:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)


def too_long(seconds: float) -> str:
    """Returns the reason of a call that exceeded its time limit."""
    return f"took longer than {seconds:g} s"


def broken(reason: str, cause: str, blames_response: bool, place: str = "") -> RewardOutcome:
    """Returns the outcome of a call that took too long or ended its process. cause: `TIME_LIMIT` or `PROCESS`."""
    if blames_response:
        return RewardOutcome(0.0, f"cannot read the response: {reason}")
    return _failed(reason, cause, place)


def made(function: RewardFunction, call: Call, weight: float) -> list[RewardOutcome]:
    """Returns the outcomes of one call without a time limit.

    Runs all user code: the function, and the methods of what it returns or raises.
    """
    try:
        return _outcomes(function, function(call), call, weight)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a failure of the user's function
        return _failure(error, call)


async def _awaited(
    function: RewardFunction, call: Call, limits: CallLimits, idle: IdleTime | None = None
) -> tuple[list[RewardOutcome], bool]:
    """Returns the outcomes of a call, and whether it ended too late, but may have had to wait for other calls.

    idle: the selector of the loop if there are other calls.
    """
    place = ""
    began = time.monotonic()
    try:
        async with asyncio.timeout(None if idle else limits.seconds) as limit:
            with _expiring(limit, limits.seconds, idle) if idle else nullcontext():
                outcomes = _outcomes(function, await function(call), call, limits.weight)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a failure of the user's function
        outcomes = _failure(error, call)
        place = error_place(error)
    late = time.monotonic() - began > limits.seconds
    if late or limit.expired():  # also if the call has caught the cancellation
        outcomes = [broken(too_long(limits.seconds), TIME_LIMIT, function.blames_response, place)] * len(call)
    return outcomes, late and idle is not None and not limit.expired()


@contextmanager
def _expiring(limit: asyncio.Timeout, seconds: float, idle: IdleTime) -> Iterator[None]:
    """Lets a time limit expire as soon as the loop has been idle for so long."""
    loop = asyncio.get_running_loop()
    end = idle.seconds + seconds
    timer: asyncio.TimerHandle

    def check() -> None:
        nonlocal timer
        left = end - idle.seconds
        if left <= IDLE_PRECISION:
            limit.reschedule(loop.time())
        else:
            timer = loop.call_later(left, check)

    timer = loop.call_later(seconds, check)
    try:
        yield
    finally:
        timer.cancel()


def _failure(error: BaseException, call: Call) -> list[RewardOutcome]:
    if isinstance(error, InfrastructureError):
        return [_failed(str(error), SERVICE, error_place(error))] * len(call)
    if isinstance(error, UnreadableResponseError):
        return [RewardOutcome(0.0, f"cannot read the response: {error}")] * len(call)
    return [_failed(f"raised {failure_text(error)}", RAISED, error_place(error))] * len(call)


def _failed(reason: str, cause: str, place: str = "") -> RewardOutcome:
    return RewardOutcome(0.0, reason, failed=True, cause=cause, place=place)


def _outcomes(function: RewardFunction, value: Any, call: Call, weight: float) -> list[RewardOutcome]:
    if function.takes_steps:
        return [as_critique(value, len(call[0].steps))]
    if function.unit == "response":
        return [as_outcome(value, weight)]
    if isinstance(value, np.ndarray):
        value = list(value)
    if not isinstance(value, list | tuple) or len(value) != len(call):
        found = f"{len(value)} values" if isinstance(value, list | tuple) else type(value).__name__
        return [_failed(f"returned {found}, not a list of {len(call)} numbers", VALUE)] * len(call)
    return [as_outcome(one, weight) for one in value]


def as_critique(value: Any, steps: int) -> RewardOutcome:
    """Returns the outcome of a function that returned which steps are wrong; a failure unless it did so for each."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple) or not all(isinstance(one, bool | np.bool_) for one in value):
        return _failed(f"returned {type(value).__name__}, not a list of booleans", VALUE)
    if len(value) != steps:
        return _failed(f"returned {len(value)} booleans for {steps} steps", VALUE)
    wrong = tuple(number for number, is_wrong in enumerate(value, start=1) if is_wrong)
    return RewardOutcome(float(len(wrong)), wrong_steps=wrong)


def as_outcome(value: Any, weight: float) -> RewardOutcome:
    """Returns the outcome of a function that returned a value; a failure unless that is a usable number."""
    if not isinstance(value, numbers.Real | np.bool_):
        return _failed(f"returned {type(value).__name__}, not a number", VALUE)
    try:
        number = float(value)
    except OverflowError:  # raised for integers and fractions
        reason = f"returned a number beyond float64; a reward times its weight may be at most {LARGEST:g}"
        return _failed(reason, VALUE)
    if not math.isfinite(number):
        return _failed(f"returned {number}, not a finite number", VALUE)
    if max(abs(number), abs(number * weight)) > LARGEST:
        reason = f"returned {number:g} with weight {weight:g}; a reward may be at most ±{LARGEST:g}, before and after weighting"
        return _failed(reason, VALUE)
    return RewardOutcome(number, asked=not isinstance(value, Unasked))
