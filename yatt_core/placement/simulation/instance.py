"""A simulated engine instance: continuous batching in closed form between the moments at which something changes.

A state machine without a clock: its owner asks when the current work ends, returns at that moment, and may ask it
to stop at an earlier boundary. Units: seconds, tokens.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from heapq import heapify, heappop, heappush

from yatt_core.placement.seen import Usage
from yatt_core.placement.work import SampleWork
from yatt_core.placement.workload import EngineConstants


class Doing(IntEnum):
    """What an instance is doing."""

    IDLE = 0
    PREFILL = 1
    DECODE = 2


class SimulatedSequence:
    """A sequence of a sample.

    number: number of its turn or judgement.
    left: tokens still to be decoded until it leaves the batch.
    context: number of tokens to which it attends.
    """

    __slots__ = ("admitted", "context", "finish", "left", "number", "sample", "since")

    def __init__(self, sample: Sample, number: int, left: int, context: int) -> None:
        self.sample = sample
        self.number = number
        self.left = left
        self.context = context
        self.admitted = self.finish = self.since = 0


class Sample:
    """A sample in progress: its work, and the number of judgements still open."""

    __slots__ = ("judged_at", "open", "rolled_out_at", "work")

    def __init__(self, work: SampleWork) -> None:
        self.work = work
        self.open = len(work.judge)
        self.rolled_out_at = self.judged_at = math.nan


@dataclass(slots=True)
class Request:
    """A unit of dispatch: tokens to prefill, and the sequences that become active after that."""

    tokens: int
    streams: tuple[SimulatedSequence, ...]


class Instance:
    """An instance that holds one role at a time.

    outstanding: sequences that are pending, prefilling, active or waiting for a tool.
    """

    __slots__ = (
        "activations", "active", "admissions", "constants", "contexts", "doing", "ends", "evict", "index", "intake",
        "joining", "last_prefill", "leaving", "migrating", "outstanding", "pending", "planned", "prefilling",
        "ready", "role", "speed", "stamp", "started", "steps", "usage",
    )  # fmt: skip

    def __init__(self, index: int, speed: float) -> None:
        self.index = index
        self.speed = speed
        self.role = ""
        self.constants = _NOTHING
        self.ready = False
        self.leaving = ""
        self.joining = ""
        self.migrating = False
        self.intake: int | None = None
        self.outstanding = self.evict = self.stamp = self.admissions = self.activations = 0
        self.pending: deque[Request] = deque()
        self.prefilling: list[Request] = []
        self.active: list[tuple[int, int, SimulatedSequence]] = []
        self.contexts = self.steps = self.planned = 0
        self.doing = Doing.IDLE
        self.last_prefill = False
        self.started = self.ends = 0.0
        self.usage: list[Usage] = []

    def serve(self, role: str, constants: EngineConstants) -> None:
        """Takes up a role; the instance must be empty."""
        self.role = role
        self.constants = constants
        self.ready = True
        self.leaving = ""
        self.joining = ""
        self.migrating = False
        self.last_prefill = False
        self.usage.append(Usage(self.index, role))

    def admits(self, size: int) -> bool:
        """Returns True if a unit of `size` sequences may be assigned to it."""
        if self.intake is not None and self.outstanding >= self.intake:
            return False
        return self.outstanding == 0 or self.outstanding + size <= self.constants.max_concurrent

    def admit(self, request: Request) -> None:
        """Appends a unit to the pending ones."""
        self.outstanding += len(request.streams)
        for stream in request.streams:
            self.admissions += 1
            stream.admitted = self.admissions
        self.pending.append(request)

    # -- time --------------------------------------------------------------------------------------------------------

    def begin(self, now: float) -> bool:
        """Starts, at a boundary, a prefill block or decode steps and sets `ends`; returns False if there is no work."""
        if self.pending and (not self.last_prefill or not self.active):
            self._begin_prefill(now)
        elif self.active:
            self.doing = Doing.DECODE
            self.last_prefill = False
            self.started = now
            # If a prefill block has left requests pending, a single decode step precedes the next block.
            self.planned = 1 if self.pending else self.active[0][0] - self.steps
            self.ends = now + self.seconds_of(self.planned)
        else:
            self.doing = Doing.IDLE
            return False
        return True

    def _begin_prefill(self, now: float) -> None:
        block = self.prefilling
        tokens = 0
        pending = self.pending
        budget = self.constants.prefill_budget_tokens
        while pending and (not block or tokens + pending[0].tokens <= budget):
            request = pending.popleft()
            block.append(request)
            tokens += request.tokens
        self.doing = Doing.PREFILL
        self.last_prefill = True
        self.started = now
        self.ends = now + tokens * self.constants.per_prompt_token_s / self.speed

    def seconds_of(self, steps: int) -> float:
        """Returns the seconds of this many decode steps from the current boundary, without a change of the batch."""
        cost = self.constants
        batch = len(self.active)
        first = (cost.base_s + cost.per_sequence_s * batch + cost.per_context_token_s * self.contexts) / self.speed
        return steps * first + cost.per_context_token_s * batch / self.speed * steps * (steps - 1) / 2

    def steps_within(self, seconds: float) -> int:
        """Returns the smallest number of decode steps, at least 1, that takes at least this long."""
        cost = self.constants
        batch = len(self.active)
        first = (cost.base_s + cost.per_sequence_s * batch + cost.per_context_token_s * self.contexts) / self.speed
        half = cost.per_context_token_s * batch / self.speed / 2
        slope = first - half
        steps = seconds / first if half <= 0.0 else (math.sqrt(slope * slope + 4 * half * seconds) - slope) / (2 * half)
        count = max(1, math.ceil(steps))
        while count > 1 and self.seconds_of(count - 1) >= seconds:
            count -= 1
        while self.seconds_of(count) < seconds:
            count += 1
        return count

    def stop_at_boundary(self, now: float) -> bool:
        """Cuts a series of decode steps short at the next boundary; returns True if `ends` changed."""
        if self.doing is not Doing.DECODE:
            return False
        steps = self.steps_within(now - self.started)
        if steps >= self.planned:
            return False
        self.ends = self.started + self.seconds_of(steps)
        self.planned = steps
        return True

    def reach_boundary(self) -> list[SimulatedSequence]:
        """Completes the current work and counts its tokens; returns the sequences that finished, in order."""
        self._account()
        if self.doing is Doing.PREFILL:
            for request in self.prefilling:
                for stream in request.streams:
                    stream.since = self.steps
                    stream.finish = self.steps + stream.left
                    self.contexts += stream.context
                    self.activations += 1
                    heappush(self.active, (stream.finish, self.activations, stream))
            self.prefilling.clear()
        elif self.doing is Doing.DECODE:
            self.steps += self.planned
            self.contexts += self.planned * len(self.active)
        self.doing = Doing.IDLE
        gone = []
        while self.active and self.active[0][0] <= self.steps:
            stream = heappop(self.active)[2]
            self._settle(stream)
            gone.append(stream)
        return gone

    def _account(self) -> None:
        """Records the current work in the usage."""
        done = self.usage[-1]
        seconds = self.ends - self.started
        if self.doing is Doing.PREFILL:
            done.prefill_s += seconds
            done.prompt_tokens += sum(request.tokens for request in self.prefilling)
        elif self.doing is Doing.DECODE:
            batch = len(self.active)
            steps = self.planned
            done.decode_s += seconds
            done.steps += steps
            done.sequence_steps += steps * batch
            done.context_steps += steps * self.contexts + batch * steps * (steps - 1) // 2

    def _settle(self, stream: SimulatedSequence) -> None:
        """Updates a sequence's own counters as it leaves the batch."""
        stream.context += self.steps - stream.since
        stream.left = stream.finish - self.steps
        self.contexts -= stream.context

    # -- evictions ---------------------------------------------------------------------------------------------------

    def evicted(self) -> list[Request]:
        """Removes the sequences to be evicted at a boundary; returns them in order of admission."""
        if not self.evict:
            return []
        count = self.evict
        self.evict = 0
        back: list[Request] = []
        while count and self.pending:
            request = self.pending.pop()
            back.append(request)
            count = max(0, count - len(request.streams))
            self.outstanding -= len(request.streams)
        if count and self.active:
            leaving = sorted(self.active, key=_by_admission, reverse=True)[:count]
            self._drop(stream for _, _, stream in leaving)
            back += [Request(stream.context, (stream,)) for _, _, stream in leaving]
        return back[::-1]

    def _drop(self, streams: Iterable[SimulatedSequence]) -> None:
        gone = set()
        for stream in streams:
            self._settle(stream)
            gone.add(stream)
        self.active = [entry for entry in self.active if entry[2] not in gone]
        heapify(self.active)
        self.outstanding -= len(gone)


def _by_admission(entry: tuple[int, int, SimulatedSequence]) -> int:
    return entry[2].admitted


_NOTHING = EngineConstants(
    base_s=1.0, per_sequence_s=0.0, per_context_token_s=0.0, per_prompt_token_s=0.0, max_concurrent=1
)
