"""A controller's way to the pool of engines: many decode batches under way, results as they come.

Consumes decode batches; waits for the dispatcher's grants and for the engines; payload goes straight from engine to
controller. Work that began under an older epoch goes on: its calls carry the newest epoch that the actor has heard of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import ray

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.engines.protocol import GenerateRequest, GenerateResult
from yatt_core.errors import CutError, FencedError, InfrastructureError
from yatt_core.fence import EpochFence

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class _Batch(Generic[Tag]):
    """A decode batch, and the epoch that the call under way for it carries."""

    tag: Tag
    request: GenerateRequest
    epoch: int


@dataclass(frozen=True, slots=True)
class _Grant:
    number: int
    instance: int
    engine: Any


class GenerationStream(Generic[Tag]):
    """Submitted batches come back in the order in which engines finish them; results never depend on that order.

    A context manager, so that a stream that is given up leaves nothing in the dispatcher's queue.
    """

    def __init__(self, dispatcher: Any, owner: str, fence: EpochFence) -> None:
        self._dispatcher, self._owner, self._fence = dispatcher, owner, fence
        self._queued: dict[Any, _Batch[Tag]] = {}
        self._running: dict[Any, tuple[_Batch[Tag], _Grant]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._queued or self._running or kind is not None:
            self._dispatcher.forget.remote(self._owner)

    def submit(self, tag: Tag, request: GenerateRequest) -> None:
        """Asks for an engine for a decode batch."""
        epoch = self._fence.epoch
        grant = self._dispatcher.acquire.remote(epoch, self._owner, int(request.seeds.size))
        self._queued[grant] = _Batch(tag, request, epoch)

    def results(self) -> Iterator[tuple[Tag, GenerateResult]]:
        """Each submitted batch's tag and result; more may be submitted while it is consumed.

        Ends early where the rest is cut: batches that no engine has begun are then never answered.
        Raises `InfrastructureError` when an engine or the dispatcher is lost, `FencedError` when they obey an epoch that
        is not the run's driver's, and what an engine raised.
        """
        while self._queued or self._running:
            ready, _ = ray.wait([*self._running, *self._queued], num_returns=1)
            reference = ready[0]
            if reference in self._queued:
                if not self._start(reference):
                    return
            elif (answer := self._collect(reference)) is not None:
                yield answer

    def _start(self, reference: Any) -> bool:
        """Gives a batch to the engine that was granted; false where it is cut."""
        batch = self._queued.pop(reference)
        try:
            grant = _Grant(*self._get(reference, "the dispatcher"))
        except FencedError:
            if not self._is_outdated(batch):
                raise
            self.submit(batch.tag, batch.request)
        except CutError:
            return False
        else:
            self._generate(batch, grant)
        return True

    def _generate(self, batch: _Batch[Tag], grant: _Grant) -> None:
        epoch = self._fence.epoch
        reference = grant.engine.generate.remote(epoch, batch.request)
        self._running[reference] = (replace(batch, epoch=epoch), grant)

    def _collect(self, reference: Any) -> tuple[Tag, GenerateResult] | None:
        """An engine's answer; none where it obeys a newer epoch and is asked again under that."""
        batch, grant = self._running.pop(reference)
        try:
            result = self._get(reference, f"rollout-{grant.instance}", grant)
        except FencedError:
            if not self._is_outdated(batch):
                raise
            self._generate(batch, grant)
            return None
        self._dispatcher.release.remote(grant.number)
        if not isinstance(result, GenerateResult):
            raise InfrastructureError(f"rollout-{grant.instance} returned {type(result).__name__}")
        return batch.tag, result

    def _is_outdated(self, batch: _Batch[Tag]) -> bool:
        """Looks up who drives the run; True if that is somebody newer than the call that was refused."""
        self._fence.renew()
        return self._fence.epoch > batch.epoch

    def _get(self, reference: Any, source: str, grant: _Grant | None = None) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            if grant is not None and isinstance(error, ray.exceptions.RayActorError):
                self._dispatcher.lose.remote(grant.number)
            raise unwrap_ray_error(error, source) from error
