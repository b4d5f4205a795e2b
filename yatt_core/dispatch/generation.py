"""A controller's access to the pool of engines and judges: many concurrent batches, with results as they finish.

Consumes decode batches and responses to be judged. Waits for room within the controller's limit on bytes in flight, for
the dispatcher's grants and for the instances; payload goes directly from instance to controller. Work that
began under an older term continues: its calls carry the newest term that the actor has seen.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self

import ray

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.dispatch.in_flight import BytesInFlight
from yatt_core.dispatch.jobs import Job, generation_job, judging_job
from yatt_core.dispatch.stream import Arrival, Tag, VerdictArrival, nothing
from yatt_core.errors import CutError, FencedError, InfrastructureError
from yatt_core.fence import TermFence
from yatt_core.placement.actions import ROLLOUT
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.protocols.judges import JudgeRequest
from yatt_core.protocols.pieces import join_pieces
from yatt_core.spent_time import RAY, WAITING, spent

AT_ONCE = 16
"""The maximum number of ready references handled at once; more would delay grants that arrive in the meantime."""
BESIDE_SECONDS = 0.01
"""The longest wait for answers while the consumer waits for something else too."""


@dataclass(frozen=True, slots=True)
class _Grant:
    number: int
    instance: int
    engine: Any


class GenerationStream(Generic[Tag]):
    """Returns submitted batches in the order in which instances finish them; results never depend on that order.

    A context manager, so that an abandoned stream leaves nothing in the dispatcher's queue.

    in_flight: limits the concurrent batches. A batch is in flight from its request until its consumer has
        returned for the next item.
    judge_roles: the role of the judging instances for each reward part.
    """

    def __init__(
        self,
        dispatcher: Any,
        owner: str,
        fence: TermFence,
        in_flight: BytesInFlight,
        judge_roles: Mapping[str, str] | None = None,
    ) -> None:
        self._dispatcher = dispatcher
        self._owner = owner
        self._fence = fence
        self._in_flight = in_flight
        self._judge_roles = dict(judge_roles or {})
        self._submitted = 0
        # Both first in, first out; the first one before the other.
        self._ahead: deque[Job[Tag]] = deque()
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
        """The maximum number of bytes that were in flight at once."""
        return self._in_flight.peak

    def submit(self, tag: Tag, request: GenerateRequest, ahead: bool = False) -> int:
        """Requests an engine for a decode batch, immediately or when its bytes fit, in the order of submission.

        ahead: of the decode batches that wait, behind what has been put ahead of them before.

        Returns its number.
        """
        self._submitted += 1
        job = generation_job(number=self._submitted, tag=tag, request=request, role=ROLLOUT, term=self._fence.term)
        job.ahead = ahead
        (self._ahead if ahead else self._waiting).append(job)
        self._admit()
        return self._submitted

    def submit_judging(self, tag: Tag, part: str, request: JudgeRequest) -> None:
        """Requests a judge ahead of the waiting decode batches: judging completes work that has begun."""
        self._submitted += 1
        role = self._judge_roles[part]
        self._ahead.append(
            judging_job(number=self._submitted, tag=tag, part=part, request=request, role=role, term=self._fence.term)
        )
        self._admit()

    def note(self, wave: str, part: str, rolled: int, judged: int) -> None:
        """Reports to the dispatcher how many samples of a part of a wave have been rolled out and judged in total."""
        self._dispatcher.note.remote(wave, part, rolled, judged)

    def arrivals(self, beside: Callable[[], bool] = nothing) -> Iterator[Arrival[Tag] | VerdictArrival[Tag] | None]:
        """Yields answers as they finish; more work may be submitted while they are consumed.

        beside: returns whether the consumer waits for something else too. As long as it does, this does not end, and yields
            None at short intervals.

        Ends early if the rest is cut: batches that no instance has started are then never answered. Raises
        `InfrastructureError` if an instance or the dispatcher is lost, `FencedError` if either obeys a term that
        is not the run driver's, and any exception that an instance raised.
        """
        while self._queued or self._running or beside():
            ready = self._ready(beside())
            if not ready:
                yield None
                continue
            # Grants first: an engine must not be idle while the consumer processes what others have finished.
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

    def _ready(self, is_brief: bool) -> list[Any]:
        """Waits for the first grant or piece and returns a few that are ready.

        Handles only a few at once, because the cost of a check grows with the number of references that it looks at.

        is_brief: whether to return soon, even if nothing is ready.
        """
        open_references = [*self._queued, *self._running]
        if not open_references:
            with spent(WAITING, "tools"):
                time.sleep(BESIDE_SECONDS)
            return []
        if is_brief:
            # First, since as a rule nothing is ready, and then this is the only look at all references.
            first = self._first(open_references, BESIDE_SECONDS)
            return first and (self._available(open_references) or first)
        return self._available(open_references) or self._first(open_references, None)

    def _available(self, references: list[Any]) -> list[Any]:
        with spent(RAY, "what is ready"):
            ready, _ = ray.wait(references, num_returns=min(AT_ONCE, len(references)), timeout=0)
        return list(ready)

    def _first(self, references: list[Any], seconds: float | None) -> list[Any]:
        """Waits for the first of some references, at most so many seconds."""
        with spent(WAITING, "answers"):
            ready, _ = ray.wait(references, num_returns=1, timeout=seconds)
        return list(ready)

    def _arrived(self, reference: Any) -> Arrival[Tag] | VerdictArrival[Tag] | None:
        """Returns the next piece's answers for the consumer; requests its unfinished sequences from other instances."""
        job, grant = self._running[reference]
        piece = self._next_piece(reference)
        if piece is None:
            return None
        arrival, off, rest = job.take(piece, f"rollout-{grant.instance}")
        if job.missing:
            self._dispatcher.progress.remote(grant.number, off)
        for resumed in rest:
            resumed.ahead = True
            self._acquire(resumed)
        return arrival

    def results(self) -> Iterator[tuple[Tag, GenerateResult]]:
        """Yields the results of `arrivals`, but each decode batch as a whole when it is complete."""
        pieces: dict[int, list[GeneratePiece]] = {}
        for arrival in self.arrivals():
            assert isinstance(arrival, Arrival), "no judge was asked"
            pieces.setdefault(arrival.number, []).append(arrival.piece)
            if arrival.complete:
                yield arrival.tag, join_pieces(pieces.pop(arrival.number)).result

    def _admit(self) -> None:
        """Requests instances for the batches that fit."""
        while (jobs := self._ahead or self._waiting) and self._in_flight.take(jobs[0].batch.bytes):
            self._acquire(jobs.popleft())

    def _acquire(self, job: Job[Tag]) -> None:
        job.term = self._fence.term
        with spent(RAY, "requests"):
            grant = self._dispatcher.acquire.remote(job.term, self._owner, job.size, job.role, job.ahead)
        self._queued[grant] = job

    def _start(self, reference: Any) -> bool:
        """Sends a batch to the granted instance; returns False if the batch is cut."""
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
        with spent(RAY, "requests"):
            self._running[job.ask(grant.engine, self._fence.term, grant.number)] = (job, grant)

    def _next_piece(self, pieces: Any) -> Any:
        """Returns the next piece; None at the end, or after calling an instance again that follows a newer term."""
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
                raise InfrastructureError(f"{source} did not return {len(job.missing)} of a batch's responses")
        return piece

    def _get_next(self, pieces: Any, source: str, grant: _Grant) -> Any:
        """Returns the next value; None at the end."""
        try:
            with spent(RAY, "answers"):
                reference = next(pieces)
        except StopIteration:
            return None
        except ray.exceptions.RayError as error:
            raise self._told(error, source, grant) from error
        return self._get(reference, source, grant)

    def _is_outdated(self, job: Job[Tag]) -> bool:
        """Looks up the run's driver; returns True if its term is newer than that of the rejected call."""
        self._fence.renew()
        return self._fence.term > job.term

    def _get(self, reference: Any, source: str, grant: _Grant | None = None) -> Any:
        try:
            with spent(RAY, "answers"):
                return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise self._told(error, source, grant) from error

    def _told(self, error: ray.exceptions.RayError, source: str, grant: _Grant | None) -> Exception:
        """Returns the exception to raise for a Ray error; reports a dead engine to the dispatcher."""
        if grant is not None and isinstance(error, ray.exceptions.RayActorError):
            self._dispatcher.lose.remote(grant.number)
        return unwrap_ray_error(error, source)
