"""Decode batches of held-out tasks: requests for their answers, and the results of each task.

Consumes prompts and an engine's output. Produces requests and `TaskResult`s; controllers and `yatt evaluate` share it.
A seed depends only on the spec's seed, the task, the sample and the turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yatt_core.evaluation.estimators import majority
from yatt_core.keys import evaluation_seed
from yatt_core.prompts.codec import TextCodec, encode_question
from yatt_core.prompts.prompt import Completion
from yatt_core.prompts.stream import Prompt, media_of
from yatt_core.protocols.generation import GenerateRequest, GenerateResult, Int32
from yatt_core.protocols.receipts import TaskResult
from yatt_core.rewards.extraction import Extraction
from yatt_core.rewards.scoring import RewardScorer, SampleScore, Scored
from yatt_core.spec import RunSpec
from yatt_core.spent_time import REWARDS, TOOLS, spent
from yatt_core.tools.dialogue import Dialogue, greedy_request
from yatt_core.tools.toolbox import Toolbox


@dataclass(frozen=True, slots=True)
class TaskBatch:
    """A decode batch of tasks.

    rows: indexes of the tasks among all held-out tasks.
    tokens: one array per task.
    dialogue: the answers so far, all samples of a task next to each other.
    """

    rows: range
    prompts: Sequence[Prompt]
    tokens: Sequence[Int32]
    dialogue: Dialogue


class TaskAnswers:
    """Asks for answers to held-out tasks as a spec's `evaluation` says, and scores them."""

    def __init__(self, spec: RunSpec, codec: TextCodec, scorer: RewardScorer, toolbox: Toolbox) -> None:
        self._spec, self._codec, self._scorer, self._toolbox = spec, codec, scorer, toolbox
        self._sampling, self._samples = spec.evaluation.sampling, spec.evaluation.samples
        vote = None if self._sampling is None else self._sampling.vote
        self._vote = None if vote is None else Extraction.model_validate(vote.model_dump())

    def batches(self, start: int, prompts: Sequence[Prompt]) -> list[TaskBatch]:
        """Returns the decode batches of some tasks, with at most `rollout.batch_samples` answers each.

        start: index of the first task among all held-out tasks.
        """
        size = max(1, self._spec.rollout.batch_samples // self._samples)
        return [self._batch(start + i, prompts[i : i + size]) for i in range(0, len(prompts), size)]

    def _batch(self, start: int, prompts: Sequence[Prompt]) -> TaskBatch:
        tokens = [encode_question(prompt, self._codec) for prompt in prompts]
        every = [(prompt, row) for prompt, row in zip(prompts, tokens, strict=True) for _ in range(self._samples)]
        media = media_of([prompt for prompt, _ in every])
        dialogue = Dialogue(self._spec.rollout, self._codec, [row for _, row in every], media)
        return TaskBatch(range(start, start + len(prompts)), prompts, tokens, dialogue)

    def request(self, batch: TaskBatch, version: int) -> GenerateRequest:
        """Returns the request for the next turn; in the first one, the samples of a task share its prompt."""
        dialogue, sampling, stop = batch.dialogue, self._sampling, self._codec.stop_tokens
        if sampling is None:
            return greedy_request(dialogue, stop, version)
        members, first = dialogue.members, dialogue.turn == 0
        seeds = [self._seed(batch, number) for number in members]
        limits = dialogue.limits()
        return GenerateRequest(
            prompts=batch.tokens if first else dialogue.contexts(),
            seeds=np.array(seeds, dtype=np.uint64).reshape(-1, self._samples if first else 1),
            max_new_tokens=int(limits.max()),
            stop_tokens=stop,
            weight_version=version,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            media=media_of(batch.prompts) if first else dialogue.media(),
            limits=None if first else limits,
            question_lengths=None if first else dialogue.question_lengths(),
        )

    def _seed(self, batch: TaskBatch, number: int) -> int:
        task, sample = divmod(number, self._samples)
        return evaluation_seed(self._spec.seed, batch.rows[task], sample, batch.dialogue.turn)

    def hear(self, batch: TaskBatch, result: GenerateResult) -> bool:
        """Takes a turn and answers the tool calls in it; returns True if another turn follows."""
        calls = batch.dialogue.hear(result)
        with spent(TOOLS, "tools"):
            batch.dialogue.tell(dict(self._toolbox.answer(calls)))
        return bool(batch.dialogue.members)

    def results(self, batch: TaskBatch) -> list[TaskResult]:
        """Scores a finished batch; returns the results by task. Raises `DataError` as `RewardScorer` does."""
        completions = [response.completion for response in batch.dialogue.responses]
        places = [divmod(number, self._samples) for number in range(len(completions))]
        answers = [
            Scored(batch.prompts[task], completion, batch.rows[task], sample)
            for (task, sample), completion in zip(places, completions, strict=True)
        ]
        with spent(REWARDS, "reward"):
            scores = self._scorer.score(answers)
        found = []
        for task, prompt in enumerate(batch.prompts):
            own = slice(task * self._samples, (task + 1) * self._samples)
            found.append(self._result(prompt, scores[own], completions[own]))
        return found

    def _result(self, prompt: Prompt, scores: Sequence[SampleScore], answers: Sequence[Completion]) -> TaskResult:
        known = [(score, answer) for score, answer in zip(scores, answers, strict=True) if not score.missing]
        extraction = self._vote
        elected = None
        if extraction is not None and known:
            votes = [(extraction.of_response(one.last_turn, one.final), score.correct) for score, one in known]
            elected = majority(votes)
        return TaskResult(
            prompt_id=prompt.prompt_id,
            source=prompt.source,
            samples=len(known),
            correct=sum(score.correct for score, _ in known),
            reward=math.fsum(score.total for score, _ in known) / max(len(known), 1),
            majority=elected,
            unscored=len(scores) - len(known),
        )
