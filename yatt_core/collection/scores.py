"""The judging and scoring of one decode batch's responses: questions to judges, their verdicts, and the scores.

Consumes responses as they end and verdicts as they arrive; produces questions to judges and `SampleScore`s. A
verdict is durable before it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from yatt_core.algorithms.critique import voted
from yatt_core.collection.shard_rows import BatchMember
from yatt_core.experience.judge_log import JudgeLog
from yatt_core.judges.critiques import wrong_steps_in
from yatt_core.judges.items import judge_item
from yatt_core.judges.parsing import parsed_text
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.keys import WorkKey
from yatt_core.prompts.prompt import Completion, Prompt
from yatt_core.prompts.steps import split_steps
from yatt_core.protocols.judges import JudgeItem, Verdict, aggregate, cause_of
from yatt_core.rewards.calls import RewardOutcome
from yatt_core.rewards.conventions import Unit
from yatt_core.rewards.scoring import Judged, RewardScorer, SampleScore, Scored
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.critique import CritiqueSpec
from yatt_core.spec.rewards.judges import JudgePart, TemplatedPart

Questions = Mapping[str, Sequence[JudgeItem]]
"""The items to be judged, by reward part."""


@dataclass(slots=True)
class _Heard:
    """A response that has ended, and what is known of its score."""

    response: Scored
    outcomes: dict[str, RewardOutcome] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)


class BatchScores:
    """The scores of a decode batch's responses.

    A function of one response is called when the response has ended, a function of a group when all responses to
    the prompt have, and a function of a batch when all responses have.

    members, prompts: the identity and the prompt of each response in the batch.
    key: the key of the batch's shard.
    log: the log of judges' verdicts on the batch.
    """

    def __init__(
        self,
        spec: RunSpec,
        scorer: RewardScorer,
        key: WorkKey,
        members: Sequence[BatchMember],
        prompts: Sequence[Prompt],
        log: JudgeLog,
    ) -> None:
        self._spec = spec
        self._scorer = scorer
        self._key = key
        self._members = members
        self._prompts = prompts
        self.log = log
        self._groups: dict[int, list[int]] = {}
        for number, member in enumerate(members):
            self._groups.setdefault(member.ordinal, []).append(number)
        self._heard: dict[int, _Heard] = {}
        self._items: dict[tuple[str, int], JudgeItem] = {}
        self.scores: dict[int, SampleScore] = {}

    @property
    def ended(self) -> int:
        """The number of responses that have ended."""
        return len(self._heard)

    def has_heard(self, number: int) -> bool:
        """Returns True if a response was taken."""
        return number in self._heard

    @property
    def complete(self) -> bool:
        """True if every response is scored."""
        return len(self.scores) == len(self._members)

    def in_order(self) -> list[SampleScore]:
        """Returns all scores in the order of the responses."""
        return [self.scores[number] for number in range(len(self._members))]

    def hear(self, ended: Mapping[int, Completion]) -> list[Questions]:
        """Takes ended responses by number, scores what can be scored, and returns the questions to judges about them.

        Raises the same errors as `RewardScorer`. Responses that were taken before are ignored.
        """
        new = sorted(ended.keys() - self._heard.keys())
        for number in new:
            member = self._members[number]
            response = Scored(self._prompts[number], ended[number], member.ordinal, member.sample)
            self._heard[number] = _Heard(response)
        questions = [self._questions(number) for number in new]
        self._call("response", new)
        for group in self._completed_groups(new):
            self._call("group", group)
        if new and len(self._heard) == len(self._members):
            self._call("batch", range(len(self._members)))
        for number in sorted(self._heard.keys() - self.scores.keys()):
            self._score_if_known(number)
        return questions

    def be_told(self, part: str, verdicts: Sequence[Verdict]) -> None:
        """Makes verdicts durable, then scores responses that lack none. Raises like `RewardScorer.total`."""
        news = [verdict for verdict in verdicts if part not in self._heard[verdict.number].verdicts]
        self.log.append(part, [self._items[part, verdict.number] for verdict in news], news)
        for verdict in news:
            self._heard[verdict.number].verdicts[part] = verdict
            self._score_if_known(verdict.number)

    def _questions(self, number: int) -> Questions:
        """Returns the questions about a response that no verdict on disk answers."""
        questions: dict[str, list[JudgeItem]] = {}
        for part in self._spec.rewards.judges:
            item = self._items[part.name, number] = self._item(part, number)
            known = self.log.find(part.name, item)
            if known is None:
                questions[part.name] = [item]
            else:
                self._heard[number].verdicts[part.name] = known
        return questions

    def _completed_groups(self, new: Sequence[int]) -> list[list[int]]:
        """Returns the groups that the new responses have completed, in order."""
        touched = sorted({self._members[number].ordinal for number in new})
        return [self._groups[ordinal] for ordinal in touched if self._heard.keys() >= set(self._groups[ordinal])]

    def _call(self, unit: Unit, numbers: Sequence[int]) -> None:
        found = self._scorer.outcomes(unit, [self._heard[number].response for number in numbers])
        for number, outcomes in zip(numbers, found, strict=True):
            self._heard[number].outcomes.update(outcomes)

    def _item(self, part: JudgePart, number: int) -> JudgeItem:
        member = self._members[number]
        prompt = self._prompts[number]
        key = self._key
        seeds = judgement_seeds(
            part=part.name,
            count=part.judgements,
            seed=self._spec.seed,
            branch=key.branch,
            iteration=key.iteration,
            ordinal=member.ordinal,
            sample=member.sample,
        )
        completion = self._heard[number].response.completion
        critique = self._spec.rewards.critique
        named = critique if critique is not None and critique.part == part.name else None
        steps = () if named is None else split_steps(completion.read(named.reads), named.steps)
        return judge_item(
            part=part,
            number=number,
            prompt=prompt.text,
            completion=completion,
            answer=prompt.answer,
            seeds=seeds,
            steps=steps,
            messages=prompt.messages,
        )

    def _score_if_known(self, number: int) -> None:
        heard = self._heard[number]
        parts = self._spec.rewards.judges
        if len(heard.verdicts) < len(parts) or len(heard.outcomes) < len(self._scorer.functions):
            return
        judged = {part.name: aggregate(part, heard.verdicts[part.name]) for part in parts}
        score = replace(
            self._scorer.total(heard.response, heard.outcomes, judged),
            unread=tuple(
                f"{part.name}/{cause_of(judgement)}"
                for part in parts
                for judgement in heard.verdicts[part.name].judgements
                if judgement.score is None
            ),
        )
        if (critique := self._spec.rewards.critique) is not None:
            score = replace(score, wrong_steps=_wrong(critique, parts, heard, judged))
        self.scores[number] = score


def _wrong(critique: CritiqueSpec, parts: Sequence[JudgePart], heard: _Heard, judged: Judged) -> tuple[float, ...]:
    """Returns how wrong each step is. A critique that failed or cannot be read names none."""
    steps = len(split_steps(heard.response.completion.read(critique.reads), critique.steps))
    told: list[Collection[int]] = []
    if critique.part not in judged:
        told = [heard.outcomes[critique.part].wrong_steps]
    elif not judged[critique.part].reason:
        part = next(part for part in parts if part.name == critique.part)
        judgements = heard.verdicts[critique.part].judgements
        if isinstance(part, TemplatedPart) and part.on_unparsed == "absent":
            judgements = tuple(one for one in judgements if one.score is not None)
        told = [wrong_steps_in(parsed_text(part, one.answer), steps) or () for one in judgements]
    return tuple(voted(told or [()], steps, critique.vote).tolist())


def merged(questions: Sequence[Questions]) -> dict[str, tuple[JudgeItem, ...]]:
    """Returns the questions about several responses by part, in the order given."""
    together: dict[str, list[JudgeItem]] = {}
    for each in questions:
        for part, items in each.items():
            together.setdefault(part, []).extend(items)
    return {part: tuple(items) for part, items in together.items()}
