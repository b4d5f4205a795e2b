"""Sends what a rank contributes to the weights, bucket by bucket, straight from the tensors that it holds.

Consumes the parts of tensors that the rank contributes, on any device; no tensor is gathered. Buckets are filled, and their
digests computed, where they are sent from: on a GPU, if the group is. While one bucket is on its way the next is filled, so
that two exist at most. If the engines hold the weights of an earlier transfer, only changes are sent (`delta`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch

from yatt_core.engines.rectangles import Parts, rectangle_of
from yatt_core.engines.sync.delta import send_changes
from yatt_core.engines.sync.group import Check, SyncGroup
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.errors import InfrastructureError
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import DIGEST_BYTES, Place, bucket_digest, clear_gaps
from yatt_core.wire.parts import TensorPart
from yatt_core.wire.transfer_plan import (
    PlannedBucket,
    decode_rectangles,
    encode_rectangles,
    plan_transfer,
)


def send_weights(
    group: SyncGroup,
    task: TransferTask,
    parts: Callable[[], Parts],
    rounded_to: str | None,
    most_bytes: int,
    check: Check,
    sent: SentWeights | None = None,
    outlines: Callable[[], Parts] | None = None,
) -> int:
    """Sends this rank's part of the weights to all engines, or what has changed since the task's base; returns the bytes sent.

    parts: yields what this rank contributes, in the same order each time. Once the members have met, it is gone through to the
        end, whatever becomes of the transfer: other ranks may be gathering tensors in step with this one.
    outlines: yields the same without numbers, if these take time to make; None if not.
    rounded_to: type in which the engines hold the weights; None to round nothing.
    most_bytes: maximum size of a bucket.
    sent: keeps what is sent, so that the next transfer can send changes alone; None to keep nothing.

    Raises `InfrastructureError` if a member is lost or this rank has not kept the base, and what `check` raises.
    """
    if task.base:
        return send_changes(
            group=group,
            task=task,
            parts=parts,
            rounded_to=rounded_to,
            most_bytes=most_bytes,
            check=check,
            sent=sent,
        )
    if sent is not None:
        sent.name = ""  # until all of it has been sent, it is not known what engines hold
    own = encode_rectangles(rectangle_of(part, rounded_to) for part in (outlines or parts)())
    buckets = [each for each in planned(group.meet(task, own, check), most_bytes) if group.sends(each)]
    size = DIGEST_BYTES + max((each.nbytes for each in buckets), default=0)
    given = parts()
    filler = _Filler(given, sent)
    total = 0
    try:
        buffers = [group.buffer(size) for _ in buckets[:2]]
        for turn, bucket in enumerate(buckets):
            if turn >= 2:
                group.finish(buckets[turn - 2].number, bucket.source)
            buffer = buffers[turn % 2][: bucket.nbytes + DIGEST_BYTES]
            filler.fill(bucket, buffer)
            group.begin(bucket.number, bucket.source, buffer)
            total += bucket.nbytes
            advanced()
    finally:
        deque(given, maxlen=0)
    for bucket in buckets[-2:]:
        group.finish(bucket.number, bucket.source)
    if sent is not None:
        sent.name = task.name
    return total


def planned(told: list[bytes], most_bytes: int) -> tuple[PlannedBucket, ...]:
    """Returns the plan for what the ranks have told. Raises `InfrastructureError` if they contradict each other."""
    try:
        return plan_transfer([decode_rectangles(each) for each in told], most_bytes)
    except ValueError as error:
        raise InfrastructureError(f"weights: {error}") from None


class _Filler:
    """Fills buckets from parts that come in the order of the buckets' rectangles."""

    def __init__(self, parts: Parts, sent: SentWeights | None) -> None:
        self._parts = parts
        self._sent = sent
        self._part: TensorPart[torch.Tensor] | None = None

    @torch.no_grad()
    def fill(self, bucket: PlannedBucket, buffer: torch.Tensor) -> None:
        """Writes a bucket's rectangles and their digest. Bytes between rectangles are zero.

        On a GPU, copies may still be queued afterwards. NCCL waits for them on its stream, and a rank that lends its memory waits
        for all of them before it says where the buffer is (`device_memory.lent`).
        """
        for place in bucket.places:
            part = self._part_of(place)
            target = place.of(buffer).copy_(part.values.detach()[place.box.slices(part.offsets)])
            if self._sent is not None:
                self._sent.of(part, place.kind)[place.box.slices(part.offsets)].copy_(target)
        data = buffer[: bucket.nbytes]
        clear_gaps(bucket.places, data)
        digest = bytearray(bytes.fromhex(bucket_digest(bucket.places, data)))
        buffer[bucket.nbytes :].copy_(torch.frombuffer(digest, dtype=torch.uint8))

    def _part_of(self, place: Place) -> TensorPart[torch.Tensor]:
        """Returns the part that has a rectangle."""
        part = self._part
        while part is None or not _covers(part, place):
            part = self._part = next(self._parts)
        return part


def _covers(part: TensorPart[torch.Tensor], place: Place) -> bool:
    if part.name != place.name:
        return False
    return part.box.within(place.box) == place.box if place.count else part.box == place.box
