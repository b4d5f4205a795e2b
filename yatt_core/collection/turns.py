"""Draws the responses of decode batches turn by turn, and has the calls in between answered: in one of two ways.

Consumes open batches and what engines draw of them; produces requests for next turns and calls of tools, and makes turns and
answers durable before they are used.

- `PlannedTurns`: a turn is that of the whole batch. Its calls are answered once all of it has been drawn, and the responses that
  continue form the next decode batch.
- `JoinedTurns`: each response goes on for itself, beside the rest of its batch, and joins what engines with continuous batching
  are decoding.

Seeds follow from the response and its turn, so that both draw the same where a response does not depend on its batch. A batch
goes on in the way in which it was begun, because the two log turns differently (`TurnsAsBegun`).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from yatt_core.collection.open_shards import OpenBatch
from yatt_core.collection.shard_rows import next_turn_request, training_request, turn_result, turn_table
from yatt_core.collection.stages import stage
from yatt_core.dispatch.stream import Arrival, Stream
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.stream import media_of
from yatt_core.prompts.tool_calls import ToolAnswer, ToolCall
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.pieces import cut_piece, join_pieces
from yatt_core.spec import RunSpec
from yatt_core.spec.sections.accelerated import VllmRollout
from yatt_core.tools.toolbox import Toolbox


class Turns(Protocol):
    """A way to draw responses turn by turn."""

    def go_on(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """Takes turns and answers from disk, then requests what follows them."""
        ...

    def take(self, arrival: Arrival[OpenBatch], stream: Stream[OpenBatch]) -> None:
        """Takes what was drawn of a batch, and requests what follows."""
        ...

    def waits(self) -> bool:
        """Returns whether calls are in progress."""
        ...

    def take_answers(self, stream: Stream[OpenBatch]) -> Sequence[OpenBatch]:
        """Takes the answers that have arrived, and requests what follows; returns the batches that they are of."""
        ...

    def close(self) -> None:
        """Ends the calls in progress."""
        ...


def turns_of(spec: RunSpec, codec: TextCodec, toolbox: Toolbox) -> Turns:
    """Returns the way of a run."""
    if spec.rollout.tools is None:
        return PlannedTurns(spec, codec, toolbox)
    joins = joins_turns(spec)
    beside = toolbox.beside()
    return TurnsAsBegun(
        joins=joins,
        planned=PlannedTurns(spec, codec, beside if joins else toolbox),
        joined=JoinedTurns(spec, codec, toolbox if joins else beside),
        beside=beside,
    )


def joins_turns(spec: RunSpec) -> bool:
    """Returns whether turns join what is being decoded: if engines take up responses while they decode others.

    Where a run is exact, vLLM gets planned turns: no run has shown yet that its bits stay the same if later turns, some of whose
    tokens it has in its cache, come at any time.
    """
    engine = spec.rollout.engine
    if spec.rollout.tools is None or not engine.continuous:
        return False
    return not (isinstance(engine, VllmRollout) and spec.is_exact)


@dataclass(frozen=True, slots=True)
class PlannedTurns:
    """Turns of whole decode batches. Without tools, a response is a single turn, which is heard piece by piece."""

    spec: RunSpec
    codec: TextCodec
    toolbox: Toolbox

    def go_on(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """See `Turns`."""
        while batch.dialogue.members:
            turn = None if self.spec.rollout.tools is None else batch.turns.turn()
            if turn is None:
                stream.submit(batch, self._request(batch))
                return
            self._hear(batch, turn_result(turn, batch.shard.task.weight_version))

    def take(self, arrival: Arrival[OpenBatch], stream: Stream[OpenBatch]) -> None:
        """Takes finished responses of a decode batch or, if more turns may follow, a whole turn at once."""
        batch = arrival.tag
        if self.spec.rollout.tools is None:
            batch.dialogue.hear(arrival.piece.result, arrival.piece.rows)
        else:
            batch.pieces.append(arrival.piece)
            if arrival.complete:
                self._take_turn(batch)
        if arrival.complete:
            self.go_on(batch, stream)

    def waits(self) -> bool:
        """See `Turns`: a turn's calls are answered while nothing else is done."""
        return False

    def take_answers(self, stream: Stream[OpenBatch]) -> Sequence[OpenBatch]:
        """See `Turns`."""
        return ()

    def close(self) -> None:
        """See `Turns`."""

    def _request(self, batch: OpenBatch) -> GenerateRequest:
        if not batch.dialogue.turn:
            return _first_request(self.spec, self.codec, batch)
        return _next_request(self.spec, self.codec, batch, batch.dialogue.members)

    def _take_turn(self, batch: OpenBatch) -> None:
        """Makes a turn durable before a tool is called."""
        self._hear(batch, durable_turn(batch))

    def _hear(self, batch: OpenBatch, result: GenerateResult) -> None:
        """Answers the calls in a turn from disk or by calling the tools; each result is durable before it is used."""
        batch.dialogue.tell(answers_of(batch, batch.dialogue.hear(result), self.toolbox))


