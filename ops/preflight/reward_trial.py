"""Calls every reward function on a few rows with made-up responses, before a run needs them.

Consumes a spec. Produces the scores, and for each failure the reason and the file and line in which it occurred.
Judges are not asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from yatt_core.datasets.gym import EVALUATES_RESPONSES, evaluation_refused
from yatt_core.datasets.sources import first_answerless, first_prompts
from yatt_core.errors import ConfigurationError
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.prompts.tool_calls import split_turns
from yatt_core.rewards.functions import PartFunction, load_part
from yatt_core.rewards.written_answers import ways_to_write
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.scheme import PROGRAMS, FunctionPart
from yatt_core.spec.sections.data import ReasoningGymSource

ROWS_PER_SOURCE = 2
TASK_SCORE = "reasoning_gym"
"""The function that asks a task for its own score."""
ANSWER = "the reference answer"
MADE_UP = {"nothing": "", "a number": "42", "a sentence": "I am not sure, but perhaps it is <answer>42</answer>."}
"""Responses that a policy may well give, by their description."""


@dataclass(frozen=True, slots=True)
class RewardTrial:
    """A part's answer to one response.

    has_answer: whether the prompt has a reference answer.
    given: description of the response.
    score: None if the call failed, or a service that the function asks did not answer.
    error: the reason if the call failed, or if the function could not read the response.
    place: `file:line` of the error; empty if it was not raised by code.
    failed: whether the call failed.
    """

    part: str
    prompt_id: str
    has_answer: bool
    given: str
    response: str
    score: float | None
    error: str
    place: str
    failed: bool


def refuses_faults(part: FunctionPart) -> bool:
    """Returns whether rows on which a part fails are refused before a run.

    `code_tests` masks what its sandbox fails on during a run; a row that fails here would never have a score.
    """
    return part.on_failure == "stop" or (part.function == PROGRAMS and part.on_failure == "mask")


def check_rewards(spec: RunSpec, copies: Path | None = None) -> list[RewardTrial]:
    """Calls each function on each response, and returns the trials.

    copies: folder of a run with copies of the reward files.

    Raises `ConfigurationError` for a part that fails and that would stop the run, and what reading the sources raises.
    """
    _refuse_evaluation(spec)
    prompts = first_prompts(spec.data, spec.seed, ROWS_PER_SOURCE)
    known = {prompt.prompt_id for prompt in prompts}
    prompts += [prompt for prompt in first_answerless(spec.data, spec.seed) if prompt.prompt_id not in known]
    functions = [load_part(part, copies, spec.rewards.critique) for part in spec.rewards.functions]
    trials = [trial for function in functions for prompt in prompts for trial in _try(function, prompt)]
    stops = {part.name for part in spec.rewards.functions if refuses_faults(part)}
    for trial in trials:
        if trial.failed and trial.part in stops:
            where = f" at {trial.place}" if trial.place else ""
            raise ConfigurationError(
                f"rewards.parts {trial.part!r}: its function failed: {trial.error}{where}, for prompt {trial.prompt_id}"
                f"{'' if trial.has_answer else ', which has no reference answer,'} and "
                f"the response {trial.response!r} ({trial.given}); correct it, or set on_failure: mask"
            )
    return trials


def _refuse_evaluation(spec: RunSpec) -> None:
    """Raises `ConfigurationError` for tasks whose own scoring, if a part asks it, evaluates what a policy writes."""
    asking = [part.name for part in spec.rewards.functions if part.function == TASK_SCORE]
    for source in spec.data.sources if asking else ():
        if isinstance(source, ReasoningGymSource) and source.task in EVALUATES_RESPONSES:
            raise ConfigurationError(f"rewards.parts {asking[0]!r}: {evaluation_refused(source.task)}")


def same_for_all(spec: RunSpec, trials: Sequence[RewardTrial]) -> Iterator[str]:
    """Yields a line for each of the user's own functions that gives all responses the same score.

    Functions that are included may do so for good reason: made-up responses are short, and have no code.
    """
    for part in spec.rewards.functions:
        own = [trial for trial in trials if trial.part == part.name]
        is_users = part.file is not None or ":" in (part.function or "")
        prompts = len({trial.prompt_id for trial in own})
        scores = {trial.score for trial in own}
        if is_users and not any(trial.error for trial in own) and len(scores) == 1:
            yield (
                f"rewards.parts {part.name!r}: gives {scores.pop():g} to each of {len(own)} responses to {prompts} prompts, "
                "from an empty one to a sentence; a reward that tells no responses apart teaches nothing"
            )


def _try(function: PartFunction, prompt: Prompt) -> Iterator[RewardTrial]:
    """Yields the outcomes for the responses to a prompt, of which each is a group and a batch of its own.

    The reference answer is given in the first of the usual forms that scores: a reward may read what stands in a box.
    """
    if prompt.answer is not None:
        trials = (_trial(function, prompt, ANSWER, response) for response in ways_to_write(prompt.answer))
        first = next(trials)
        done = first.failed or _scores(first)
        yield first if done else next(filter(_scores, trials), first)
    for given, response in MADE_UP.items():
        yield _trial(function, prompt, given, response)


def _scores(trial: RewardTrial) -> bool:
    return trial.score is not None and trial.score > 0


def _trial(function: PartFunction, prompt: Prompt, given: str, response: str) -> RewardTrial:
    """Returns the outcome for one response."""
    spoken = split_turns(response)[0]
    completion = Completion.of_turns(response, spoken, len(response.split()))
    ((outcome,),) = function.evaluate_once([[function.candidate(prompt, completion)]])
    return RewardTrial(
        part=function.part.name,
        prompt_id=prompt.prompt_id,
        has_answer=prompt.answer is not None,
        given=given,
        response=response,
        score=None if outcome.failed else outcome.value,
        error=outcome.reason,
        place=outcome.place,
        failed=outcome.failed_for_good,  # a run asks a service again that does not answer
    )
