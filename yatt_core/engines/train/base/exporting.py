"""A trainer's weights on their way to the rollout engines: one pass over the tensors, a bucket whenever it is asked for.

Whoever sends the weights on asks for the next bucket once there is room for it, so that nothing piles up; and where nobody asks
any more, nothing goes on.
"""

from __future__ import annotations

from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import TrainEngine
from yatt_core.wire.buckets import WeightBucket, buckets_of


class Export:
    """Of the weights that an engine holds now. keep: false on ranks that go through the tensors for the others' sake."""

    def __init__(self, engine: TrainEngine, bucket_bytes: int, keep: bool) -> None:
        self._buckets = buckets_of(engine.stream_weights(), bucket_bytes, keep)
        self._next = 0

    def bucket(self, number: int) -> WeightBucket:
        """The next bucket. Raises `InfrastructureError` where it is not this one that comes next."""
        if number != self._next:
            raise InfrastructureError(f"bucket {number} of the weights was asked for, the next one is {self._next}")
        bucket = next(self._buckets)
        self._next = -1 if bucket.last else number + 1
        return bucket