def durable_turn(batch: OpenBatch) -> GenerateResult:
    """Returns what a batch has drawn in a turn, all of whose pieces have arrived, once it is durable."""
    result = join_pieces(batch.pieces).result
    batch.pieces.clear()
    with stage(batch.shard.timing, "log"):
        batch.turns.append_turn(turn_table(result))
    return result


def answers_of(batch: OpenBatch, calls: Mapping[int, ToolCall | ToolAnswer], toolbox: Toolbox) -> dict[int, ToolAnswer]:
    """Returns the answers to the calls in a batch's newest turn, by response: those on disk, and what the tools answer.

    Each is durable before it is used.
    """
    known = {number: batch.turns.answer(number) for number in calls}
    answers = {number: answer for number, answer in known.items() if answer is not None}
    open_calls = {number: call for number, call in calls.items() if number not in answers}
    with stage(batch.shard.timing, "tools"):
        for number, answer in toolbox.answer(open_calls):
            batch.turns.append_answer(number, answer)
            answers[number] = answer
    return answers


@dataclass(frozen=True, slots=True)
class _OpenCall:
    """A call in progress.

    response: its number within the batch.
    began: when, in seconds of the monotonic clock.
    """

    batch: OpenBatch
    response: int
    began: float


@dataclass(slots=True)
class JoinedTurns:
    """Turns of single responses: each goes on as soon as its own turn, and the call in it, is over."""

    spec: RunSpec
    codec: TextCodec
    toolbox: Toolbox
    _open: dict[int, _OpenCall] = field(default_factory=dict)
    _calls: itertools.count[int] = field(default_factory=itertools.count)

    def go_on(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """See `Turns`."""
        going = [number for number in batch.dialogue.members if self._replay(batch, number)]
        self._request(batch, going, stream)

    def take(self, arrival: Arrival[OpenBatch], stream: Stream[OpenBatch]) -> None:
        """Makes the turns that have ended durable, and makes the calls in them; what has an answer on disk goes on at once."""
        batch = arrival.tag
        asked = batch.asked[arrival.number]
        if arrival.complete:
            del batch.asked[arrival.number]
        whole = arrival.piece.result
        ended = {
            asked[row]: cut_piece(whole, np.array([place]), 0.0).result for place, row in enumerate(arrival.piece.rows)
        }
        with stage(batch.shard.timing, "log"):
            batch.joined.append_turns({number: turn_table(result) for number, result in ended.items()})
        self._request(batch, [number for number in sorted(ended) if self._hear(batch, number, ended[number])], stream)

    def waits(self) -> bool:
        """See `Turns`."""
        return bool(self._open)

    def take_answers(self, stream: Stream[OpenBatch]) -> Sequence[OpenBatch]:
        """See `Turns`. Answers are durable before they are used."""
        if not self._open:
            return ()
        arrived = [(self._open.pop(number), answer) for number, answer in self.toolbox.arrived()]
        batches = {id(call.batch): call.batch for call, _ in arrived}
        for each, batch in batches.items():
            own = [(call, answer) for call, answer in arrived if id(call.batch) == each]
            timing = batch.shard.timing
            timing["tools"] = timing.get("tools", 0.0) + sum(time.monotonic() - call.began for call, _ in own)
            self._take_answers(batch, {call.response: answer for call, answer in own}, stream)
        return list(batches.values())

    def close(self) -> None:
        """See `Turns`."""
        if self._open:
            self._open.clear()
            self.toolbox.close()

    def _take_answers(self, batch: OpenBatch, answers: Mapping[int, ToolAnswer], stream: Stream[OpenBatch]) -> None:
        with stage(batch.shard.timing, "log"):
            batch.joined.append_answers(answers)
        batch.dialogue.tell(answers)
        self._request(batch, [number for number in batch.dialogue.members if number in answers], stream)

    def _replay(self, batch: OpenBatch, number: int) -> bool:
        """Takes a response's turns and answers from disk; returns whether its next turn has to be drawn."""
        while (turn := batch.joined.turn(number)) is not None:
            if not self._hear(batch, number, turn_result(turn, batch.shard.task.weight_version)):
                return False
        return True

    def _hear(self, batch: OpenBatch, number: int, result: GenerateResult) -> bool:
        """Adds a response's turn, which is durable; returns whether the next one can be drawn.

        A call in it is made, unless its answer is on disk.
        """
        call = batch.dialogue.hear(result, [number]).get(number)
        if call is None:
            return False
        answer = batch.joined.answer(number)
        if answer is not None:
            batch.dialogue.tell({number: answer})
            return not batch.dialogue.responses[number].finish
        name = next(self._calls)
        self._open[name] = _OpenCall(batch=batch, response=number, began=time.monotonic())
        self.toolbox.begin({name: call})
        return False

    def _request(self, batch: OpenBatch, numbers: Sequence[int], stream: Stream[OpenBatch]) -> None:
        """Requests the next turns of some responses; those of a batch that has none yet share their prompts."""
        responses = batch.dialogue.responses
        if len(numbers) == len(responses) and not batch.dialogue.turn:
            batch.asked[stream.submit(batch, _first_request(self.spec, self.codec, batch))] = tuple(numbers)
            return
        first = [number for number in numbers if not responses[number].turns]
        later = [number for number in numbers if responses[number].turns]
        for chosen in filter(None, (first, later)):
            request = _next_request(self.spec, self.codec, batch, chosen)
            batch.asked[stream.submit(batch, request, ahead=True)] = tuple(chosen)


@dataclass(frozen=True, slots=True)
class TurnsAsBegun:
    """Turns of batches in the run's way, except for those that were begun in the other way.

    An upgrade or a change of the spec in the middle of a shard may have changed the way; what is durable counts nevertheless. A
    batch of which both logs are begun goes on in the run's way: what only the other log has of it is drawn and asked again.

    joins: whether the run's way is `joined`.
    beside: the tools of the other way, since calls of both may be in progress at once.
    """

    joins: bool
    planned: PlannedTurns
    joined: JoinedTurns
    beside: Toolbox

    def go_on(self, batch: OpenBatch, stream: Stream[OpenBatch]) -> None:
        """See `Turns`."""
        own = batch.joined if self.joins else batch.turns
        other = batch.turns if self.joins else batch.joined
        batch.joins = self.joins if own.begun or not other.begun else not self.joins
        self._way(batch).go_on(batch, stream)

    def take(self, arrival: Arrival[OpenBatch], stream: Stream[OpenBatch]) -> None:
        """See `Turns`."""
        self._way(arrival.tag).take(arrival, stream)

    def waits(self) -> bool:
        """See `Turns`."""
        return self.joined.waits()

    def take_answers(self, stream: Stream[OpenBatch]) -> Sequence[OpenBatch]:
        """See `Turns`."""
        return self.joined.take_answers(stream)

    def close(self) -> None:
        """See `Turns`."""
        try:
            self.joined.close()
        finally:
            self.beside.close()

    def _way(self, batch: OpenBatch) -> Turns:
        return self.joined if batch.joins else self.planned


def _first_request(spec: RunSpec, codec: TextCodec, batch: OpenBatch) -> GenerateRequest:
    """Returns the request for the first turn of a whole batch."""
    shard = batch.shard
    return training_request(
        spec=spec,
        key=shard.task.key,
        refs=[shard.task.prompts[i] for i in batch.rows],
        tokens=[shard.tokens[i] for i in batch.rows],
        stop=codec.stop_tokens,
        version=shard.task.weight_version,
        media=media_of([shard.prompts[i] for i in batch.rows]),
    )


def _next_request(spec: RunSpec, codec: TextCodec, batch: OpenBatch, numbers: Sequence[int]) -> GenerateRequest:
    """Returns the request for the next turns of some responses."""
    task = batch.shard.task
    return next_turn_request(
        spec=spec,
        key=task.key,
        members=batch.members,
        dialogue=batch.dialogue,
        stop=codec.stop_tokens,
        version=task.weight_version,
        numbers=numbers,
    )
