"""Calls every reward function on a few rows with made-up responses, before a run needs them.

Consumes a spec. Produces the scores, and for each failure the reason and the file and line in which it occurred.
Judges are not asked.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from yatt_core.datasets.sources import first_answerless, first_prompts
from yatt_core.errors import ConfigurationError, InfrastructureError, UnreadableResponseError
from yatt_core.installed import error_place, failure_text
from yatt_core.prompts.stream import Prompt
from yatt_core.rewards.registry import resolve
from yatt_core.rewards.scoring import Outcome, as_outcome
from yatt_core.rewards.time_limit import TimeLimitReached, call_within
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.scheme import FunctionPart

ROWS_PER_SOURCE = 2
ANSWER = "the reference answer"
MADE_UP = {"nothing": "", "a number": "42", "a sentence": "I am not sure, but perhaps it is <answer>42</answer>."}
"""Responses that a policy may well give, by their description."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A part's answer to one response.

    has_answer: whether the prompt has a reference answer.
    given: description of the response.
    error: the reason if the call failed, or if the function could not read the response.
    place: `file:line` of the error; empty if it was not raised by code.
    failed: whether the call failed.
    """

    part: str
    prompt_id: str
    has_answer: bool
    given: str
    response: str
    score: float
    error: str
    place: str
    failed: bool


def try_rewards(spec: RunSpec) -> list[Trial]:
    """Calls each function on each response. Raises what reading the sources raises."""
    prompts = first_prompts(spec.data, spec.seed, ROWS_PER_SOURCE)
    known = {prompt.prompt_id for prompt in prompts}
    prompts += [prompt for prompt in first_answerless(spec.data, spec.seed) if prompt.prompt_id not in known]
    functions = [(part, resolve(part)) for part in spec.rewards.functions]
    return [
        _try(part, function, prompt, given, response)
        for part, function in functions
        for prompt in prompts
        for given, response in _responses(prompt)
    ]


def check_rewards(spec: RunSpec) -> list[Trial]:
    """Returns the trials. Raises `ConfigurationError` for a part that fails and that would stop the run."""
    trials = try_rewards(spec)
    stops = {part.name for part in spec.rewards.functions if part.on_error == "stop"}
    for trial in trials:
        if trial.failed and trial.part in stops:
            where = f" at {trial.place}" if trial.place else ""
            raise ConfigurationError(
                f"rewards.parts {trial.part!r}: its function {trial.error}{where}, for prompt {trial.prompt_id}"
                f"{'' if trial.has_answer else ', which has no reference answer,'} and "
                f"the response {trial.response!r} ({trial.given}); mend it, or set on_error: zero"
            )
    return trials


def _responses(prompt: Prompt) -> Iterator[tuple[str, str]]:
    if prompt.answer is not None:
        yield ANSWER, prompt.answer
    yield from MADE_UP.items()


def _try(part: FunctionPart, function: Any, prompt: Prompt, given: str, response: str) -> Trial:
    outcome, place = _called(part, function, prompt, response)
    has_answer = prompt.answer is not None
    return Trial(
        part.name, prompt.prompt_id, has_answer, given, response, outcome.value, outcome.reason, place, outcome.failed
    )


def _called(part: FunctionPart, function: Any, prompt: Prompt, response: str) -> tuple[Outcome, str]:
    """Returns the outcome of a call, and the place of the error that ended it."""
    try:
        value = call_within(part.timeout_seconds, functools.partial(function, prompt, response))
    except TimeLimitReached as reached:
        return Outcome(0.0, f"took longer than {part.timeout_seconds:g} s", failed=True), error_place(reached)
    except UnreadableResponseError as error:
        return Outcome(0.0, f"cannot read the response: {error}"), ""
    except InfrastructureError as error:  # a service that the function asks; the run would try again
        return Outcome(0.0, str(error)), ""
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any exception is a failure of the user's function
        return Outcome(0.0, f"raised {failure_text(error)}", failed=True), error_place(error)
    return as_outcome(value, part.weight), ""
