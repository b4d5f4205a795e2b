"""Collects the experience of logical shards: the controller's work from prompts to sealed files, without Ray.

Consumes shard tasks and a stream of decode batches that engines answer; produces chunks that are durable before anything is
made of them, sealed experience files, and receipts. Batches and shards that an earlier attempt finished are taken from disk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from yatt_core.controllers.shards import (
    Member,
    last_turns,
    members_of,
    next_turn_request,
    response_table,
    score_table,
    split_batches,
    training_request,
    turn_result,
    turn_table,
)
from yatt_core.data.prompts import Prompt
from yatt_core.data.shard_log import ShardLog, adopt
from yatt_core.data.shard_plan import shard_plan
from yatt_core.data.text import TextCodec
from yatt_core.data.turn_log import TurnLog
from yatt_core.engines.protocol import GenerateRequest, GenerateResult, Int32
from yatt_core.logs import timed
from yatt_core.receipts import PromptRef, ShardReceipt, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec
from yatt_core.tools.dialogue import Dialogue
from yatt_core.tools.toolbox import Toolbox


@dataclass(slots=True)
class OpenShard:
    """A shard under way: its prompts, and what its decode batches have come to so far."""

    task: ShardTask
    log: ShardLog
    prompts: list[Prompt]
    tokens: list[Int32]
    batches: list[range]
    finished: dict[int, pa.Table] = field(default_factory=dict)
    timing: dict[str, float] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return len(self.finished) == len(self.batches)


@dataclass(slots=True)
class OpenBatch:
    """A decode batch under way. rows: of its shard's prompts. members: its responses. turns: where their turns are kept."""

    shard: OpenShard
    number: int
    rows: range
    members: list[Member]
    dialogue: Dialogue
    turns: TurnLog


class Stream(Protocol):
    """The way to the engines: decode batches under way, answers as they come."""

    def submit(self, tag: OpenBatch, request: GenerateRequest) -> None:
        """Asks for a decode batch."""
        ...

    def results(self) -> Iterator[tuple[OpenBatch, GenerateResult]]:
        """What was asked for, until there is nothing left; more may be asked for meanwhile."""
        ...


class PromptSource(Protocol):
    """Where prompts are looked up; `Inputs` is one."""

    def prompt(self, reference: PromptRef) -> Prompt:
        """The prompt that a reference stands for."""
        ...


