"""Scores responses: every part's function under its time limit, and what its failures mean.

Consumes the spec's rewards, a prompt, a response, and what judges made of it; produces the values of the parts, their weighted
sum and, for parts that may fail, what went wrong. Runs in the main thread of a controller's process.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from yatt_core.errors import DataError, InfrastructureError
from yatt_core.installed import failure_text
from yatt_core.prompts.stream import Prompt
from yatt_core.rewards.registry import RewardFunction, resolve
from yatt_core.rewards.time_limit import TimeLimitReached, call_within
from yatt_core.spec.rewards.scheme import FunctionPart, RewardPart, RewardSpec

Judged = Mapping[str, tuple[float, str]]
"""What judges said of a response, by name of the part: its value, and the reason if the judge failed (`judges.aggregate`)."""

NOT_JUDGED: Judged = MappingProxyType({})

LARGEST = 1e30
"""Most that a part may add to the total, either way: squares and sums of such rewards are finite in float64, and their
advantages in float32."""


@dataclass(frozen=True, slots=True)
class SampleScore:
    """What a response is worth.

    parts: value by name of the part. total: their weighted sum. correct: the accuracy part says so. error: which parts
    failed and were scored 0, and why; empty for none.
    """

    parts: Mapping[str, float]
    total: float
    correct: bool
    error: str = ""


class RewardScorer:
    """The reward functions of a spec, found and checked once; the values of its judges come from outside.

    Raises `ConfigurationError` as `registry.resolve`.
    """

    def __init__(self, spec: RewardSpec) -> None:
        self._parts = spec.parts
        self._functions: dict[str, tuple[FunctionPart, RewardFunction]] = {
            part.name: (part, resolve(part)) for part in spec.functions
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
        """Scores one response. sample: its number among the prompt's responses, for messages. last_turn: of a response of
        several turns. judged: of every part that is a judge.

        Raises `DataError` for a part that fails and whose `on_error` is `stop`, `ValueError` where a judge's value is missing.
        """
        if missing := [
            part.name for part in self._parts if part.name not in self._functions and part.name not in judged
        ]:
            raise ValueError(
                f"the judges {missing} have not been asked about prompt {prompt.prompt_id}, sample {sample}"
            )
        return self._sum(self._parts, prompt, response, sample, last_turn, judged)

    def measure(self, prompt: Prompt, response: str, last_turn: str | None = None) -> SampleScore:
        """Scores one response by the functions alone, as SFT and evaluation do: no judge is asked, and none is in the total.

        Raises `DataError` as `score`.
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
            value, reason = self._value(part, prompt, response, last_turn, judged)
            if reason:
                if part.on_error == "stop":
                    raise DataError(
                        f"reward part {part.name!r} ({_described(part)}) failed on prompt {prompt.prompt_id}, "
                        f"sample {sample}: {reason}; with on_error: zero such a sample would score 0"
                    )
                errors.append(f"{part.name}: {reason}")
            values[part.name] = value
            total += part.weight * value
        return SampleScore(values, total, values[self._accuracy_part] >= self._correct_at, "; ".join(errors))

    def _value(
        self, part: RewardPart, prompt: Prompt, response: str, last_turn: str | None, judged: Judged
    ) -> tuple[float, str]:
        """Value of a part and, if it failed, 0 and the reason."""
        if part.name in self._functions:
            return _evaluate(*self._functions[part.name], prompt, _read(part, response, last_turn))
        value, reason = judged[part.name]
        return (0.0, reason) if reason else _as_number(value, part.weight)


def _read(part: RewardPart, response: str, last_turn: str | None) -> str:
    """What a part is given of a response."""
    return response if last_turn is None or part.reads == "response" else last_turn


def _described(part: RewardPart) -> str:
    return f"function {part.function!r}" if isinstance(part, FunctionPart) else f"judge of kind {part.kind}"


def _evaluate(part: FunctionPart, function: RewardFunction, prompt: Prompt, response: str) -> tuple[float, str]:
    """Value and, if the call failed, 0 and the reason."""
    try:
        return call_within(part.timeout_seconds, functools.partial(_call, function, prompt, response, part.weight))
    except TimeLimitReached:
        return 0.0, f"took longer than {part.timeout_seconds:g} s"


def _call(function: RewardFunction, prompt: Prompt, response: str, weight: float) -> tuple[float, str]:
    """All that runs a user's code: the function, and the methods of what it returns or raises."""
    try:
        return _as_number(function(prompt, response), weight)
    except InfrastructureError:  # a service is away: trying again may help
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's function raises is that function's failure
        return 0.0, f"raised {failure_text(error)}"


def _as_number(value: Any, weight: float) -> tuple[float, str]:
    if not isinstance(value, numbers.Real | np.bool_):
        return 0.0, f"returned {type(value).__name__}, a reward is a number"
    try:
        number = float(value)
    except OverflowError:  # of a whole number or a fraction
        return 0.0, f"returned a number beyond those of float64, a reward times its weight is at most {LARGEST:g}"
    if not math.isfinite(number):
        return 0.0, f"returned {number}, a reward is finite"
    if max(abs(number), abs(number * weight)) > LARGEST:
        return 0.0, f"returned {number:g}, times the weight {weight:g}; a reward is at most {LARGEST:g} either way"
    return number, ""
