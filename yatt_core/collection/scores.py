"""The judging and scoring of one decode batch's responses: questions to judges, their verdicts, and the scores.

Consumes responses as they end and verdicts as they arrive; produces questions to judges and `SampleScore`s. A
verdict is durable before it is used. Reward functions run in the calling thread, which must be the process's
main thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from yatt_core.collection.shard_rows import Member
from yatt_core.experience.judge_log import JudgeLog
from yatt_core.judges.seeds import judgement_seeds
from yatt_core.keys import WorkKey
from yatt_core.prompts.stream import Prompt
from yatt_core.protocols.judges import JudgeItem, Verdict, aggregate
from yatt_core.rewards.scoring import RewardScorer, SampleScore
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import JudgePart

Questions = Mapping[str, Sequence[JudgeItem]]
"""The items to be judged, by reward part."""


@dataclass(slots=True)
class _Heard:
    text: str
    last_turn: str
    verdicts: dict[str, Verdict] = field(default_factory=dict)


class BatchScores:
    """The scores of a decode batch's responses.

    members, prompts: the identity and the prompt of each response in the batch.
    key: the key of the batch's shard.
    log: the log of judges' verdicts on the batch.
    """

    def __init__(
        self,
        spec: RunSpec,
        scorer: RewardScorer,
        key: WorkKey,
        members: Sequence[Member],
        prompts: Sequence[Prompt],
        log: JudgeLog,
    ) -> None:
        self._spec, self._scorer, self._key = spec, scorer, key
        self._members, self._prompts, self.log = members, prompts, log
        self._heard: dict[int, _Heard] = {}
        self._items: dict[tuple[str, int], JudgeItem] = {}
        self.scores: dict[int, SampleScore] = {}

    @property
    def ended(self) -> int:
        """The number of responses that have ended."""
        return len(self._heard)

    @property
    def complete(self) -> bool:
        """True if every response is scored."""
        return len(self.scores) == len(self._members)

    def in_order(self) -> list[SampleScore]:
        """Returns all scores in the order of the responses."""
        return [self.scores[number] for number in range(len(self._members))]

    def hear(self, number: int, text: str, last_turn: str) -> Questions:
        """Takes an ended response and returns the questions to judges about it; scores it at once if there are none.

        Raises the same errors as `RewardScorer.score`. A response that was taken before is ignored.
        """
        if number in self._heard:
            return {}
        heard = self._heard[number] = _Heard(text, last_turn)
        questions: dict[str, list[JudgeItem]] = {}
        for part in self._spec.rewards.judges:
            item = self._items[part.name, number] = self._item(part, number, heard)
            known = self.log.find(part.name, item)
            if known is None:
                questions[part.name] = [item]
            else:
                heard.verdicts[part.name] = known
        self._score_if_judged(number)
        return questions

    def be_told(self, part: str, verdicts: Sequence[Verdict]) -> None:
        """Makes verdicts durable, then scores responses that lack none. Raises like `RewardScorer.score`."""
        news = [verdict for verdict in verdicts if part not in self._heard[verdict.number].verdicts]
        self.log.append(part, [self._items[part, verdict.number] for verdict in news], news)
        for verdict in news:
            self._heard[verdict.number].verdicts[part] = verdict
            self._score_if_judged(verdict.number)

    def _item(self, part: JudgePart, number: int, heard: _Heard) -> JudgeItem:
        member, prompt, key = self._members[number], self._prompts[number], self._key
        seeds = judgement_seeds(
            part.name, part.judgements, self._spec.seed, key.branch, key.iteration, member.ordinal, member.sample
        )
        text = heard.text if part.reads == "response" else heard.last_turn
        return JudgeItem(number, prompt.text, text, prompt.answer, seeds)

    def _score_if_judged(self, number: int) -> None:
        heard, parts = self._heard[number], self._spec.rewards.judges
        if len(heard.verdicts) < len(parts):
            return
        judged = {part.name: aggregate(part, heard.verdicts[part.name]) for part in parts}
        prompt, sample = self._prompts[number], self._members[number].sample
        self.scores[number] = self._scorer.score(prompt, heard.text, sample, heard.last_turn, judged)


def merged(questions: Sequence[Questions]) -> dict[str, tuple[JudgeItem, ...]]:
    """Returns the questions about several responses by part, in the order given."""
    together: dict[str, list[JudgeItem]] = {}
    for each in questions:
        for part, items in each.items():
            together.setdefault(part, []).extend(items)
    return {part: tuple(items) for part, items in together.items()}
