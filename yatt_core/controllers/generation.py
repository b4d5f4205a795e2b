"""A controller's way to the pool of engines: many decode batches under way, finished responses as they come.

Consumes decode batches; waits for room within the controller's bytes in flight, for the dispatcher's grants and for the
engines; payload goes straight from engine to controller. Work that began under an older epoch goes on: its calls carry the
newest epoch that the actor has heard of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, Self

import ray

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.controllers.in_flight import BytesInFlight, bytes_of
from yatt_core.controllers.stream import Arrival, Tag
from yatt_core.engines.pieces import join_pieces
from yatt_core.engines.protocol import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.errors import CutError, FencedError, InfrastructureError
from yatt_core.fence import EpochFence


@dataclass(slots=True)
class _Batch(Generic[Tag]):
    """A decode batch, the epoch that the call under way for it carries, and the responses that have not come yet."""

    number: int
    tag: Tag
    request: GenerateRequest
    size: int
    epoch: int
    missing: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Grant:
    number: int
    instance: int
    engine: Any


class GenerationStream(Generic[Tag]):
    """Submitted batches come back in the order in which engines finish them; results never depend on that order.

    A context manager, so that a stream that is given up leaves nothing in the dispatcher's queue. in_flight: what bounds the
    batches under way; one is under way from its request until its consumer has come back for what follows it.
    """

    def __init__(self, dispatcher: Any, owner: str, fence: EpochFence, in_flight: BytesInFlight) -> None:
        self._dispatcher, self._owner, self._fence, self._in_flight = dispatcher, owner, fence, in_flight
        self._submitted = 0
        self._waiting: deque[_Batch[Tag]] = deque()
        self._queued: dict[Any, _Batch[Tag]] = {}
        self._running: dict[Any, tuple[_Batch[Tag], _Grant]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queued or self._running or kind is not None:
            self._dispatcher.forget.remote(self._owner)

    @property
    def peak_bytes(self) -> int:
        """Most bytes that were under way at once."""
        return self._in_flight.peak

    def submit(self, tag: Tag, request: GenerateRequest) -> None:
        """Asks for an engine for a decode batch, at once or when there is room for its bytes; in the order of submission."""
        self._submitted += 1
        self._waiting.append(_Batch(self._submitted, tag, request, bytes_of(request), self._fence.epoch))
        self._admit()

    def arrivals(self) -> Iterator[Arrival[Tag]]:
        """Each submitted batch's responses as they are finished; more may be submitted while it is consumed.

        Ends early where the rest is cut: batches that no engine has begun are then never answered.
        Raises `InfrastructureError` when an engine or the dispatcher is lost, `FencedError` when they obey an epoch that
        is not the run's driver's, and what an engine raised.
        """
        while self._queued or self._running:
            # Grants first: an engine must not stand still while somebody consumes what others have finished.
            ready, _ = ray.wait([*self._queued, *self._running], num_returns=1)
            reference = ready[0]
            if reference in self._queued:
                if not self._start(reference):
                    return
                continue
            batch = self._running[reference][0]
            if (piece := self._next_piece(reference)) is not None:
                complete = not batch.missing
                yield Arrival(batch.number, batch.tag, piece, complete)
                if complete:
                    self._in_flight.give(batch.size)
                    self._admit()

    def results(self) -> Iterator[tuple[Tag, GenerateResult]]:
        """As `arrivals`, each batch as a whole once it is complete."""
        pieces: dict[int, list[GeneratePiece]] = {}
        for arrival in self.arrivals():
            pieces.setdefault(arrival.number, []).append(arrival.piece)
            if arrival.complete:
                yield arrival.tag, join_pieces(pieces.pop(arrival.number)).result

    def _admit(self) -> None:
        """Asks for engines for the batches that there is room for."""
        while self._waiting and self._in_flight.take(self._waiting[0].size):
            self._acquire(self._waiting.popleft())

    def _acquire(self, batch: _Batch[Tag]) -> None:
        batch.epoch = self._fence.epoch
        grant = self._dispatcher.acquire.remote(batch.epoch, self._owner, int(batch.request.seeds.size))
        self._queued[grant] = batch

    def _start(self, reference: Any) -> bool:
        """Gives a batch to the engine that was granted; false where it is cut."""
        batch = self._queued.pop(reference)
        try:
            grant = _Grant(*self._get(reference, "the dispatcher"))
        except FencedError:
            if not self._is_outdated(batch):
                raise
            self._acquire(batch)
        except CutError:
            return False
        else:
            self._generate(batch, grant)
        return True

    def _generate(self, batch: _Batch[Tag], grant: _Grant) -> None:
        batch.epoch, batch.missing = self._fence.epoch, set(range(batch.request.seeds.size))
        pieces = grant.engine.generate.options(num_returns="streaming").remote(batch.epoch, batch.request)
        self._running[pieces] = (batch, grant)

    def _next_piece(self, pieces: Any) -> GeneratePiece | None:
        """The piece that has come; none at the end, and where an engine obeys a newer epoch and is asked again under that."""
        batch, grant = self._running[pieces]
        engine = f"rollout-{grant.instance}"
        try:
            piece = self._get_next(pieces, engine, grant)
        except FencedError:
            del self._running[pieces]
            if not self._is_outdated(batch):
                raise
            self._generate(batch, grant)
            return None
        if piece is None:
            del self._running[pieces]
            self._dispatcher.release.remote(grant.number)
            if batch.missing:
                raise InfrastructureError(f"{engine} left {len(batch.missing)} responses of a decode batch unanswered")
            return None
        if not isinstance(piece, GeneratePiece) or not batch.missing.issuperset(piece.rows):
            raise InfrastructureError(f"{engine} returned what it was not asked for: {type(piece).__name__}")
        batch.missing.difference_update(piece.rows)
        return piece

    def _get_next(self, pieces: Any, source: str, grant: _Grant) -> Any:
        """What came next; none at the end."""
        try:
            reference = next(pieces)
        except StopIteration:
            return None
        except ray.exceptions.RayError as error:
            raise self._told(error, source, grant) from error
        return self._get(reference, source, grant)

    def _is_outdated(self, batch: _Batch[Tag]) -> bool:
        """Looks up who drives the run; True if that is somebody newer than the call that was refused."""
        self._fence.renew()
        return self._fence.epoch > batch.epoch

    def _get(self, reference: Any, source: str, grant: _Grant | None = None) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise self._told(error, source, grant) from error

    def _told(self, error: ray.exceptions.RayError, source: str, grant: _Grant | None) -> Exception:
        """What to raise for an error of Ray's; the dispatcher hears of a dead engine."""
        if grant is not None and isinstance(error, ray.exceptions.RayActorError):
            self._dispatcher.lose.remote(grant.number)
        return unwrap_ray_error(error, source)
