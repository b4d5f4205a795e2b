"""A controller's work for engines and judges: a batch, its role, and how to read the answers. Knows nothing of Ray.

Responses that leave an instance before they have ended continue elsewhere as jobs of their own, whose answers
count towards the original batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np

from yatt_core.dispatch.in_flight import bytes_of, bytes_of_judging
from yatt_core.dispatch.stream import Arrival, Tag, VerdictArrival
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, Returned, resumed_request
from yatt_core.protocols.judges import JudgeRequest, Verdict
from yatt_core.protocols.pieces import cut_piece


@dataclass(slots=True)
class Batch(Generic[Tag]):
    """A consumer's request.

    left: the indices of the responses or items that have not arrived yet.
    part: the reward part whose judge is asked; empty for generation.
    bytes: the size of the request and its longest possible answer.
    """

    number: int
    tag: Tag
    part: str
    left: set[int]
    bytes: int


@dataclass(slots=True)
class Job(Generic[Tag]):
    """One call: the batch, or a part of it that continues elsewhere.

    role: the role of the instances that may answer the call.
    rows: for each of the request's responses, its index within the batch; None if request and batch agree.
    missing: the missing answers, by their indices within the request.
    term: the term that the current call carries.
    ahead: whether it goes ahead of the batches that wait for an instance.
    """

    batch: Batch[Tag]
    request: GenerateRequest | JudgeRequest
    role: str
    term: int
    rows: Sequence[int] | None = None
    missing: set[int] = field(default_factory=set)
    ahead: bool = False

    @property
    def size(self) -> int:
        """The number of sequences that an instance has to generate."""
        request = self.request
        if isinstance(request, GenerateRequest):
            return int(request.seeds.size)
        return sum(len(item.seeds) for item in request.items)

    def ask(self, engine: Any, term: int, number: int) -> Any:
        """Calls an instance and returns its stream of pieces; marks every requested answer as missing.

        number: the grant's, by which the instance knows the call if it is given up.
        """
        self.term = term
        request = self.request
        self.missing = numbers_of(request)
        if isinstance(request, GenerateRequest):
            return engine.generate.options(num_returns="streaming").remote(term, request, number)
        return engine.judge.options(num_returns="streaming").remote(term, self.batch.part, request)

    def take(self, piece: Any, source: str) -> tuple[Arrival[Tag] | VerdictArrival[Tag] | None, int, list[Job[Tag]]]:
        """Returns what arrived for the consumer, how many sequences left the instance, and the jobs to continue.

        The jobs are in order. Raises `InfrastructureError` for anything that was not requested.
        """
        numbers = _numbers_in(piece)
        judging = isinstance(self.request, JudgeRequest)
        if numbers is None or not self.missing.issuperset(numbers) or judging != isinstance(piece, tuple):
            raise InfrastructureError(f"{source} returned something that was not requested: {type(piece).__name__}")
        self.missing.difference_update(numbers)
        if isinstance(piece, Returned):
            return None, len(numbers), self._rest(piece)
        if isinstance(piece, GeneratePiece):
            ours = GeneratePiece(self._in_batch(piece.rows), piece.result)
            self.batch.left.difference_update(ours.rows)
            return Arrival(self.batch.number, self.batch.tag, ours, not self.batch.left), len(numbers), []
        self.batch.left.difference_update(numbers)
        sequences = sum(max(1, len(verdict.judgements)) for verdict in piece)
        return VerdictArrival(self.batch.tag, self.batch.part, piece), sequences, []

    def _rest(self, returned: Returned) -> list[Job[Tag]]:
        """Returns one job per returned response, so that several instances may share the work."""
        assert isinstance(self.request, GenerateRequest)
        jobs = []
        for place, row in enumerate(returned.rows):
            alone = cut_piece(returned.result, np.array([place]), returned.result.seconds)
            request = resumed_request(self.request, Returned((row,), alone.result))
            jobs.append(
                Job(batch=self.batch, request=request, role=self.role, term=self.term, rows=self._in_batch((row,)))
            )
        return jobs

    def _in_batch(self, rows: Sequence[int]) -> tuple[int, ...]:
        return tuple(rows) if self.rows is None else tuple(self.rows[row] for row in rows)


def generation_job(number: int, tag: Tag, request: GenerateRequest, role: str, term: int) -> Job[Tag]:
    """Returns the job for a decode batch."""
    return Job(
        Batch(number=number, tag=tag, part="", left=numbers_of(request), bytes=bytes_of(request)), request, role, term
    )


def judging_job(number: int, tag: Tag, part: str, request: JudgeRequest, role: str, term: int) -> Job[Tag]:
    """Returns the job for questions to the judge of a reward part."""
    return Job(
        Batch(number=number, tag=tag, part=part, left=numbers_of(request), bytes=bytes_of_judging(request)),
        request,
        role,
        term,
    )


def numbers_of(request: GenerateRequest | JudgeRequest) -> set[int]:
    """Returns the indices of the responses or items that a request asks for."""
    if isinstance(request, GenerateRequest):
        return set(range(request.seeds.size))
    return {item.number for item in request.items}


def _numbers_in(piece: Any) -> set[int] | None:
    """Returns the indices of the responses or verdicts in a piece; None for anything else or for duplicates."""
    if isinstance(piece, GeneratePiece | Returned):
        listed = list(piece.rows)
    elif isinstance(piece, tuple) and all(isinstance(verdict, Verdict) for verdict in piece):
        listed = [verdict.number for verdict in piece]
    else:
        return None
    return set(listed) if len(set(listed)) == len(listed) else None
