"""Receives weights from all ranks of the trainer: the buckets of a plan, in order, whichever rank sends them.

Consumes a group; produces buckets where they have arrived, on a GPU or in host memory, for an engine to check and take; those of
changes alone are in host memory, where they are applied. The next one arrives while the engine takes one, so that two exist at
most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from yatt_core.engines.sync.group import SyncGroup
from yatt_core.engines.sync.sending import met
from yatt_core.engines.train.ranks.collective import HOST
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import DIGEST_BYTES, BucketBuffer, WeightBucket
from yatt_core.wire.transfer_plan import PlannedBucket

Places = Callable[[int, int], Sequence[BucketBuffer] | None]
"""(number of buckets, bytes of each) -> host memory of the engine for them, or None; see `RolloutEngine.buffers`."""


def received_weights(group: SyncGroup, task: TransferTask, most_bytes: int, places: Places) -> Iterator[WeightBucket]:
    """Meets the other members, and then yields all buckets, of changes alone if the task has a base.

    A bucket is valid until the next one is asked for.

    most_bytes: maximum size of a bucket; the same as that of the ranks.
    places: asked for memory of those that arrive on the host.

    Raises `InfrastructureError` if a member is lost, and what the group's check raises.
    """
    buckets = met(group, task, b"", most_bytes)
    size = DIGEST_BYTES + max(each.nbytes for each in buckets)
    count = len(buckets[:2])
    held = places(count, size) if group.buffer_device == HOST else None
    buffers = [group.buffer(size) for _ in range(count)] if held is None else [torch.from_numpy(each) for each in held]

    def begun(turn: int) -> PlannedBucket:
        """Begins to receive a bucket; returns it as it is sent, which for changes is known only now."""
        bucket = buckets[turn]
        if task.base and bucket.places:
            sizes = torch.tensor(bucket.changed_sizes, device=group.buffer_device)
            group.begin(2 * turn + 1, bucket.source, sizes)
            group.finish(2 * turn + 1, bucket.source)
            bucket = bucket.of_changes(sizes.tolist())
        group.begin(2 * turn, bucket.source, buffers[turn % 2][: bucket.nbytes + DIGEST_BYTES])
        return bucket

    following = begun(0)
    for turn in range(len(buckets)):
        bucket = following
        if not bucket.last:
            following = begun(turn + 1)
        group.finish(2 * turn, bucket.source)
        buffer = buffers[turn % 2]
        data = buffer[: bucket.nbytes]
        digest = bytes(buffer[bucket.nbytes :][:DIGEST_BYTES].tolist()).hex()
        yield WeightBucket(
            number=turn,
            last=bucket.last,
            places=bucket.places,
            data=data.cpu().numpy() if task.base else data,
            digest=digest,
        )
        advanced()
