"""The parallel controller: a Ray actor that owns logical shards and makes their experience from end to end.

Consumes shard tasks (prompt references, never prompts); gets responses from the rollout pool and scores from the reward
functions; produces sealed experience files and receipts. Any number of controllers makes the same bits, since seeds,
decode batches and files follow the logical shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from yatt_core.cluster.presence import Presence
from yatt_core.controllers.generation import GenerationStream
from yatt_core.controllers.shards import (
    greedy_request,
    response_table,
    score_table,
    split_batches,
    split_responses,
    training_request,
)
from yatt_core.data.inputs import Inputs, materialise
from yatt_core.data.prompts import Prompt, media_of
from yatt_core.data.shard_log import ShardLog, adopt
from yatt_core.data.shard_plan import shard_plan
from yatt_core.data.text import TextCodec, open_codec
from yatt_core.engines.protocol import GenerateResult, Int32
from yatt_core.errors import InfrastructureError
from yatt_core.logs import actor_logs, log_context, timed
from yatt_core.receipts import ActorIdentity, EvaluateReceipt, EvaluateTask, InputsReceipt, ShardReceipt, ShardTask
from yatt_core.rewards.scoring import RewardScorer
from yatt_core.spec import RunSpec


@dataclass(slots=True)
class _OpenShard:
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


_Step = tuple[_OpenShard, int]
"""A decode batch: its shard, and its number within it."""


class Controller:
    """One of the run's controllers. Rewards run in the actor's main thread, where a call that hangs can be interrupted."""

    def __init__(self, spec_json: str, run_folder: str, index: int, epoch: int) -> None:
        self._spec = RunSpec.model_validate_json(spec_json)
        self._folder = Path(run_folder)
        self._name = f"controller-{index}"
        self._identity = actor_logs(self._folder, self._name, epoch)
        self._presence = Presence(self._folder, self._name, epoch, self._spec.recovery.grace_seconds)
        self._scorer = RewardScorer(self._spec.rewards)
        self._inputs: Inputs | None = None
        self._codec: TextCodec | None = None
        self._dispatcher: Any = None

    def materialise(self, epoch: int) -> InputsReceipt:
        """Writes the run's inputs (prompts, tokenizer, initial model) unless they are there."""
        with self._presence.serving("materialise", epoch):
            return materialise(self._spec, self._folder)

    def load(self, epoch: int, inputs: InputsReceipt, dispatcher: Any) -> ActorIdentity:
        """Opens the inputs, which never change, and takes the handle of the rollout pool's dispatcher."""
        with self._presence.serving("load", epoch):
            if self._inputs is None:
                self._inputs = Inputs.open(self._folder / inputs.folder, self._spec)
                self._codec = open_codec(self._spec, inputs.model_path)
            self._dispatcher = dispatcher
        return ActorIdentity(self._identity.name, self._identity.pid, self._identity.node)

    def collect(self, tasks: Sequence[ShardTask]) -> Iterator[ShardReceipt]:
        """Makes shards and yields each receipt as its manifest becomes durable.

        Decode batches of all shards are under way at once, so that engines work on while this controller scores.
        Batches and shards that an earlier attempt finished are taken from disk. A driver that dies meanwhile changes
        nothing: the work goes on to its end, and the next driver's call, queued behind it, adopts what it sealed.
        """
        if not tasks:
            return
        with (
            self._presence.serving("collect", tasks[0].epoch),
            GenerationStream[_Step](self._dispatcher, self._name, self._presence.fence) as stream,
            log_context(iteration=tasks[0].key.iteration, phase="collect"),
        ):
            for task in tasks:
                if (adopted := adopt(self._folder, task.key, shard_plan(self._spec, task))) is not None:
                    yield adopted
                    continue
                shard = self._open(task)
                self._submit(shard, stream)
                if shard.complete:
                    yield self._seal(shard)
            for (shard, batch), result in stream.results():
                self._take(shard, batch, result)
                if shard.complete:
                    yield self._seal(shard)

    def evaluate(self, task: EvaluateTask) -> EvaluateReceipt:
        """Answers held-out tasks greedily and counts the right answers."""
        inputs, codec = self._ready()
        prompts = inputs.held_out[task.start : task.stop]
        size = self._spec.rollout.batch_samples
        correct, rewards = 0, [0.0] * len(prompts)
        with (
            self._presence.serving("evaluate", task.epoch),
            GenerationStream[range](self._dispatcher, self._name, self._presence.fence) as stream,
            log_context(iteration=task.key.iteration, phase="evaluate"),
        ):
            for start in range(0, len(prompts), size):
                rows = range(start, min(start + size, len(prompts)))
                batch = [prompts[i] for i in rows]
                tokens = [codec.encode_prompt(prompt.text, prompt.prompt_id, len(prompt.media)) for prompt in batch]
                version, media = task.weight_version, media_of(batch)
                stream.submit(rows, greedy_request(self._spec, tokens, codec.stop_tokens, version, media))
            for rows, result in stream.results():
                for row, response in zip(rows, split_responses(result), strict=True):
                    score = self._scorer.score(prompts[row], codec.decode(response), sample=0)
                    correct += score.correct
                    rewards[row] = score.total
        return EvaluateReceipt(task.key, len(prompts), correct, tuple(rewards))

    def _open(self, task: ShardTask) -> _OpenShard:
        inputs, codec = self._ready()
        prompts = [inputs.prompt(ref) for ref in task.prompts]
        tokens = [codec.encode_prompt(prompt.text, prompt.prompt_id, len(prompt.media)) for prompt in prompts]
        log = ShardLog(self._folder, task.key, task.epoch, shard_plan(self._spec, task))
        return _OpenShard(task, log, prompts, tokens, split_batches(len(prompts), self._spec))

    def _submit(self, shard: _OpenShard, stream: GenerationStream[_Step]) -> None:
        """Asks for what the shard still lacks; a batch whose responses are on disk is only scored."""
        _, codec = self._ready()
        for index, rows in enumerate(shard.batches):
            if (responses := shard.log.responses(index)) is not None:
                self._score(shard, index, responses)
                continue
            refs = [shard.task.prompts[i] for i in rows]
            tokens = [shard.tokens[i] for i in rows]
            media, version = media_of([shard.prompts[i] for i in rows]), shard.task.weight_version
            request = training_request(self._spec, shard.task.key, refs, tokens, codec.stop_tokens, version, media)
            stream.submit((shard, index), request)

    def _take(self, shard: _OpenShard, batch: int, result: GenerateResult) -> None:
        """Makes an engine's answer durable, then scores it."""
        _, codec = self._ready()
        rows = shard.batches[batch]
        shard.timing["generate"] = shard.timing.get("generate", 0.0) + result.seconds
        with timed(shard.timing, "log"):
            responses = response_table(
                [shard.task.prompts[i] for i in rows],
                [shard.prompts[i] for i in rows],
                [shard.tokens[i] for i in rows],
                result,
                codec,
                self._spec.data.has_images,
            )
            shard.log.append_responses(batch, responses)
        self._score(shard, batch, responses)

    def _score(self, shard: _OpenShard, batch: int, responses: pa.Table) -> None:
        """Adds the scores to a batch's responses: those on disk, or new ones made durable."""
        scores = shard.log.scores(batch)
        if scores is None:
            prompts = [
                shard.prompts[i] for i in shard.batches[batch] for _ in range(self._spec.rollout.samples_per_prompt)
            ]
            texts = responses.column("response").to_pylist()
            samples = responses.column("sample").to_pylist()
            with timed(shard.timing, "reward"):
                scored = [
                    self._scorer.score(prompt, text, sample)
                    for prompt, text, sample in zip(prompts, texts, samples, strict=True)
                ]
            with timed(shard.timing, "log"):
                scores = score_table([part.name for part in self._spec.rewards.parts], scored)
                shard.log.append_scores(batch, scores)
        for name in scores.column_names:
            responses = responses.append_column(scores.schema.field(name), scores.column(name))
        shard.finished[batch] = responses

    def _seal(self, shard: _OpenShard) -> ShardReceipt:
        with timed(shard.timing, "seal"):
            table = pa.concat_tables([shard.finished[i] for i in range(len(shard.batches))])
            receipt = shard.log.seal(table, shard.timing)
        return replace(receipt, timing=dict(shard.timing))

    def _ready(self) -> tuple[Inputs, TextCodec]:
        if self._inputs is None or self._codec is None:
            raise InfrastructureError(f"{self._name} was asked to work before it was loaded")
        return self._inputs, self._codec
