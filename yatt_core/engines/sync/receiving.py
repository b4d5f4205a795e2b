"""Receives weights from all ranks of the trainer: the buckets of a plan, in order, whichever rank sends them.

Consumes a group; produces buckets where they have arrived, on a GPU or in host memory, for an engine to check and take. The
next one arrives while the engine takes one, so that two exist at most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from yatt_core.engines.sync.delta import received_changes
from yatt_core.engines.sync.group import Check, SyncGroup
from yatt_core.engines.sync.sending import planned
from yatt_core.engines.train.ranks.collective import HOST
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import DIGEST_BYTES, BucketBuffer, WeightBucket

Places = Callable[[int, int], Sequence[BucketBuffer] | None]
"""(number of buckets, bytes of each) -> host memory of the engine for them, or None; see `RolloutEngine.buffers`."""


def received_weights(
    group: SyncGroup, task: TransferTask, most_bytes: int, check: Check, places: Places
) -> Iterator[WeightBucket]:
    """Meets the other members, and then yields all buckets, of changes alone if the task has a base.

    A bucket is valid until the next one is asked for.

    most_bytes: maximum size of a bucket; the same as that of the ranks.
    places: asked for memory of those that arrive on the host.

    Raises `InfrastructureError` if a member is lost, and what `check` raises.
    """
    if task.base:
        yield from received_changes(group, task, check)
        return
    buckets = planned(group.meet(task, b"", check), most_bytes)
    size = DIGEST_BYTES + max(each.nbytes for each in buckets)
    count = len(buckets[:2])
    held = places(count, size) if group.buffer_device == HOST else None
    buffers = [group.buffer(size) for _ in range(count)] if held is None else [torch.from_numpy(each) for each in held]

    def begin(turn: int) -> None:
        if turn < len(buckets):
            bucket = buckets[turn]
            group.begin(turn, bucket.source, buffers[turn % 2][: bucket.nbytes + DIGEST_BYTES])

    begin(0)
    for turn, bucket in enumerate(buckets):
        begin(turn + 1)
        group.finish(turn, bucket.source)
        data = buffers[turn % 2][: bucket.nbytes]
        digest = bytes(buffers[turn % 2][bucket.nbytes :][:DIGEST_BYTES].tolist()).hex()
        yield WeightBucket(
            number=turn,
            last=bucket.last,
            places=bucket.places,
            data=data,
            digest=digest,
        )
        advanced()
