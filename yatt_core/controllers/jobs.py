"""What a controller has under way at engines and judges: a batch, its role, and how to read what comes back. Knows no Ray."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic

from yatt_core.controllers.in_flight import bytes_of, bytes_of_judging
from yatt_core.controllers.stream import Arrival, Judged, Tag
from yatt_core.engines.protocol import GeneratePiece, GenerateRequest
from yatt_core.errors import InfrastructureError
from yatt_core.judges.protocol import JudgeRequest, Verdict


@dataclass(slots=True)
class Job(Generic[Tag]):
    """A batch; the epoch that the call under way for it carries, and what has not come yet: numbers of responses or items.

    role: of the instances that may do it. part: the reward part that judges; empty for generation. judgements: of an item.
    """

    number: int
    tag: Tag
    request: GenerateRequest | JudgeRequest
    role: str
    epoch: int
    part: str = ""
    missing: set[int] = field(default_factory=set)

    @property
    def size(self) -> int:
        """Sequences that an instance has to generate for it."""
        request = self.request
        if isinstance(request, GenerateRequest):
            return int(request.seeds.size)
        return sum(len(item.seeds) for item in request.items)

    @property
    def bytes(self) -> int:
        """Of the request and the longest answer to it."""
        request = self.request
        return bytes_of(request) if isinstance(request, GenerateRequest) else bytes_of_judging(request)

    def ask(self, engine: Any, epoch: int) -> Any:
        """Calls an instance; returns its stream of pieces. From here on everything is missing."""
        self.epoch, request = epoch, self.request
        if isinstance(request, GenerateRequest):
            self.missing = set(range(request.seeds.size))
            return engine.generate.options(num_returns="streaming").remote(epoch, request)
        self.missing = {item.number for item in request.items}
        return engine.judge.options(num_returns="streaming").remote(epoch, self.part, request)

    def take(self, piece: Any, source: str) -> tuple[Arrival[Tag] | Judged[Tag], int]:
        """What has come, and how many sequences ended with it. Raises `InfrastructureError` for what was not asked for."""
        numbers = _numbers_in(piece)
        judging = isinstance(self.request, JudgeRequest)
        if numbers is None or not self.missing.issuperset(numbers) or judging == isinstance(piece, GeneratePiece):
            raise InfrastructureError(f"{source} returned what it was not asked for: {type(piece).__name__}")
        self.missing.difference_update(numbers)
        if isinstance(piece, GeneratePiece):
            return Arrival(self.number, self.tag, piece, not self.missing), len(numbers)
        return Judged(self.tag, self.part, piece), sum(max(1, len(verdict.judgements)) for verdict in piece)


def _numbers_in(piece: Any) -> set[int] | None:
    """Of the responses or verdicts in a piece; none for anything else."""
    if isinstance(piece, GeneratePiece):
        return set(piece.rows)
    if isinstance(piece, tuple) and all(isinstance(verdict, Verdict) for verdict in piece):
        return _distinct(verdict.number for verdict in piece)
    return None


def _distinct(numbers: Iterable[int]) -> set[int] | None:
    listed = list(numbers)
    return set(listed) if len(set(listed)) == len(listed) else None
