"""The way to engines and judges as a collector sees it: batches under way, responses and verdicts as they come. Knows no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.judges import JudgeRequest, Verdict

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class Arrival(Generic[Tag]):
    """Finished responses of a decode batch. number: of the batch, in the order of submission. complete: with them the whole
    batch is there.
    """

    number: int
    tag: Tag
    piece: GeneratePiece
    complete: bool


@dataclass(frozen=True, slots=True)
class Judged(Generic[Tag]):
    """Verdicts of a reward part's judge. tag: of the request that they answer."""

    tag: Tag
    part: str
    verdicts: tuple[Verdict, ...]


class Stream(Protocol[Tag]):
    """What `GenerationStream` is to a collector."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were under way at once."""
        ...

    def submit(self, tag: Tag, request: GenerateRequest) -> None:
        """Asks for a decode batch."""
        ...

    def submit_judging(self, tag: Tag, part: str, request: JudgeRequest) -> None:
        """Asks the judge of a reward part."""
        ...

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Says how many samples of a part of a wave are rolled out, and judged, in all."""
        ...

    def arrivals(self) -> Iterator[Arrival[Tag] | Judged[Tag]]:
        """Answers to what was asked for, until there is nothing left or the rest is cut; more may be asked for meanwhile."""
        ...
