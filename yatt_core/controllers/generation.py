"""A controller's way to the pool of engines: many decode batches under way, results as they come.

Consumes decode batches; waits for the dispatcher's grants and for the engines; payload goes straight from engine to
controller.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import ray

from yatt_core.cluster.metering import unwrap_ray_error
from yatt_core.engines.protocol import GenerateRequest, GenerateResult
from yatt_core.errors import InfrastructureError

Tag = TypeVar("Tag")


@dataclass(frozen=True, slots=True)
class PoolHandles:
    """What a controller needs of the rollout pool: its dispatcher and its engines, as actor handles."""

    dispatcher: Any
    engines: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class _Granted(Generic[Tag]):
    tag: Tag
    number: int
    instance: int


class GenerationStream(Generic[Tag]):
    """Submitted batches come back in the order in which engines finish them; results never depend on that order."""

    def __init__(self, pool: PoolHandles, owner: str, epoch: int) -> None:
        self._pool, self._owner, self._epoch = pool, owner, epoch
        self._queued: dict[Any, tuple[Tag, GenerateRequest]] = {}
        self._running: dict[Any, _Granted[Tag]] = {}

    def submit(self, tag: Tag, request: GenerateRequest) -> None:
        """Asks for an engine for a decode batch."""
        grant = self._pool.dispatcher.acquire.remote(self._epoch, self._owner, int(request.seeds.size))
        self._queued[grant] = (tag, request)

    def results(self) -> Iterator[tuple[Tag, GenerateResult]]:
        """Each submitted batch's tag and result; more may be submitted while it is consumed.

        Raises `InfrastructureError` when an engine or the dispatcher is lost, and what an engine raised.
        """
        while self._queued or self._running:
            ready, _ = ray.wait([*self._running, *self._queued], num_returns=1)
            reference = ready[0]
            if reference in self._queued:
                self._start(reference)
            else:
                yield self._collect(reference)

    def _start(self, grant: Any) -> None:
        tag, request = self._queued.pop(grant)
        number, instance = self._get(grant, "the dispatcher")
        reference = self._pool.engines[instance].generate.remote(self._epoch, request)
        self._running[reference] = _Granted(tag, number, instance)

    def _collect(self, reference: Any) -> tuple[Tag, GenerateResult]:
        granted = self._running.pop(reference)
        try:
            result = self._get(reference, f"rollout-{granted.instance}")
        finally:
            self._pool.dispatcher.release.remote(granted.number)
        if not isinstance(result, GenerateResult):
            raise InfrastructureError(f"rollout-{granted.instance} returned {type(result).__name__}")
        return granted.tag, result

    def _get(self, reference: Any, source: str) -> Any:
        try:
            return ray.get(reference)
        except ray.exceptions.RayError as error:
            raise unwrap_ray_error(error, source) from error
