"""A collector's view of engines and judges: batches in flight, responses and verdicts as they arrive. Without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from yatt_core.protocols.generation import GeneratePiece, GenerateRequest
from yatt_core.protocols.judges import JudgeRequest, Verdict

Tag = TypeVar("Tag")


def nothing() -> bool:
    """Returns False: the consumer of a stream waits for nothing else."""
    return False


@dataclass(frozen=True, slots=True)
class Arrival(Generic[Tag]):
    """Finished responses of a decode batch.

    number: the number of the batch, in order of submission.
    complete: whether these responses complete the batch.
    """

    number: int
    tag: Tag
    piece: GeneratePiece
    complete: bool


@dataclass(frozen=True, slots=True)
class VerdictArrival(Generic[Tag]):
    """Verdicts of a reward part's judge.

    tag: the tag of the request that the verdicts answer.
    """

    tag: Tag
    part: str
    verdicts: tuple[Verdict, ...]


class Stream(Protocol[Tag]):
    """The interface of `GenerationStream` as a collector uses it."""

    @property
    def peak_bytes(self) -> int:
        """The maximum number of bytes that were in flight at once."""
        ...

    def submit(self, tag: Tag, request: GenerateRequest, ahead: bool = False) -> int:
        """Requests a decode batch; returns its number.

        ahead: of the batches that wait, because its work began before theirs.
        """
        ...

    def submit_judging(self, tag: Tag, part: str, request: JudgeRequest) -> None:
        """Requests verdicts from the judge of a reward part."""
        ...

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Reports how many samples of a part of a wave have been rolled out and judged in total."""
        ...

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Tag] | VerdictArrival[Tag] | None]:
        """Yields the answers until nothing is left or the rest is cut; more requests may be submitted meanwhile.

        beside: returns whether the consumer waits for something else too. As long as it does, this does not end, and yields
            None at short intervals, so that the consumer can look.
        """
        ...