@dataclass(frozen=True, slots=True)
class Collector:
    """Makes shards of a run. Rewards are called in the thread that calls this, which has to be the process's main one."""

    spec: RunSpec
    run_folder: Path
    inputs: PromptSource
    codec: TextCodec
    scorer: RewardScorer
    toolbox: Toolbox

    def collect(self, tasks: Sequence[ShardTask], stream: Stream) -> Iterator[ShardReceipt]:
        """Yields each shard's receipt as its manifest becomes durable; decode batches of all shards are under way at once."""
        for task in tasks:
            if (adopted := adopt(self.run_folder, task.key, shard_plan(self.spec, task))) is not None:
                yield adopted
                continue
            shard = self._open(task)
            self._submit(shard, stream)
            if shard.complete:
                yield self._seal(shard)
        for batch, result in stream.results():
            self._take(batch, result, stream)
            if batch.shard.complete:
                yield self._seal(batch.shard)

    def _open(self, task: ShardTask) -> OpenShard:
        prompts = [self.inputs.prompt(ref) for ref in task.prompts]
        tokens = [self.codec.encode_prompt(prompt.text, prompt.prompt_id) for prompt in prompts]
        log = ShardLog(self.run_folder, task.key, task.epoch, shard_plan(self.spec, task))
        return OpenShard(task, log, prompts, tokens, split_batches(len(prompts), self.spec))

    def _submit(self, shard: OpenShard, stream: Stream) -> None:
        """Asks for what the shard still lacks; a batch whose responses are on disk is only scored."""
        for number, rows in enumerate(shard.batches):
            if (responses := shard.log.responses(number)) is not None:
                self._score(shard, number, responses)
                continue
            members = members_of(self.spec, [shard.task.prompts[i] for i in rows])
            tokens = [shard.tokens[i] for i in rows for _ in range(self.spec.rollout.samples_per_prompt)]
            dialogue = Dialogue(self.spec.rollout, self.codec, tokens)
            self._go_on(OpenBatch(shard, number, rows, members, dialogue, shard.log.turns(number)), stream)

    def _go_on(self, batch: OpenBatch, stream: Stream) -> None:
        """Follows a batch as far as its turns are on disk; then asks for the next one, or scores what has come to its end."""
        while batch.dialogue.members:
            turn = None if self.spec.rollout.tools is None else batch.turns.turn()
            if turn is None:
                stream.submit(batch, self._request(batch))
                return
            self._hear(batch, turn_result(turn, batch.shard.task.weight_version))
        self._finish(batch)

    def _request(self, batch: OpenBatch) -> GenerateRequest:
        """The decode batch of the next turn."""
        task = batch.shard.task
        if batch.dialogue.turn:
            return next_turn_request(
                self.spec, task.key, batch.members, batch.dialogue, self.codec.stop_tokens, task.weight_version
            )
        refs = [task.prompts[i] for i in batch.rows]
        tokens = [batch.shard.tokens[i] for i in batch.rows]
        return training_request(self.spec, task.key, refs, tokens, self.codec.stop_tokens, task.weight_version)

    def _take(self, batch: OpenBatch, result: GenerateResult, stream: Stream) -> None:
        """Takes an engine's answer; where more turns may follow it is durable before a tool is called."""
        timing = batch.shard.timing
        timing["generate"] = timing.get("generate", 0.0) + result.seconds
        if self.spec.rollout.tools is not None:
            with timed(timing, "log"):
                batch.turns.append_turn(turn_table(result))
        self._hear(batch, result)
        self._go_on(batch, stream)

    def _hear(self, batch: OpenBatch, result: GenerateResult) -> None:
        """Answers the calls in a turn: from disk, or by calling; each result is durable before it is used."""
        calls = batch.dialogue.hear(result)
        known = {number: batch.turns.answer(number) for number in calls}
        answers = {number: answer for number, answer in known.items() if answer is not None}
        open_calls = {number: call for number, call in calls.items() if number not in answers}
        with timed(batch.shard.timing, "tools"):
            for number, answer in self.toolbox.answer(open_calls):
                batch.turns.append_answer(number, answer)
                answers[number] = answer
        batch.dialogue.tell(answers)

    def _finish(self, batch: OpenBatch) -> None:
        """Makes a batch's responses durable, then scores them."""
        shard, rows = batch.shard, batch.rows
        with timed(shard.timing, "log"):
            responses = response_table(
                [shard.task.prompts[i] for i in rows],
                [shard.prompts[i] for i in rows],
                [shard.tokens[i] for i in rows],
                batch.dialogue.responses,
                shard.task.weight_version,
                several_turns=self.spec.rollout.tools is not None,
            )
            shard.log.append_responses(batch.number, responses)
        self._score(shard, batch.number, responses)

    def _score(self, shard: OpenShard, batch: int, responses: pa.Table) -> None:
        """Adds the scores to a batch's responses: those on disk, or new ones made durable."""
        scores = shard.log.scores(batch)
        if scores is None:
            prompts = [
                shard.prompts[i] for i in shard.batches[batch] for _ in range(self.spec.rollout.samples_per_prompt)
            ]
            texts = responses.column("response").to_pylist()
            samples = responses.column("sample").to_pylist()
            with timed(shard.timing, "reward"):
                scored = [
                    self.scorer.score(prompt, text, sample, last_turn)
                    for prompt, text, sample, last_turn in zip(
                        prompts, texts, samples, last_turns(responses, self.codec), strict=True
                    )
                ]
            with timed(shard.timing, "log"):
                scores = score_table([part.name for part in self.spec.rewards.parts], scored)
                shard.log.append_scores(batch, scores)
        for name in scores.column_names:
            responses = responses.append_column(scores.schema.field(name), scores.column(name))
        shard.finished[batch] = responses

    def _seal(self, shard: OpenShard) -> ShardReceipt:
        with timed(shard.timing, "seal"):
            table = pa.concat_tables([shard.finished[i] for i in range(len(shard.batches))])
            receipt = shard.log.seal(table, shard.timing)
        return replace(receipt, timing=dict(shard.timing))
