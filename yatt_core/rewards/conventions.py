"""How a reward function is called: decided once, by its signature, when it is loaded.

Consumes a function and the options of its part. Produces a `RewardFunction`, which takes prompts with completions
and passes on what the function declares.

| first two parameters | receives | returns |
|---|---|---|
| `(prompt, response)` | one response | a number |
| `(prompt, steps)` | the steps of one response | for each step whether it is wrong |
| `(prompt, responses)` | all responses to one prompt | one number for each |
| `(prompts, responses)` | all responses of a decode batch | one number for each |
"""

from __future__ import annotations

import copy
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from yatt_core.errors import ConfigurationError
from yatt_core.prompts.prompt import Completion, Prompt, Reads
from yatt_core.rewards.options import blames_response, read_options

Unit = Literal["response", "group", "batch"]
"""What a call is given: one response, all responses to one prompt, or all responses of a decode batch."""

TOKEN_IDS = "token_ids"
"""A fact that is sent to the reward process only for a function that takes it: it is as long as the response."""
OF_TEXT = ("thoughts", "final")
"""Facts about the text that a part reads: its thoughts, and the rest."""
OF_RESPONSE = ("tokens", "stop_reason", "turns", *OF_TEXT, "prefill", TOKEN_IDS)
"""Facts about a response; a function of several responses receives a list of each."""
OF_PROMPT = ("answer", "columns")
"""Facts about a prompt; a function of several prompts receives a list of each."""
FACTS = (*OF_RESPONSE, *OF_PROMPT)
STEPS = "steps"
"""Name of the second parameter of a function that takes the steps of a response."""
_CONVENTIONS = {
    "response": "prompt, response",
    STEPS: "prompt, steps",
    "group": "prompt, responses",
    "batch": "prompts, responses",
}


class Unasked(float):
    """A reward that a function gives without asking the service that it asks for others.

    Such a reward says nothing of whether the service answers: while the service is away, the responses that need it are waited
    for instead of having failed beside these.
    """


@dataclass(frozen=True, slots=True)
class Candidate:
    """A response that a part is to score.

    reads: what the part receives of it.
    steps: the steps of that text; only for a function that takes them.
    """

    prompt: Prompt
    completion: Completion
    reads: Reads = "last_turn"
    steps: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text that the part receives."""
        return self.completion.read(self.reads)


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function with its options, and how it is called.

    facts: the names in `FACTS` that it takes.
    awaits: whether it is a coroutine function.
    blames_response: whether a call that takes too long is the response's fault.
    takes_steps: whether it takes the steps of a response, and names the wrong ones.
    """

    function: Callable[..., Any]
    options: Mapping[str, Any]
    unit: Unit
    facts: tuple[str, ...]
    awaits: bool
    blames_response: bool = False
    takes_steps: bool = False

    def __call__(self, candidates: Sequence[Candidate]) -> Any:
        """Calls the function once: with a single candidate, those of one prompt, or those of a batch."""
        prompts: Any = [candidate.prompt for candidate in candidates]
        texts: Any = [list(one.steps) if self.takes_steps else one.text for one in candidates]
        facts: dict[str, Any] = {}
        for name in self.facts:
            values = [_fact(name, candidate) for candidate in candidates]
            alone = self.unit == "response" or (self.unit == "group" and name in OF_PROMPT)
            facts[name] = values[0] if alone else values
        if self.unit != "batch":
            prompts = prompts[0]
        options = {name: _own(value) for name, value in self.options.items()}
        return self.function(prompts, texts[0] if self.unit == "response" else texts, **facts, **options)


def _own(value: Any) -> Any:
    """Returns an option's value for one call: a function that changes it affects no other call."""
    return copy.deepcopy(value) if isinstance(value, dict | list) else value


def _fact(name: str, candidate: Candidate) -> Any:
    if name in OF_TEXT:
        return getattr(candidate.completion.split(candidate.reads), name)
    if name in OF_RESPONSE:
        return getattr(candidate.completion, name)
    return candidate.prompt.answer if name == "answer" else candidate.prompt.entry


def reward_function(function: Callable[..., Any], options: Mapping[str, Any], place: str) -> RewardFunction:
    """Returns a function with its options and calling convention.

    place: the place that names the function, for messages.

    Raises `ConfigurationError` if it does not accept the options, or requires something else.
    """
    options = read_options(function, options, place)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{place} cannot be called as (prompt, response): {error}") from None
    named = [one for one in signature.parameters.values() if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    first, second = (one.name for one in (named + named)[:2]) if len(named) > 1 else ("", "")
    unit: Unit = "response" if second != "responses" else "batch" if first == "prompts" else "group"
    facts = tuple(one.name for one in named[2:] if one.name in FACTS and one.name not in options)
    try:
        signature.bind(None, "", **dict.fromkeys(facts), **options)
    except TypeError as error:
        taken = "".join(f", {key}=..." for key in (*facts, *options))
        convention = _CONVENTIONS[STEPS if second == STEPS else unit]
        raise ConfigurationError(
            f"{place} cannot be called as ({convention}{taken}): {error}{_hint(named, options)}{_line(function)}"
        ) from None
    awaits = inspect.iscoroutinefunction(inspect.unwrap(function))
    return RewardFunction(
        function=function,
        options=options,
        unit=unit,
        facts=facts,
        awaits=awaits,
        blames_response=blames_response(function),
        takes_steps=second == STEPS,
    )


def _hint(named: Sequence[inspect.Parameter], options: Mapping[str, Any]) -> str:
    """Returns a suggestion for the first option or required parameter that has no counterpart."""
    known = [one.name for one in named[2:]]
    for option in options:
        if option not in known and (near := difflib.get_close_matches(option, known, n=1)):
            return f"; did you mean {near[0]!r}?"
    for one in named[2:]:
        if one.default is one.empty and one.name not in (*options, *FACTS):
            near = difflib.get_close_matches(one.name, FACTS, n=1)
            return (
                f"; did you mean {near[0]!r}?" if near else f"; a function may take {', '.join(FACTS)} and its options"
            )
    return ""


def _line(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename}:{code.co_firstlineno})"
