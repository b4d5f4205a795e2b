"""Scores responses: calls every part's function under its time limit and handles failures.

Consumes the spec's rewards, a prompt, a response, and the judges' values for it. Produces the values of the
parts, their weighted sum and, for parts that may fail, the reasons for failures. Runs in the main thread of a
controller's process.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from yatt_core.errors import DataError, InfrastructureError, UnreadableResponseError
from yatt_core.installed import failure_text
from yatt_core.prompts.stream import Prompt
from yatt_core.rewards.registry import RewardFunction, resolve
from yatt_core.rewards.time_limit import TimeLimitReached, call_within
from yatt_core.spec.rewards.scheme import FunctionPart, RewardPart, RewardSpec

Judged = Mapping[str, tuple[float, str]]
"""The judges' results for a response by name of the part: the value, and the reason if the judge failed
(`judges.aggregate`)."""

NOT_JUDGED: Judged = MappingProxyType({})

LARGEST = 1e30
"""Maximum absolute value that a part may add to the total: squares and sums of such rewards stay finite in float64,
and their advantages stay finite in float32."""


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The score of a response.

    parts: value by name of the part.
    total: weighted sum of the values.
    correct: True if the accuracy part reaches its threshold.
    error: the parts that failed or could not read the response and were scored 0, with reasons; empty if there are
        none.
    """

    parts: Mapping[str, float]
    total: float
    correct: bool
    error: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The value that a part gave a response.

    reason: why the value was set to 0 instead of being computed by the part; empty if the part computed it.
    failed: whether the part is at fault, rather than the response.
    """

    value: float
    reason: str = ""
    failed: bool = False


class RewardScorer:
    """The reward functions of a spec, looked up and checked once; the values of its judges are passed in.

    run_folder: as for `registry.resolve`.

    Raises `ConfigurationError` as `registry.resolve` does.
    """

    def __init__(self, spec: RewardSpec, run_folder: Path | None = None) -> None:
        self._parts = spec.parts
        self._functions: dict[str, tuple[FunctionPart, RewardFunction]] = {
            part.name: (part, resolve(part, run_folder)) for part in spec.functions
        }
        self._accuracy_part = spec.accuracy_name
        self._correct_at = spec.correct_at

    def score(
        self,
        prompt: Prompt,
        response: str,
        sample: int,
        last_turn: str | None = None,
        judged: Judged = NOT_JUDGED,
    ) -> SampleScore:
        """Scores one response.

        sample: its index among the prompt's responses, for messages.
        last_turn: the last turn of a multi-turn response.
        judged: the results of all parts that are judges.

        Raises `DataError` for a part that fails and whose `on_error` is `stop`, and `ValueError` if a judge's
        value is missing.
        """
        if missing := [
            part.name for part in self._parts if part.name not in self._functions and part.name not in judged
        ]:
            raise ValueError(
                f"the values of the judges {missing} are missing for prompt {prompt.prompt_id}, sample {sample}"
            )
        return self._sum(self._parts, prompt, response, sample, last_turn, judged)

    def measure(self, prompt: Prompt, response: str, last_turn: str | None = None) -> SampleScore:
        """Scores one response with the functions only, as SFT and evaluation do.

        Judges are not asked and do not contribute to the total. Raises `DataError` as `score` does.
        """
        functions = [part for part, _ in self._functions.values()]
        return self._sum(functions, prompt, response, 0, last_turn, NOT_JUDGED)

    def _sum(
        self,
        parts: Iterable[RewardPart],
        prompt: Prompt,
        response: str,
        sample: int,
        last_turn: str | None,
        judged: Judged,
    ) -> SampleScore:
        values: dict[str, float] = {}
        errors: list[str] = []
        total = 0.0
        for part in parts:
            outcome = self._outcome(part, prompt, response, last_turn, judged)
            if outcome.failed and part.on_error == "stop":
                raise DataError(
                    f"reward part {part.name!r} ({_described(part)}) failed on prompt {prompt.prompt_id}, "
                    f"sample {sample}: {outcome.reason}; set `on_error: zero` to give such samples a score of 0"
                )
            if outcome.reason:
                errors.append(f"{part.name}: {outcome.reason}")
            values[part.name] = outcome.value
            total += part.weight * outcome.value
        return SampleScore(values, total, values[self._accuracy_part] >= self._correct_at, "; ".join(errors))

    def _outcome(
        self, part: RewardPart, prompt: Prompt, response: str, last_turn: str | None, judged: Judged
    ) -> Outcome:
        if part.name in self._functions:
            return _evaluate(*self._functions[part.name], prompt, _read(part, response, last_turn))
        value, reason = judged[part.name]
        return Outcome(0.0, reason, failed=True) if reason else as_outcome(value, part.weight)


def _read(part: RewardPart, response: str, last_turn: str | None) -> str:
    """Returns the text of a response that a part is given."""
    return response if last_turn is None or part.reads == "response" else last_turn


def _described(part: RewardPart) -> str:
    return part.described if isinstance(part, FunctionPart) else f"judge of kind {part.kind}"


def _evaluate(part: FunctionPart, function: RewardFunction, prompt: Prompt, response: str) -> Outcome:
    try:
        return call_within(part.timeout_seconds, functools.partial(_call, function, prompt, response, part.weight))
    except TimeLimitReached:
        return Outcome(0.0, f"took longer than {part.timeout_seconds:g} s", failed=True)


def _call(function: RewardFunction, prompt: Prompt, response: str, weight: float) -> Outcome:
    """Runs all user code: the function, and the methods of what it returns or raises."""
    try:
        return as_outcome(function(prompt, response), weight)
    except InfrastructureError:  # a service is unavailable: a retry may help
        raise
    except UnreadableResponseError as error:
        return Outcome(0.0, f"cannot read the response: {error}")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a failure of the user's function
        return Outcome(0.0, f"raised {failure_text(error)}", failed=True)


def as_outcome(value: Any, weight: float) -> Outcome:
    """Returns the outcome of a function that returned a value; a failure unless that is a usable number."""
    if not isinstance(value, numbers.Real | np.bool_):
        return Outcome(0.0, f"returned {type(value).__name__}, not a number", failed=True)
    try:
        number = float(value)
    except OverflowError:  # raised for integers and fractions
        reason = f"returned a number beyond float64; a reward times its weight may be at most {LARGEST:g}"
        return Outcome(0.0, reason, failed=True)
    if not math.isfinite(number):
        return Outcome(0.0, f"returned {number}, not a finite number", failed=True)
    if max(abs(number), abs(number * weight)) > LARGEST:
        reason = f"returned {number:g} with weight {weight:g}; a reward, weighted too, may be at most ±{LARGEST:g}"
        return Outcome(0.0, reason, failed=True)
    return Outcome(number)
