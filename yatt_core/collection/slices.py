"""The responses of one decode batch that draws a slice: a state machine without engines or files.

Consumes what was sealed of the responses before, the engine's new tokens for those that go on, and tools' answers. Produces the
requests, the calls, the table of what each response has now, and the responses to the prompts whose responses have all ended.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from yatt_core.collection.shard_rows import BatchMember, sampling_of, split_batches
from yatt_core.experience.carried import CARRIED_SCHEMA, CARRIED_TURNS_SCHEMA, GoingGroups, GroupSlice
from yatt_core.experience.table import FINISH_TOOL, STRETCH_TOKENS, STRETCH_VERSIONS
from yatt_core.keys import WorkKey, sample_seed
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.tool_calls import ToolAnswer, ToolCall
from yatt_core.protocols.generation import FINISHED_LENGTH, Float32, GenerateRequest, GenerateResult, Int32
from yatt_core.protocols.receipts import ShardTask, SliceTask
from yatt_core.spec import RunSpec
from yatt_core.tools.dialogue import DialogueResponse, after_turn
from yatt_core.wire.ragged import offsets_of

Sealed = Mapping[tuple[int, int], Mapping[str, Any]]
"""What is sealed of responses that go on, by prompt ordinal and sample: rows of `CARRIED_SCHEMA` or `CARRIED_TURNS_SCHEMA`."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A tool's result between two turns. tokens: of the result and its frame."""

    text: str
    tokens: int


@dataclass(slots=True)
class SlicedResponse:
    """A response in progress.

    prompt: tokens of its prompt.
    tokens: all tokens so far, results of tools included.
    turns: tokens of each of the policy's turns; the last one goes on unless it has an answer.
    answers: the results between the turns.
    stretches: version and number of tokens of each slice so far; results count with the slice before them.
    finish: why it ended; empty until then.
    tool_error: the first error of a tool call.
    new: tokens of the policy that were drawn in this round.
    """

    prompt: Int32
    tokens: Int32
    log_probs: Float32
    turns: list[int] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    stretches: list[tuple[int, int]] = field(default_factory=list)
    finish: str = ""
    tool_error: str = ""
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
        tokens = np.array(row["tokens"][:most], dtype=np.int32)
        answers = zip(json.loads(row.get("answers", "[]")), row.get("answer_tokens", ()), strict=True)
        return cls(
            prompt=prompt,
            tokens=tokens,
            log_probs=np.array(row["log_probs"][:most], dtype=np.float32),
            turns=list(row.get("turns", [len(tokens)])),
            answers=[Answer(text, count) for text, count in answers],
            stretches=stretches_until(list(zip(row[STRETCH_VERSIONS], row[STRETCH_TOKENS], strict=True)), most),
            finish=row["finish"] if drawn <= most else "",
            tool_error=row.get("tool_error", ""),
        )

    @property
    def context(self) -> Int32:
        """The tokens from which the next slice is drawn."""
        return np.concatenate([self.prompt, self.tokens])

    @property
    def spoken(self) -> int:
        """Tokens of the policy so far."""
        return sum(self.turns)

    @property
    def in_turn(self) -> int:
        """Tokens so far of the turn that goes on; 0 if the next token begins one."""
        return self.turns[-1] if len(self.turns) > len(self.answers) else 0

    def draw(self, tokens: Int32, log_probs: Float32, version: int) -> None:
        """Adds tokens of the policy."""
        if len(self.turns) == len(self.answers):
            self.turns.append(0)
        self.turns[-1] += len(tokens)
        self._add(tokens, log_probs, version, goes_on=self.new > 0)
        self.new += len(tokens)

    def be_told(self, tokens: Int32, text: str, version: int) -> None:
        """Adds the result of the call in the last turn, which was drawn in this round."""
        self.answers.append(Answer(text, len(tokens)))
        self._add(tokens, np.zeros(len(tokens), np.float32), version, goes_on=True)

    def _add(self, tokens: Int32, log_probs: Float32, version: int, goes_on: bool) -> None:
        """Adds tokens. goes_on: whether they belong to the stretch before them."""
        self.tokens = np.concatenate([self.tokens, tokens])
        self.log_probs = np.concatenate([self.log_probs, log_probs])
        before = self.stretches.pop()[1] if goes_on else 0
        self.stretches.append((version, before + len(tokens)))

    def as_ended(self, codec: TextCodec) -> DialogueResponse:
        """Returns a response that has ended."""
        ended = DialogueResponse(self.prompt, codec.reading)
        place = 0
        for number, count in enumerate(self.turns):
            tokens = self.tokens[place : place + count]
            ended.say(tokens, self.log_probs[place : place + count], codec.decode_turn(tokens))
            place += count
            if number < len(self.answers):
                answer = self.answers[number]
                ended.be_told(self.tokens[place : place + answer.tokens], answer.text)
                place += answer.tokens
        ended.finish = self.finish
        ended.tool_error = self.tool_error
        return ended


