"""Exports a trainer's weights to the rollout engines: one pass over the tensors, one bucket per request.

The sender requests the next bucket when there is room for it, so nothing accumulates; if it stops requesting,
the export stops.
"""

from __future__ import annotations

from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import TrainEngine
from yatt_core.wire.buckets import WeightBucket, buckets_of


class Export:
    """An export of the train engine's current weights.

    rounded_to: type in which the rollout engines hold them; None to send them as they are.
    keep: False on ranks that iterate over the tensors only because the other ranks need them to.
    """

    def __init__(self, engine: TrainEngine, bucket_bytes: int, rounded_to: str | None, keep: bool) -> None:
        self._buckets = buckets_of(engine.stream_weights(), bucket_bytes, keep, rounded_to)
        self._next = 0

    def bucket(self, number: int) -> WeightBucket:
        """Returns the next bucket. Raises `InfrastructureError` if `number` is not the next one."""
        if number != self._next:
            raise InfrastructureError(f"bucket {number} of the weights was requested, but the next one is {self._next}")
        bucket = next(self._buckets)
        self._next = -1 if bucket.last else number + 1
        return bucket
