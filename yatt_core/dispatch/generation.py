"""A controller's way to the pool of engines and judges: many batches under way, what is finished as it comes.

Consumes decode batches and responses to be judged; waits for room within the controller's bytes in flight, for the
dispatcher's grants and for the instances; payload goes straight from instance to controller. Work that began under an older
term goes on: its calls carry the newest term that the actor has heard of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self

import ray

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.dispatch.in_flight import BytesInFlight
from yatt_core.dispatch.jobs import Job, generation_job, judging_job
from yatt_core.dispatch.stream import Arrival, Judged, Tag
from yatt_core.errors import CutError, FencedError, InfrastructureError
from yatt_core.fence import TermFence
from yatt_core.placement.actions import ROLLOUT
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.protocols.judges import JudgeRequest
from yatt_core.protocols.pieces import join_pieces

AT_ONCE = 16
"""Of what is there: more of it would keep grants waiting that come meanwhile."""


@dataclass(frozen=True, slots=True)
class _Grant:
    number: int
    instance: int
    engine: Any


class GenerationStream(Generic[Tag]):
    """Submitted batches come back in the order in which instances finish them; results never depend on that order.

    A context manager, so that a stream that is given up leaves nothing in the dispatcher's queue. in_flight: what bounds the
    batches under way; one is under way from its request until its consumer has come back for what follows it. judge_roles:
    the role of the instances that judge, by reward part.
    """

    def __init__(
        self,
        dispatcher: Any,
        owner: str,
        fence: TermFence,
        in_flight: BytesInFlight,
        judge_roles: Mapping[str, str] | None = None,
    ) -> None:
        self._dispatcher, self._owner, self._fence, self._in_flight = dispatcher, owner, fence, in_flight
        self._judge_roles = dict(judge_roles or {})
        self._submitted = 0
        self._waiting: deque[Job[Tag]] = deque()
        self._queued: dict[Any, Job[Tag]] = {}
        self._running: dict[Any, tuple[Job[Tag], _Grant]] = {}

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
        self._waiting.append(generation_job(self._submitted, tag, request, ROLLOUT, self._fence.term))
        self._admit()

    def submit_judging(self, tag: Tag, part: str, request: JudgeRequest) -> None:
        """Asks for a judge, before the decode batches that wait: judging ends what is begun."""
        self._submitted += 1
        role = self._judge_roles[part]
        self._waiting.appendleft(judging_job(self._submitted, tag, part, request, role, self._fence.term))
        self._admit()

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Tells the dispatcher how many samples of a part of a wave are rolled out, and judged, in all."""
        self._dispatcher.note.remote(wave, part, rolled, judged)

    def arrivals(self) -> Iterator[Arrival[Tag] | Judged[Tag]]:
        """What comes back as it is finished; more may be submitted while it is consumed.

        Ends early where the rest is cut: batches that no instance has begun are then never answered.
        Raises `InfrastructureError` when an instance or the dispatcher is lost, `FencedError` when they obey a term that
        is not the run's driver's, and what an instance raised.
        """
        while self._queued or self._running:
            ready = self._ready()
            # Grants first: an engine must not stand still while somebody consumes what others have finished.
            for reference in [reference for reference in ready if reference in self._queued]:
                ready.remove(reference)
                if not self._start(reference):
                    return
            for reference in ready:
                job, _ = self._running[reference]
                arrival = self._arrived(reference)
                if arrival is None:
                    continue
                yield arrival
                if not job.batch.left:
                    self._in_flight.give(job.batch.bytes)
                    self._admit()

    def _ready(self) -> list[Any]:
        """Grants and pieces that are there; waits for the first. A few at once: to look costs as much as all that are open."""
        open_references = [*self._queued, *self._running]
        at_once = min(AT_ONCE, len(open_references))
        ready, _ = ray.wait(open_references, num_returns=at_once, timeout=0)
        if not ready:
            ready, _ = ray.wait(open_references, num_returns=1)
        return list(ready)

    def _arrived(self, reference: Any) -> Arrival[Tag] | Judged[Tag] | None:
        """What has come for the consumer with the next piece; what was given back is asked of others."""
        job, grant = self._running[reference]
        piece = self._next_piece(reference)
        if piece is None:
            return None
        arrival, off, rest = job.take(piece, f"rollout-{grant.instance}")
        if job.missing:
            self._dispatcher.progress.remote(grant.number, off)
        for resumed in reversed(rest):
            self._acquire(resumed, at_the_head=True)
        return arrival

    def results(self) -> Iterator[tuple[Tag, GenerateResult]]:
        """As `arrivals`, each decode batch as a whole once it is complete."""
        pieces: dict[int, list[GeneratePiece]] = {}
        for arrival in self.arrivals():
            assert isinstance(arrival, Arrival), "nobody asked a judge"
            pieces.setdefault(arrival.number, []).append(arrival.piece)
            if arrival.complete:
                yield arrival.tag, join_pieces(pieces.pop(arrival.number)).result

    def _admit(self) -> None:
        """Asks for instances for the batches that there is room for."""
        while self._waiting and self._in_flight.take(self._waiting[0].batch.bytes):
            self._acquire(self._waiting.popleft())

    def _acquire(self, job: Job[Tag], at_the_head: bool = False) -> None:
        job.term = self._fence.term
        grant = self._dispatcher.acquire.remote(job.term, self._owner, job.size, job.role, at_the_head)
        self._queued[grant] = job

    def _start(self, reference: Any) -> bool:
        """Gives a batch to the instance that was granted; false where it is cut."""
        job = self._queued.pop(reference)
        try:
            grant = _Grant(*self._get(reference, "the dispatcher"))
        except FencedError:
            if not self._is_outdated(job):
                raise
            self._acquire(job)
        except CutError:
            return False
        else:
            self._ask(job, grant)
        return True

    def _ask(self, job: Job[Tag], grant: _Grant) -> None:
        self._running[job.ask(grant.engine, self._fence.term)] = (job, grant)

    def _next_piece(self, pieces: Any) -> Any:
        """The piece that has come; none at the end, and where an instance obeys a newer term and is asked again under that."""
        job, grant = self._running[pieces]
        source = f"rollout-{grant.instance}"
        try:
            piece = self._get_next(pieces, source, grant)
        except FencedError:
            del self._running[pieces]
            if not self._is_outdated(job):
                raise
            self._ask(job, grant)
            return None
        if piece is None:
            del self._running[pieces]
            self._dispatcher.release.remote(grant.number)
            if job.missing:
                raise InfrastructureError(f"{source} left {len(job.missing)} responses of a batch unanswered")
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

    def _is_outdated(self, job: Job[Tag]) -> bool:
        """Looks up who drives the run; True if that is somebody newer than the call that was refused."""
        self._fence.renew()
        return self._fence.term > job.term

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
