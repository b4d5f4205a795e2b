"""A part's function, ready to be called: in this process, or in the reward process.

Functions of YATT that take time linear in a response's length run in this process. All others run in the reward
process, where they cannot harm this one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from yatt_core.errors import ConfigurationError
from yatt_core.named_code import CodeFile, SentFile
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.prompts.steps import split_steps
from yatt_core.redoing import Service, Unanswered
from yatt_core.rewards.calls import SERVICE, Call, CallLimits, RewardOutcome, made
from yatt_core.rewards.conventions import Candidate, RewardFunction, Unit
from yatt_core.rewards.process import Loaded, reward_process
from yatt_core.rewards.registry import FunctionName, is_linear, resolve
from yatt_core.spec.rewards.critique import CritiqueSpec
from yatt_core.spec.rewards.scheme import FunctionPart


@dataclass(frozen=True, slots=True)
class PartFunction:
    """The function of a part.

    service: what the function asks, as far as it says by an `InfrastructureError` that it got no answer.
    critique: says how responses are cut into steps; None unless the function takes steps.
    """

    part: FunctionPart
    function: RewardFunction | Loaded
    service: Service[list[RewardOutcome]] = field(compare=False)
    critique: CritiqueSpec | None = None

    @property
    def unit(self) -> Unit:
        """What must be complete before the function is called.

        Calls of coroutine functions are made together, once the whole batch is complete.
        """
        return "batch" if self.function.awaits else self.function.unit

    def candidate(self, prompt: Prompt, completion: Completion) -> Candidate:
        """Returns a response as the function takes it."""
        candidate = Candidate(prompt, completion, self.part.reads)
        if self.critique is None:
            return candidate
        return replace(candidate, steps=split_steps(completion.read(self.critique.reads), self.critique.steps))

    def evaluate(self, calls: Sequence[Call]) -> list[list[RewardOutcome]]:
        """Returns the outcomes of each call; none for calls after a failure that stops the run.

        A call that got no answer from a service is made again, and has failed if others get one. Raises `AwayError` if the
        service answers no call.
        """
        if isinstance(self.function, RewardFunction):
            return self.evaluate_once(calls)
        outcomes: list[list[RewardOutcome]] = [[] for _ in calls]

        def asked(numbers: Collection[int]) -> dict[int, list[RewardOutcome] | Unanswered]:
            found = self.evaluate_once([calls[number] for number in numbers])
            return {number: _answered(one) for number, one in zip(numbers, found, strict=True) if one}

        for number, answer in self.service.ask(range(len(calls)), asked, repeatable=True, is_told=_is_told):
            if not isinstance(answer, Unanswered):
                outcomes[number] = answer
            else:
                failed = RewardOutcome(0.0, answer.reason, failed=True, cause=SERVICE)
                outcomes[number] = [failed] * len(calls[number])
        return outcomes

    def evaluate_once(self, calls: Sequence[Call]) -> list[list[RewardOutcome]]:
        """Returns the outcomes as `evaluate` does, but makes no call again."""
        limits = CallLimits(self.part.timeout_seconds, self.part.weight, self.part.concurrency)
        if isinstance(self.function, RewardFunction):
            return [made(self.function, call, limits.weight) for call in calls]
        return reward_process().evaluate(self.function, calls, limits, self.part.on_failure == "stop")


def _answered(outcomes: list[RewardOutcome]) -> list[RewardOutcome] | Unanswered:
    unanswered = next((outcome for outcome in outcomes if outcome.cause == SERVICE), None)
    return outcomes if unanswered is None else Unanswered(unanswered.reason)


def _is_told(outcomes: list[RewardOutcome]) -> bool:
    return any(outcome.asked for outcome in outcomes)


def part_file(part: FunctionPart) -> CodeFile | None:
    """Returns the file that defines a part's function; None for installed code."""
    return None if part.file is None else CodeFile.named(f"rewards.parts {part.name!r}: file", part.file, part.sha256)


def load_part(part: FunctionPart, run_folder: Path | None = None, critique: CritiqueSpec | None = None) -> PartFunction:
    """Looks up, imports and checks the function of a part.

    run_folder: folder of the run, which has its own copies of files; None before there is a run.
    critique: the critique of the spec.

    Raises `ConfigurationError` as `registry.resolve` does, and for a function that takes steps unless it is the part of
    the critique; raises as `read_code` does for a file.
    """
    place = f"rewards.parts {part.name!r}: {part.described}"
    code = part_file(part)
    if code is None:
        name = FunctionName(place, part.function or "", part.options)
    else:
        name = FunctionName(place, code.attribute, part.options, SentFile.read(code, run_folder))
    function = resolve(name) if is_linear(name) else reward_process().load(name)
    named = critique if critique is not None and critique.part == part.name else None
    if function.takes_steps and named is None:
        raise ConfigurationError(f"{place} takes (prompt, steps); expected rewards.critique with part: {part.name}")
    if named is not None and not function.takes_steps:
        raise ConfigurationError(
            f"{place} is the part of rewards.critique; expected a function (prompt, steps) that returns for each step "
            "whether it is wrong"
        )
    return PartFunction(part, function, Service(f"what reward part {part.name!r} asks"), named)
