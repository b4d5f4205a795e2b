"""The responses of one decode batch that draws a slice: a state machine without engines or files.

Consumes what was sealed of the responses before, and the engine's new tokens for those that go on. Produces the request, the
table of what each response has now, and the responses to the prompts whose responses have all ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from yatt_core.collection.shard_rows import BatchMember, sampling_of, split_batches
from yatt_core.experience.carried import CARRIED_SCHEMA, GoingGroups
from yatt_core.experience.table import FINISH_LENGTH, FINISH_STOP, STRETCH_TOKENS, STRETCH_VERSIONS
from yatt_core.keys import WorkKey, sample_seed
from yatt_core.prompts.codec import TextCodec
from yatt_core.protocols.generation import FINISHED_LENGTH, Float32, GenerateRequest, GenerateResult, Int32
from yatt_core.protocols.receipts import ShardTask, SliceTask
from yatt_core.spec import RunSpec
from yatt_core.tools.dialogue import DialogueResponse
from yatt_core.wire.ragged import offsets_of

Sealed = Mapping[tuple[int, int], Mapping[str, Any]]
"""What is sealed of responses that go on, by prompt ordinal and sample: rows of `CARRIED_SCHEMA`."""


@dataclass(slots=True)
class SlicedResponse:
    """A response in progress.

    prompt: tokens of its prompt.
    stretches: version and number of tokens of each slice so far.
    finish: why it ended; empty until then.
    new: tokens drawn in this round.
    """

    prompt: Int32
    tokens: Int32
    log_probs: Float32
    stretches: list[tuple[int, int]] = field(default_factory=list)
    finish: str = ""
    new: int = 0

    @classmethod
    def begun(cls, prompt: Int32, row: Mapping[str, Any] | None, kept: int | None = None) -> SlicedResponse:
        """Returns a response as it was sealed; None: nothing is drawn of it.

        kept: the most tokens that are kept of it; one that ended behind them goes on. None: all.
        """
        if row is None:
            return cls(prompt, np.empty(0, np.int32), np.empty(0, np.float32))
        drawn = len(row["tokens"])
        most = drawn if kept is None else kept
        return cls(
            prompt=prompt,
            tokens=np.array(row["tokens"][:most], dtype=np.int32),
            log_probs=np.array(row["log_probs"][:most], dtype=np.float32),
            stretches=stretches_until(list(zip(row[STRETCH_VERSIONS], row[STRETCH_TOKENS], strict=True)), most),
            finish=row["finish"] if drawn <= most else "",
        )

    @property
    def context(self) -> Int32:
        """The tokens from which the next slice is drawn."""
        return np.concatenate([self.prompt, self.tokens])

    def draw(self, tokens: Int32, log_probs: Float32, version: int) -> None:
        """Adds a slice."""
        self.tokens = np.concatenate([self.tokens, tokens])
        self.log_probs = np.concatenate([self.log_probs, log_probs])
        self.stretches.append((version, len(tokens)))
        self.new = len(tokens)

    def as_ended(self, codec: TextCodec) -> DialogueResponse:
        """Returns a response that has ended as one of a single turn."""
        ended = DialogueResponse(self.prompt, codec.reading)
        ended.say(self.tokens, self.log_probs, codec.decode_turn(self.tokens))
        ended.finish = self.finish
        return ended


class SliceBatch:
    """The responses of a decode batch, all to new prompts or all to prompts that go on.

    members: its responses, group by group.
    slices: of each prompt.
    prompts: tokens of each prompt.
    sealed: what is sealed of prompts that go on.
    """

    def __init__(
        self,
        spec: RunSpec,
        key: WorkKey,
        members: Sequence[BatchMember],
        slices: Sequence[SliceTask],
        prompts: Sequence[Int32],
        sealed: Sealed,
    ) -> None:
        self._spec = spec
        self._key = key
        self._members = members
        self._slices = slices
        self._prompts = prompts
        samples = spec.rollout.samples_per_prompt
        self.responses = [
            SlicedResponse.begun(
                prompt=prompts[number // samples],
                row=sealed.get((member.ordinal, member.sample)),
                kept=slices[number // samples].kept,
            )
            for number, member in enumerate(members)
        ]
        self._open = [number for number, response in enumerate(self.responses) if not response.finish]

    @property
    def complete(self) -> list[int]:
        """The prompts, by index, whose responses have all ended."""
        groups = range(len(self._slices))
        return [index for index in groups if all(self.responses[number].finish for number in self.numbers(index))]

    def numbers(self, index: int) -> range:
        """Returns the numbers of the responses to a prompt."""
        samples = self._spec.rollout.samples_per_prompt
        return range(index * samples, (index + 1) * samples)

    def going(self) -> GoingGroups:
        """Returns what the slice has made of the groups."""
        complete = set(self.complete)
        table = self.table()
        rows = [number for index in range(len(self._slices)) if index not in complete for number in self.numbers(index)]
        return GoingGroups(
            table=table.take(pa.array(rows, pa.int64())),
            completed={
                self._members[self.numbers(index)[0]].ordinal: max(
                    self.responses[number].new for number in self.numbers(index)
                )
                if index in complete
                else 0
                for index in range(len(self._slices))
            },
            lengths={
                self._members[self.numbers(index)[0]].ordinal: tuple(
                    len(self.responses[number].tokens) for number in self.numbers(index)
                )
                for index in range(len(self._slices))
            },
        )

    def request(self, stop: tuple[int, ...], version: int) -> GenerateRequest:
        """Returns the decode batch: prompts with all samples if they are new, else each open response as its own prompt."""
        rollout = self._spec.rollout
        if self._slices[0].place is None:
            numbers = np.arange(len(self.responses)).reshape(len(self._slices), -1)
            prompts = list(self._prompts)
        else:
            numbers = np.array(self._open)[:, None]
            prompts = [self.responses[number].context for number in self._open]
        first = numbers[:, 0].tolist()
        drawn = np.array([len(self.responses[number].tokens) for number in first], dtype=np.int32)
        limits = np.array([self._limit(number) for number in first], dtype=np.int32)
        return GenerateRequest(
            prompts=prompts,
            seeds=np.array([[self._seed(number) for number in row] for row in numbers.tolist()], dtype=np.uint64),
            max_new_tokens=int(limits.max()),
            stop_tokens=stop,
            weight_version=version,
            min_new_tokens=rollout.min_new_tokens,
            **sampling_of(self._spec),
            limits=limits,
            drawn=drawn,
        )

    def _slice_of(self, number: int) -> SliceTask:
        return self._slices[number // self._spec.rollout.samples_per_prompt]

    def _limit(self, number: int) -> int:
        left = self._spec.rollout.max_new_tokens - len(self.responses[number].tokens)
        most = self._slice_of(number).tokens
        return left if most is None else min(left, most)

    def _seed(self, number: int) -> int:
        """Returns the seed of a response's noise: the same in all of its slices."""
        member = self._members[number]
        return sample_seed(
            seed=self._spec.seed,
            branch=self._key.branch,
            iteration=self._slice_of(number).started,
            ordinal=member.ordinal,
            sample=member.sample,
        )

    def hear(self, result: GenerateResult, rows: Iterable[int]) -> None:
        """Adds the slices of some of the request's responses. rows: their row numbers within the request."""
        spans = itertools.pairwise(offsets_of(result.lengths).tolist())
        for row, (start, stop), finish in zip(rows, spans, result.finish, strict=True):
            response = self.responses[self._open[row]]
            response.draw(result.tokens[start:stop], result.log_probs[start:stop], result.weight_version)
            if finish != FINISHED_LENGTH:
                response.finish = FINISH_STOP
            elif len(response.tokens) >= self._spec.rollout.max_new_tokens:
                response.finish = FINISH_LENGTH

    def table(self) -> pa.Table:
        """Returns what each response has now."""
        rows = [
            {
                "prompt_ordinal": member.ordinal,
                "sample": member.sample,
                "tokens": response.tokens,
                "log_probs": response.log_probs,
                STRETCH_VERSIONS: [version for version, _ in response.stretches],
                STRETCH_TOKENS: [tokens for _, tokens in response.stretches],
                "finish": response.finish,
            }
            for member, response in zip(self._members, self.responses, strict=True)
        ]
        return pa.Table.from_pylist(rows, schema=CARRIED_SCHEMA)

    def restore(self, table: pa.Table) -> None:
        """Takes what `table` has written, after a slice that an earlier attempt drew."""
        before = [len(response.tokens) for response in self.responses]
        self.responses = [
            SlicedResponse.begun(response.prompt, row)
            for response, row in zip(self.responses, table.to_pylist(), strict=True)
        ]
        for response, tokens in zip(self.responses, before, strict=True):
            response.new = len(response.tokens) - tokens


def stretches_until(stretches: Sequence[tuple[int, int]], most: int) -> list[tuple[int, int]]:
    """Returns the stretches of a response, as version and number of tokens, of which only the first tokens are kept."""
    found: list[tuple[int, int]] = []
    for version, tokens in stretches:
        left = most - sum(each for _, each in found)
        if left > 0:
            found.append((version, min(tokens, left)))
    return found


def batches_of(task: ShardTask, spec: RunSpec) -> list[range]:
    """Returns a shard's decode batches as ranges of its prompts; none has both prompts that go on and new ones."""
    going = sum(one.place is not None for one in task.slices)
    batches = split_batches(going, spec)
    return [
        *batches,
        *(range(rows.start + going, rows.stop + going) for rows in split_batches(len(task.prompts) - going, spec)),
    ]


def rows_by_member(tables: Iterable[pa.Table]) -> dict[tuple[int, int], Mapping[str, Any]]:
    """Returns the rows of tables of responses that go on, by prompt ordinal and sample."""
    rows = itertools.chain.from_iterable(table.to_pylist() for table in tables)
    return {(row["prompt_ordinal"], row["sample"]): row for row in rows}
