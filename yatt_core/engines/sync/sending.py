"""Sends what a rank contributes to the weights, bucket by bucket, straight from the tensors that it holds.

Consumes the parts of tensors that the rank contributes, on any device; no tensor is gathered. Buckets are filled, and their
digests computed, where they are sent from: on a GPU, if the group is. While one bucket is on its way the next is filled, so
that two exist at most. If the engines hold the weights of an earlier transfer, a bucket has only what has changed in its
rectangles since, and the sizes of this go ahead of it; a rectangle in which too much has changed is sent whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import torch

from yatt_core.engines.rectangles import BLOCK, Parts, rectangle_of
from yatt_core.engines.sync.group import SyncGroup
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.engines.tensor_bits import find_changes
from yatt_core.errors import InfrastructureError
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import DIGEST_BYTES, Place, aligned, bucket_digest, clear_gaps
from yatt_core.wire.parts import TensorPart
from yatt_core.wire.transfer_plan import PlannedBucket, decode_rectangles, encode_rectangles, plan_transfer


def send_weights(
    group: SyncGroup,
    task: TransferTask,
    parts: Callable[[bool], Parts],
    rounded_to: str | None,
    most_bytes: int,
    sent: SentWeights | None = None,
) -> int:
    """Sends this rank's part of the weights to all engines, or what has changed since the task's base; returns the bytes sent.

    parts: `SendsWeights.sync_parts` of this rank. Once the members have met, it is gone through to the end, whatever becomes of
        the transfer: other ranks may be gathering tensors in step with this one.
    rounded_to: type in which the engines hold the weights; None to round nothing.
    most_bytes: maximum size of a bucket.
    sent: keeps what is sent, so that the next transfer can send changes alone; None to keep nothing.

    Raises `InfrastructureError` if a member is lost or this rank has not kept the base, and what the group's check raises.
    """
    if task.base and (sent is None or sent.name != task.base):
        raise InfrastructureError(f"{group.own} does not know the weights of transfer {task.base}")
    if sent is not None:
        sent.name = ""  # until all of it has been sent, it is not known what engines hold
    own = encode_rectangles(rectangle_of(part, rounded_to) for part in parts(True))
    buckets = [each for each in met(group, task, own, most_bytes) if each.source == group.place]
    size = DIGEST_BYTES + max((each.nbytes for each in buckets), default=0)
    given = parts(False)
    filler = _Filler(given, sent, bool(task.base))
    total = 0
    try:
        buffers = [group.buffer(size) for _ in buckets[:2]]
        for turn, planned in enumerate(buckets):
            if turn >= 2:
                group.finish(2 * buckets[turn - 2].number, group.place)
            buffer = buffers[turn % 2]
            bucket = filler.fill(planned, buffer)
            if task.base and bucket.places:
                sizes = torch.tensor(bucket.changed_sizes, device=buffer.device)
                group.begin(2 * bucket.number + 1, group.place, sizes)
                group.finish(2 * bucket.number + 1, group.place)
            group.begin(2 * bucket.number, group.place, buffer[: bucket.nbytes + DIGEST_BYTES])
            total += bucket.nbytes
            advanced()
    finally:
        deque(given, maxlen=0)
    for bucket in buckets[-2:]:
        group.finish(2 * bucket.number, group.place)
    if sent is not None:
        sent.name = task.name
    return total


def met(group: SyncGroup, task: TransferTask, told: bytes, most_bytes: int) -> tuple[PlannedBucket, ...]:
    """Meets the other members; returns the plan for what the ranks have told.

    Raises `InfrastructureError` if the ranks contradict each other, and as `SyncGroup.meet` does.
    """
    try:
        # What has changed is found in a few numbers at a time.
        most_numbers = BLOCK if task.base else most_bytes
        return plan_transfer([decode_rectangles(each) for each in group.meet(task, told)], most_bytes, most_numbers)
    except ValueError as error:
        raise InfrastructureError(f"weights: {error}") from None


class _Filler:
    """Fills buckets from parts that come in the order of the buckets' rectangles.

    only_changes: whether buckets have only what has changed since `sent` was written.
    """

    def __init__(self, parts: Parts, sent: SentWeights | None, only_changes: bool) -> None:
        self._parts = parts
        self._sent = sent
        self._only_changes = only_changes
        self._part: TensorPart[torch.Tensor] | None = None

    @torch.no_grad()
    def fill(self, bucket: PlannedBucket, buffer: torch.Tensor) -> PlannedBucket:
        """Writes a bucket and its digest; returns it as it is sent. Bytes between rectangles are zero.

        On a GPU, copies may still be queued afterwards. NCCL waits for them on its stream, and a rank that lends its memory waits
        for all of them before it says where the buffer is (`device_memory.lent`).
        """
        places = list[Place]()
        end = 0
        for planned in bucket.places:
            place = replace(planned, offset=aligned(end))
            part = self._part_of(place)
            inside = place.box.slices(part.offsets)
            values = part.values.detach()[inside]
            held = None if self._sent is None else self._sent.of(part, place.kind)[inside]
            if held is not None and self._only_changes:
                place, contents = find_changes(place, held, values)
                buffer[place.offset : place.offset + place.nbytes].copy_(torch.from_numpy(contents))
            else:
                target = place.of(buffer).copy_(values)
                if held is not None:
                    held.copy_(target)
            end = place.offset + place.nbytes
            places.append(place)
        filled = replace(bucket, places=tuple(places))
        data = buffer[: filled.nbytes]
        clear_gaps(places, data)
        digest = bytearray(bytes.fromhex(bucket_digest(places, data)))
        buffer[filled.nbytes :][:DIGEST_BYTES].copy_(torch.frombuffer(digest, dtype=torch.uint8))
        return filled

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
