"""Decode batches that share one loop: what is new joins those in progress, and what is to go on elsewhere leaves them.

Consumes requests as they come; produces pieces for each: responses that have ended, and those that are handed over with the
tokens that they have. A state machine without threads: its owner calls `admit` and `advance` for one step of all of them.
Requests of other settings or of other weights than those in progress wait until these have ended. Which responses are decoded
side by side follows from when requests come, so a run is exact only with a runner that is `batch_invariant`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from yatt_core.engines.rollout.torch.rows import ENTRY_SHARE, DecodingRows, Responses
from yatt_core.engines.rollout.torch.runner import Indices, Room, Runner
from yatt_core.engines.rollout.torch.sizes import rows_for
from yatt_core.errors import DataError, YattError
from yatt_core.protocols.engines import EngineWork
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Returned

Came = GeneratePiece | Returned | YattError


@dataclass(slots=True, eq=False)
class CrowdCall:
    """A request in a crowd.

    number: the one by which it is given up.
    entered: number of its prompts, from the first, that have entered.
    end: number of its prompts that have entered or wait; those behind them were handed over.
    left: number of responses that have neither ended nor been handed over.
    arrived: what has become of it since its owner looked.
    """

    request: GenerateRequest
    number: int
    entered: int
    end: int
    left: int
    arrived: deque[Came] = field(default_factory=deque)

    @property
    def samples(self) -> int:
        """The responses to each of its prompts."""
        return int(self.request.seeds.shape[1])

    @property
    def waiting(self) -> int:
        """The prompts that have not entered."""
        return self.end - self.entered


class Crowd:
    """The requests that an engine answers together.

    most: maximum number of responses in progress; more only if one prompt has more.
    prompt_tokens, new_tokens: maximum lengths of prompts and responses.
    """

    def __init__(self, runner: Runner, most: int, prompt_tokens: int, new_tokens: int) -> None:
        self._runner = runner
        self._most = most
        self._prompt_tokens = prompt_tokens
        self._new_tokens = new_tokens
        self._calls: list[CrowdCall] = []
        self._waiting: deque[CrowdCall] = deque()
        self._rows: DecodingRows | None = None
        self._settings: tuple[Any, ...] = ()
        self._free: list[int] = []
        # By number of a response in progress: its call, its row in the request, and when it entered.
        self._owner: dict[int, tuple[CrowdCall, int, int]] = {}
        self._entries = 0
        self._work = EngineWork()

    @property
    def alive(self) -> int:
        """The responses in progress."""
        return 0 if self._rows is None else self._rows.alive

    def join(self, request: GenerateRequest, number: int) -> CrowdCall:
        """Adds a request; its prompts enter as there is room."""
        prompts = len(request.prompts)
        call = CrowdCall(request=request, number=number, entered=0, end=prompts, left=int(request.seeds.size))
        self._calls.append(call)
        self._waiting.append(call)
        return call

    @torch.inference_mode()
    def advance(self) -> None:
        """Decodes one token of each response in progress, on a GPU several.

        Raises `NumericError` if the model produces logits that are not finite.
        """
        rows = self._rows
        if rows is None or not rows.alive:
            return
        before = rows.steps
        sequences = rows.alive
        ended = rows.advance()
        taken = rows.steps - before
        done = self._work
        self._work = replace(done, steps=done.steps + taken, sequence_steps=done.sequence_steps + taken * sequences)
        self._deliver(ended)

    def take_work(self) -> EngineWork:
        """Returns the steps since the last call; their seconds are the owner's to tell."""
        done = self._work
        self._work = EngineWork()
        return done

    @torch.inference_mode()
    def hand_over(self, count: int) -> None:
        """Takes out the newest responses, at least so many if there are, to go on elsewhere: first those that have not entered.

        A prompt that has not entered leaves with all its samples.
        """
        while count > 0 and self._waiting:
            call = self._waiting[-1]
            call.end = call.end - 1
            count -= call.samples
            first = call.end * call.samples
            self._return_waiting(call, range(first, first + call.samples))
            if not call.waiting:
                self._waiting.pop()
        if count > 0 and self._rows is not None:
            newest = sorted(self._owner, key=lambda number: self._owner[number][1:][::-1], reverse=True)[:count]
            self._return(self._rows, np.array(sorted(newest), np.int64))

    @torch.inference_mode()
    def withdraw(self, call: CrowdCall) -> None:
        """Drops a request, of which nothing is wanted any more."""
        self._calls = [each for each in self._calls if each is not call]
        self._waiting = deque(each for each in self._waiting if each is not call)
        own = [number for number, (owner, _, _) in self._owner.items() if owner is call]
        if own and self._rows is not None:
            self._leave(self._rows, np.array(own, np.int64))

    def give_up(self, numbers: Collection[int]) -> None:
        """Drops the requests of these numbers; for their owners they end, without what is left of them."""
        for call in self._calls:
            if call.number in numbers:
                call.left = 0
                call.arrived.clear()
                self.withdraw(call)

    def fail(self, error: YattError) -> None:
        """Ends all requests with an error."""
        for call in self._calls:
            if call.left:
                call.left = 0
                call.arrived.append(error)
        self._calls = []
        self._waiting.clear()
        self._owner.clear()
        self._rows = None

    @torch.inference_mode()
    def admit(self) -> None:
        """Lets the prompts at the head of the queue enter, in order, and draws their responses' first tokens.

        A request whose images cannot be read fails alone. Raises as `advance` does.
        """
        while self._waiting:
            call = self._waiting[0]
            rows = self._room_for(call)
            if rows is None:
                return
            count = min(call.waiting, len(self._free) // call.samples)
            few = count * call.samples < self._most // ENTRY_SHARE
            if not count or (count < call.waiting and rows.alive and few):
                return
            try:
                self._enter(rows, call, count)
            except DataError as error:  # of a prompt, before any of these responses is in progress
                call.left = 0
                call.arrived.append(error)
                self.withdraw(call)
                continue
            if not call.waiting:
                self._waiting.popleft()

    def _room_for(self, call: CrowdCall) -> DecodingRows | None:
        """Returns the rows that the call's prompts may enter, made anew if nothing is in progress; None if they have to wait."""
        settings = _settings_of(call.request)
        most = max(self._most, call.samples)
        if self._rows is not None and settings == self._settings and most <= len(self._rows.responses.lengths):
            return self._rows
        if self.alive:
            return None
        room = Room(
            rows=rows_for(most, self._runner.batch_invariant),
            prompts=most,
            samples=1,
            prompt_tokens=self._prompt_tokens,
            new_tokens=self._new_tokens,
            longest=self._prompt_tokens + self._new_tokens,
        )
        self._rows = DecodingRows(self._runner, call.request, Responses.empty(most, self._new_tokens), room)
        self._rows.begin()
        self._settings = settings
        self._free = list(range(most))[::-1]
        return self._rows

    def _enter(self, rows: DecodingRows, call: CrowdCall, count: int) -> None:
        samples = call.samples
        members = np.arange(call.entered, call.entered + count)
        call.entered += count
        numbers = np.array([self._free.pop() for _ in range(count * samples)], np.int64).reshape(count, samples)
        self._entries += 1
        first = int(members[0]) * samples
        for row, number in enumerate(numbers.reshape(-1).tolist()):
            self._owner[number] = (call, first + row, self._entries)
        read = sum(len(call.request.prompts[member]) for member in members.tolist())
        if call.request.begun is not None:
            read += int(call.request.begun.lengths[members].sum())
        self._work = replace(self._work, prompt_tokens=self._work.prompt_tokens + read)
        self._deliver(rows.enter(call.request, members, numbers))

    def _deliver(self, ended: Indices) -> None:
        """Passes responses that have ended to their calls."""
        rows = self._rows
        if rows is None or not len(ended):
            return
        for call, numbers, own in self._by_call(ended):
            call.left -= len(own)
            found = rows.responses.take(numbers).result(call.request, 0.0)
            call.arrived.append(GeneratePiece(own, found))
        self._forget(ended)

    def _return(self, rows: DecodingRows, numbers: Indices) -> None:
        """Hands over responses in progress, each with what has been drawn of it."""
        for call, own_numbers, own in self._by_call(numbers):
            call.left -= len(own)
            found = rows.responses.take(own_numbers).result(call.request, 0.0)
            call.arrived.append(Returned(own, found))
        self._leave(rows, numbers)

    def _return_waiting(self, call: CrowdCall, own: range) -> None:
        """Hands over responses that have not entered, with what another engine has drawn of them."""
        begun = Responses.empty(len(own), call.request.max_new_tokens)
        for number, row in enumerate(own):
            begun.begin(number, call.request.begun, row)
        call.left -= len(own)
        call.arrived.append(Returned(tuple(own), begun.result(call.request, 0.0)))

    def _leave(self, rows: DecodingRows, numbers: Indices) -> None:
        rows.leave(np.flatnonzero(np.isin(rows.origin[: rows.alive], numbers)))
        self._forget(numbers)

    def _forget(self, numbers: Indices) -> None:
        for number in numbers.tolist():
            del self._owner[number]
            self._free.append(number)

    def _by_call(self, numbers: Indices) -> list[tuple[CrowdCall, Indices, tuple[int, ...]]]:
        """Returns responses by call: their numbers, and their rows in the request, ascending."""
        found: dict[int, tuple[CrowdCall, list[tuple[int, int]]]] = {}
        for number in numbers.tolist():
            call, row, _ = self._owner[number]
            found.setdefault(id(call), (call, []))[1].append((row, number))
        listed = []
        for call, pairs in found.values():
            ordered = sorted(pairs)
            rows = tuple(row for row, _ in ordered)
            listed.append((call, np.array([number for _, number in ordered], np.int64), rows))
        return listed


def _settings_of(request: GenerateRequest) -> tuple[Any, ...]:
    """Returns what responses need to have in common to be decoded together."""
    return (
        request.stop_tokens,
        request.weight_version,
        request.temperature,
        request.top_p,
        request.top_k,
        request.min_p,
        request.repetition_penalty,
        request.greedy,
        request.record_support,
    )
