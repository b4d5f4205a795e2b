"""Receives weights from all ranks of the trainer: the buckets of a plan, in order, whichever rank sends them.

Consumes a group; produces buckets whose digests the engine checks. The next bucket arrives while the engine takes one,
so that two exist at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from yatt_core.engines.sync.group import Check, SyncGroup
from yatt_core.engines.sync.sending import DIGEST_BYTES, planned
from yatt_core.engines.train.ranks.collective import HOST
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import BucketBuffer, WeightBucket

Places = Callable[[int, int], Sequence[BucketBuffer]]
"""(number of buckets, bytes of each) -> host memory for them; see `RolloutEngine.buffers`."""


def received_weights(
    group: SyncGroup, task: TransferTask, most_bytes: int, check: Check, places: Places
) -> Iterator[WeightBucket]:
    """Meets the other members, and then yields all buckets; a bucket is valid until the next one is asked for.

    most_bytes: maximum size of a bucket; the same as that of the ranks.
    places: returns host memory in which buckets arrive, or to which they are copied from a GPU.

    Raises `InfrastructureError` if a member is lost, and what `check` raises.
    """
    buckets = planned(group.meet(task, b"", check), most_bytes)
    size = DIGEST_BYTES + max(each.nbytes for each in buckets)
    on_host = group.buffer_device == HOST
    count = len(buckets[:2])
    held = places(count if on_host else 1, size)
    buffers = [torch.from_numpy(each) for each in held] if on_host else [group.buffer(size) for _ in range(count)]

    def begin(turn: int) -> None:
        if turn < len(buckets):
            bucket = buckets[turn]
            group.begin(turn, bucket.source, buffers[turn % 2][: bucket.nbytes + DIGEST_BYTES])

    begin(0)
    for turn, bucket in enumerate(buckets):
        begin(turn + 1)
        group.finish(turn, bucket.source)
        array = held[turn % len(held)][: bucket.nbytes + DIGEST_BYTES]
        if not on_host:
            torch.from_numpy(array).copy_(buffers[turn % 2][: array.nbytes])
        digest = array[bucket.nbytes :].tobytes().hex()
        yield WeightBucket(
            number=turn, last=bucket.last, places=bucket.places, data=array[: bucket.nbytes], digest=digest
        )
        advanced()
