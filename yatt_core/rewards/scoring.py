"""Scores responses: has every part's function called, combines the values, and handles failures.

Consumes the spec's rewards, prompts, completions, and the judges' values for them. Produces the values of the
parts, their weighted sum and, for parts that may fail, the reasons for failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from yatt_core.errors import DataError
from yatt_core.experience.table import FINISH_TOOL, TOOLS_UNAVAILABLE
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.protocols.judges import PartValue
from yatt_core.rewards.calls import RewardOutcome, as_outcome
from yatt_core.rewards.conventions import Unit
from yatt_core.rewards.functions import load_part
from yatt_core.round_off import total_of
from yatt_core.spec.rewards.scheme import FunctionPart, RewardPart, RewardSpec

Judged = Mapping[str, PartValue]
"""What the judges' verdicts on a response come to, by name of the part."""

NOT_JUDGED: Judged = MappingProxyType({})
Outcomes = Mapping[str, RewardOutcome]
"""The outcomes of a response by name of the part."""


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The score of a response.

    parts: value by name of the part.
    total: weighted sum of the values; 0 if they cancel out up to rounding.
    correct: True if the accuracy part reaches its threshold.
    error: the parts without a value of their own, with reasons; empty if there are none.
    missing: what leaves the response without a score, each with its cause; empty if it has a score. Without one,
        `total` is 0, `correct` is False, and neither means anything.
    unread: the judgements of the response that have no score, each as part/cause.
    wrong_steps: how wrong each step of the response is, from 0 to 1; empty without a critique.
    """

    parts: Mapping[str, float]
    total: float
    correct: bool
    error: str = ""
    missing: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    wrong_steps: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """A response to be scored.

    group: a number that it shares with exactly the other responses of its group.
    sample: its index among the prompt's responses, for messages.
    """

    prompt: Prompt
    completion: Completion
    group: int = 0
    sample: int = 0


class RewardScorer:
    """The reward functions of a spec, looked up and checked once; the values of its judges are passed in.

    run_folder: folder of the run, which has its own copies of files; None before there is a run.

    Raises `ConfigurationError` as `load_part` does.
    """

    def __init__(self, spec: RewardSpec, run_folder: Path | None = None) -> None:
        self._parts = spec.parts
        self._functions = {part.name: load_part(part, run_folder, spec.critique) for part in spec.functions}
        self._accuracy_part = spec.accuracy_name
        self._correct_at = spec.correct_at

    @property
    def functions(self) -> Sequence[str]:
        """The names of the parts that are functions."""
        return tuple(self._functions)

    def answers(self, dependency: str) -> bool | None:
        """Returns whether the service that a function asks answers again; None if something else is away."""
        for function in self._functions.values():
            if function.service.name == dependency:
                return function.service.answers()
        return None

    def outcomes(self, unit: Unit, responses: Sequence[Scored]) -> list[dict[str, RewardOutcome]]:
        """Returns the outcomes of the parts whose functions take one response, a group, or a batch.

        responses: whole groups for `group`, and a whole batch for `batch`.

        Raises `DataError` for a part that fails and whose `on_failure` is `stop`.
        """
        found: list[dict[str, RewardOutcome]] = [{} for _ in responses]
        for name, function in self._functions.items():
            if function.unit != unit or not responses:
                continue
            part = function.part
            calls = _calls(function.function.unit, responses)
            results = function.evaluate(
                [[function.candidate(responses[i].prompt, responses[i].completion) for i in call] for call in calls]
            )
            for call, outcomes in zip(calls, results, strict=True):
                for index, outcome in zip(call, outcomes, strict=False):  # there are none after a failure that stops
                    _refuse(part, outcome, responses[index])
                    found[index][name] = outcome
        return found

    def score(self, responses: Sequence[Scored]) -> list[SampleScore]:
        """Scores responses with the functions only, as SFT and evaluation do.

        Judges are not asked and do not contribute to the total. Raises `DataError` as `outcomes` does.
        """
        units: Sequence[Unit] = ("response", "group", "batch")
        found = [self.outcomes(unit, responses) for unit in units]
        functions = [function.part for function in self._functions.values()]
        return [
            self._sum(functions, {**one, **group, **batch}, response)
            for response, one, group, batch in zip(responses, *found, strict=True)
        ]

    def total(self, response: Scored, outcomes: Outcomes, judged: Judged = NOT_JUDGED) -> SampleScore:
        """Returns the score of a response.

        outcomes: those of all parts that are functions.
        judged: the results of all parts that are judges.

        Raises `DataError` for a judge that fails and whose `on_failure` is `stop`, and `ValueError` if a value is missing.
        """
        if missing := [part.name for part in self._parts if part.name not in outcomes and part.name not in judged]:
            raise ValueError(
                f"the values of {missing} are missing for prompt {response.prompt.prompt_id}, sample {response.sample}"
            )
        judgements = {part.name: _judgement(part, judged) for part in self._parts if part.name in judged}
        return self._sum(self._parts, {**outcomes, **judgements}, response)

    def _sum(self, parts: Sequence[RewardPart], outcomes: Outcomes, response: Scored) -> SampleScore:
        values: dict[str, float] = {}
        errors: list[str] = []
        # A response that ended where a tool got no answer is not the policy's.
        missing = [TOOLS_UNAVAILABLE] if response.completion.stop_reason == FINISH_TOOL else []
        terms: list[float] = []
        for part in parts:
            outcome = outcomes[part.name]
            _refuse(part, outcome, response)
            if outcome.reason:
                errors.append(f"{part.name}: {outcome.reason}")
            if outcome.absent or (outcome.failed and part.on_failure == "mask"):
                missing.append(f"{part.name}/{outcome.cause}")
            values[part.name] = outcome.value
            terms.append(part.weight * outcome.value)
        if missing:
            return SampleScore(parts=values, total=0.0, correct=False, error="; ".join(errors), missing=tuple(missing))
        return SampleScore(values, total_of(terms), values[self._accuracy_part] >= self._correct_at, "; ".join(errors))


def _calls(unit: Unit, responses: Sequence[Scored]) -> list[list[int]]:
    """Returns the calls of a function, each as the indexes of its responses."""
    if unit == "batch":
        return [list(range(len(responses)))]
    calls: dict[int, list[int]] = {}
    for index, response in enumerate(responses):
        calls.setdefault(index if unit == "response" else response.group, []).append(index)
    return list(calls.values())


def _judgement(part: RewardPart, judged: Judged) -> RewardOutcome:
    found = judged[part.name]
    if not found.reason:
        return as_outcome(found.value, part.weight)
    return RewardOutcome(0.0, found.reason, failed=not found.absent, cause=found.cause, absent=found.absent)


def _refuse(part: RewardPart, outcome: RewardOutcome, response: Scored) -> None:
    """Raises `DataError` if the part has failed and must stop the run.

    A part need not understand a response that ended in the middle, because a tool got no answer.
    """
    if outcome.failed and part.on_failure == "stop" and response.completion.stop_reason != FINISH_TOOL:
        described = part.described if isinstance(part, FunctionPart) else f"judge of kind {part.kind}"
        raise DataError(
            f"reward part {part.name!r} ({described}) failed on prompt {response.prompt.prompt_id}, "
            f"sample {response.sample}: {outcome.reason}; set `on_failure: mask` of this part to learn nothing from such samples"
        )
