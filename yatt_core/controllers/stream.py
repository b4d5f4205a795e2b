"""The way to the engines as a collector sees it: decode batches under way, finished responses as they come. Knows no Ray."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from yatt_core.engines.protocol import GeneratePiece, GenerateRequest

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


class Stream(Protocol[Tag]):
    """What `GenerationStream` is to a collector."""

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were under way at once."""
        ...

    def submit(self, tag: Tag, request: GenerateRequest) -> None:
        """Asks for a decode batch."""
        ...

    def arrivals(self) -> Iterator[Arrival[Tag]]:
        """Responses to what was asked for, until there is nothing left or the rest is cut; more may be asked for meanwhile."""
        ...
