"""Receives weights from all ranks of the trainer: the buckets of a plan, in order, whichever rank sends them.

Consumes a group; produces buckets whose digests the engine checks, on the device where they have arrived or in host memory
of the engine. The next bucket arrives while the engine takes one, so that two exist at most.
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

Places = Callable[[int, int], Sequence[BucketBuffer] | None]
"""(number of buckets, bytes of each) -> host memory for them, or None; see `RolloutEngine.buffers`."""


def received_weights(
    group: SyncGroup, task: TransferTask, most_bytes: int, check: Check, places: Places
) -> Iterator[WeightBucket]:
    """Meets the other members, and then yields all buckets; a bucket is valid until the next one is asked for.

    most_bytes: maximum size of a bucket; the same as that of the ranks.
    places: returns host memory in which buckets arrive, or to which they are copied from a GPU; None to leave them where they
        arrive.

    Raises `InfrastructureError` if a member is lost, and what `check` raises.
    """
    buckets = planned(group.meet(task, b"", check), most_bytes)
    size = DIGEST_BYTES + max(each.nbytes for each in buckets)
    on_host = group.buffer_device == HOST
    count = len(buckets[:2])
    held = places(count if on_host else 1, size)
    if held is not None and on_host:
        buffers = [torch.from_numpy(each) for each in held]
    else:
        buffers = [group.buffer(size) for _ in range(count)]

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
            data=data if held is None else _in_place(held[turn % len(held)], data),
            digest=digest,
        )
        advanced()


def _in_place(held: BucketBuffer, data: torch.Tensor) -> BucketBuffer:
    """Returns a bucket's bytes in the engine's memory, to which they are copied if they have arrived on a GPU."""
    array = held[: data.nbytes]
    if data.device != HOST:
        torch.from_numpy(array).copy_(data)
    return array
