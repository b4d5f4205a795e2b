"""Scores responses: every part's function under its time limit, and what its failures mean.

Consumes the spec's rewards, a prompt and a response; produces the values of the parts, their weighted sum and, for parts
that may fail, what went wrong. Runs in the main thread of a controller's process.
"""

from __future__ import annotations

import functools
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from yatt_core.data.prompts import Prompt
from yatt_core.errors import DataError, InfrastructureError
from yatt_core.installed import failure_text
from yatt_core.rewards.registry import RewardFunction, resolve
from yatt_core.rewards.time_limit import TimeLimitReached, call_within
from yatt_core.spec.rewards import RewardPart, RewardSpec

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
    """The reward functions of a spec, found and checked once. Raises `ConfigurationError` as `registry.resolve`."""

    def __init__(self, spec: RewardSpec) -> None:
        self._parts: list[tuple[RewardPart, RewardFunction]] = [(part, resolve(part)) for part in spec.parts]
        self._accuracy_part = spec.accuracy_part or spec.parts[0].name
        self._correct_at = spec.correct_at

    def score(self, prompt: Prompt, response: str, sample: int, last_turn: str | None = None) -> SampleScore:
        """Scores one response. sample: its number among the prompt's responses, for messages. last_turn: of a response of
        several turns.

        Raises `DataError` for a part that fails and whose `on_error` is `stop`.
        """
        values: dict[str, float] = {}
        errors: list[str] = []
        total = 0.0
        for part, function in self._parts:
            text = response if last_turn is None or part.reads == "response" else last_turn
            value, reason = _evaluate(part, function, prompt, text)
            if reason:
                if part.on_error == "stop":
                    raise DataError(
                        f"reward part {part.name!r} (function {part.function!r}) failed on prompt {prompt.prompt_id}, "
                        f"sample {sample}: {reason}; with on_error: zero such a sample would score 0"
                    )
                errors.append(f"{part.name}: {reason}")
            values[part.name] = value
            total += part.weight * value
        return SampleScore(values, total, values[self._accuracy_part] >= self._correct_at, "; ".join(errors))


def _evaluate(part: RewardPart, function: RewardFunction, prompt: Prompt, response: str) -> tuple[float, str]:
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