class SliceBatch:
    """The responses of a decode batch, all to new prompts or all to prompts that go on.

    A slice is drawn in one step, or with tools in as many as turns end in it: a call is answered within its slice, and the next
    turn has the tokens that are left.

    codec: decodes turns, and encodes the results of tools.
    members: its responses, group by group.
    slices: of each prompt.
    prompts: tokens of each prompt.
    sealed: what is sealed of prompts that go on.
    """

    def __init__(
        self,
        spec: RunSpec,
        codec: TextCodec,
        key: WorkKey,
        members: Sequence[BatchMember],
        slices: Sequence[SliceTask],
        prompts: Sequence[Int32],
        sealed: Sealed,
    ) -> None:
        self._spec = spec
        self._codec = codec
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
        self._asked: list[int] = []
        self._calls: dict[int, ToolCall | ToolAnswer] = {}

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
            groups={
                self._members[self.numbers(index)[0]].ordinal: self._group_slice(index, is_complete=index in complete)
                for index in range(len(self._slices))
            },
        )

    def _group_slice(self, index: int, is_complete: bool) -> GroupSlice:
        responses = [self.responses[number] for number in self.numbers(index)]
        return GroupSlice(
            question=len(responses[0].prompt),
            lengths=tuple(len(response.tokens) for response in responses),
            drawn=tuple(response.new for response in responses),
            is_complete=is_complete,
        )

    def begin_step(self) -> bool:
        """Chooses the responses of the next request: those that have not ended and may draw; returns whether there are any."""
        drawing = [
            number for number, response in enumerate(self.responses) if not response.finish and self._limit(number)
        ]
        # A request has one minimum of new tokens for all of its responses, and later turns have none.
        first = [number for number in drawing if not self.responses[number].answers]
        self._asked = first if first and self._spec.rollout.min_new_tokens else drawing
        return bool(self._asked)

    def request(self, stop: tuple[int, ...], version: int) -> GenerateRequest:
        """Returns the decode batch of a step: prompts with all samples if they are new, else each response as its own prompt."""
        rollout = self._spec.rollout
        if self._slices[0].place is None and not any(response.turns for response in self.responses):
            numbers = np.arange(len(self.responses)).reshape(len(self._slices), -1)
            prompts = list(self._prompts)
        else:
            numbers = np.array(self._asked)[:, None]
            prompts = [self.responses[number].context for number in self._asked]
        first = numbers[:, 0].tolist()
        drawn = np.array([self.responses[number].in_turn for number in first], dtype=np.int32)
        limits = np.array([self._limit(number) for number in first], dtype=np.int32)
        return GenerateRequest(
            prompts=prompts,
            seeds=np.array([[self._seed(number) for number in row] for row in numbers.tolist()], dtype=np.uint64),
            max_new_tokens=int(limits.max()),
            stop_tokens=stop,
            weight_version=version,
            min_new_tokens=0 if self.responses[first[0]].answers else rollout.min_new_tokens,
            **sampling_of(self._spec),
            limits=limits,
            drawn=drawn,
        )

    def _slice_of(self, number: int) -> SliceTask:
        return self._slices[number // self._spec.rollout.samples_per_prompt]

    def _limit(self, number: int) -> int:
        """Returns how many tokens a response may draw in its next step."""
        response = self.responses[number]
        left = self._spec.rollout.max_new_tokens - response.spoken
        most = self._slice_of(number).tokens
        return left if most is None else min(left, most - response.new)

    def _seed(self, number: int) -> int:
        """Returns the seed of a turn's noise: the same in all slices of the turn."""
        member = self._members[number]
        return sample_seed(
            seed=self._spec.seed,
            branch=self._key.branch,
            iteration=self._slice_of(number).started,
            ordinal=member.ordinal,
            sample=member.sample,
            turn=len(self.responses[number].answers),
        )

    def hear(self, result: GenerateResult, rows: Iterable[int]) -> None:
        """Adds what was drawn of some of the step's responses. rows: their row numbers within the request."""
        rollout = self._spec.rollout
        spans = itertools.pairwise(offsets_of(result.lengths).tolist())
        for row, (start, stop), finish in zip(rows, spans, result.finish, strict=True):
            number = self._asked[row]
            response = self.responses[number]
            response.draw(result.tokens[start:stop], result.log_probs[start:stop], result.weight_version)
            is_cut = finish == FINISHED_LENGTH
            if is_cut and response.spoken < rollout.max_new_tokens:
                continue
            turn = response.tokens[len(response.tokens) - response.in_turn :]
            after = after_turn(
                rollout=rollout,
                reading=self._codec.reading,
                text="" if rollout.tools is None else self._codec.decode_turn(turn),
                turns=len(response.turns),
                spoken=response.spoken,
                is_cut=is_cut,
            )
            if isinstance(after, str):
                response.finish = after
            else:
                self._calls[number] = after

    @property
    def calls(self) -> Mapping[int, ToolCall | ToolAnswer]:
        """The calls in the step that was heard last, by number of the response; `tell` takes their answers."""
        return self._calls

    def tell(self, answers: Mapping[int, ToolAnswer], version: int) -> None:
        """Adds the answers to all calls; a response whose call got none ends here. version: of the weights of this round."""
        for number, answer in answers.items():
            response = self.responses[number]
            response.tool_error = response.tool_error or answer.error
            if answer.is_unavailable:
                response.finish = FINISH_TOOL
                continue
            call = self._calls[number]
            tokens, text = self._codec.encode_result(answer.text, call if isinstance(call, ToolCall) else None)
            response.be_told(tokens, text, version)
        self._calls = {}

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
                "turns": response.turns,
                "answers": json.dumps([answer.text for answer in response.answers]),
                "answer_tokens": [answer.tokens for answer in response.answers],
                "tool_error": response.tool_error,
            }
            for member, response in zip(self._members, self.responses, strict=True)
        ]
        schema = CARRIED_SCHEMA if self._spec.rollout.tools is None else CARRIED_TURNS_SCHEMA
        return pa.Table.from_pylist(rows, schema=schema)

    def restore(self, table: pa.Table) -> None:
        """Takes what `table` has written, after a slice that an earlier attempt drew."""
        before = [response.spoken for response in self.responses]
        self.responses = [
            SlicedResponse.begun(response.prompt, row)
            for response, row in zip(self.responses, table.to_pylist(), strict=True)
        ]
        for response, tokens in zip(self.responses, before, strict=True):
            response.new = response.spoken - tokens


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
