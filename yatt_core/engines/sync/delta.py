"""Sends and receives what has changed in the weights since the transfer whose weights the engines hold.

Consumes a rank's parts and the copy of what it sent last, which is brought up to date on the way. Numbers are compared
as the engines hold them, bit for bit. The ranks send one after another; how much each has to send is not known before,
so each bucket is preceded by its sizes and followed by its places. A rectangle in which too much has changed is sent
whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.rectangles import rectangle_of
from yatt_core.engines.sync.group import Check, SyncGroup
from yatt_core.engines.sync.sending import DIGEST_BYTES, Parts
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import (
    Place,
    WeightBucket,
    aligned,
    bucket_digest,
    clear_gaps,
    places_as_rows,
    places_of_rows,
)
from yatt_core.wire.changes import compress, encode_positions, encode_steps
from yatt_core.wire.number_types import storage_type
from yatt_core.wire.parts import Box, TensorPart, cut_box

BLOCK = 4 << 20
"""Numbers that are compared at a time."""
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Types of integers by their size in bytes, as which numbers are compared: two NaNs with the same bits are equal."""


def send_changes(
    group: SyncGroup,
    task: TransferTask,
    parts: Callable[[], Parts],
    rounded_to: str | None,
    most_bytes: int,
    check: Check,
    sent: SentWeights,
) -> int:
    """Sends what has changed in this rank's part of the weights; returns the bytes sent.

    Parameters and errors are those of `send_weights`.
    """
    group.meet(task, b"", check)
    total = 0
    turn = 0
    source = group.source
    filled = _filled(parts(), rounded_to, most_bytes, sent)
    bucket = next(filled)
    while True:
        following = next(filled, None)
        places, data = bucket
        clear_gaps(places, data)
        listed = json.dumps(places_as_rows(places), separators=(",", ":")).encode()
        sizes = torch.tensor([len(data), len(listed), int(following is None)], dtype=torch.int64)
        body = np.concatenate(
            [data, np.frombuffer(listed, np.uint8), np.frombuffer(bytes.fromhex(bucket_digest(places, data)), np.uint8)]
        )
        for buffer in (sizes, torch.from_numpy(body)):
            group.begin(turn, source, buffer.to(group.buffer_device))
            group.finish(turn, source)
            turn += 1
        total += len(body)
        advanced()
        if following is None:
            return total
        bucket = following


def _filled(
    parts: Parts, rounded_to: str | None, most_bytes: int, sent: SentWeights
) -> Iterator[tuple[list[Place], npt.NDArray[np.uint8]]]:
    """Yields at least one bucket: places, and a buffer that is valid for good."""
    places = list[Place]()
    data = np.empty(most_bytes, np.uint8)
    end = 0
    for part in parts:
        rectangle = rectangle_of(part, rounded_to)
        size = storage_type(rectangle.kind).itemsize
        for box in cut_box(part.box, min(BLOCK, most_bytes // size)):
            contents, changes, far, step_bytes = _changed(part, box, rectangle.kind, sent)
            if places and aligned(end) + len(contents) > most_bytes:
                yield places, data[:end]
                places = []
                data = np.empty(most_bytes, np.uint8)
                end = 0
            offset = aligned(end)
            place = Place(
                name=part.name,
                shape=part.shape,
                box=box,
                kind=rectangle.kind,
                offset=offset,
                changes=changes,
                far=far,
                step_bytes=step_bytes,
            )
            places.append(place)
            end = offset + len(contents)
            data[offset:end] = contents
    yield places, data[:end]


@torch.no_grad()
def _changed(
    part: TensorPart[torch.Tensor], box: Box, kind: str, sent: SentWeights
) -> tuple[npt.NDArray[np.uint8], int, int, int]:
    """Returns the bytes of what has changed in a rectangle, and `changes`, `far` and `step_bytes` of its place.

    `changes` is -1 if all numbers are returned. The copy of what was sent is brought up to date.
    """
    held = sent.of(part, kind)[box.slices(part.offsets)]
    values = part.values.detach()[box.slices(part.offsets)]
    new = values.to("cpu", getattr(torch, kind)).contiguous().view(-1)
    bits = BITS[new.element_size()]
    before = held.contiguous().view(-1).view(bits).numpy()
    after = new.view(bits).numpy()
    changes = np.flatnonzero(before != after)
    steps, far = encode_steps(before[changes], after[changes])
    compressed = compress(steps, encode_positions(changes))
    held.copy_(new.view(held.shape))
    if far.nbytes + len(compressed) >= after.nbytes:
        return after.view(np.uint8), -1, 0, 0
    return np.concatenate([far.view(np.uint8), compressed]), changes.size, far.size, len(compressed)


def received_changes(group: SyncGroup, task: TransferTask, check: Check) -> Iterator[WeightBucket]:
    """Meets the other members, and then yields the buckets of all ranks.

    Raises `InfrastructureError` if a member is lost, and what `check` raises.
    """
    group.meet(task, b"", check)
    number = 0
    for source in range(group.sources):
        turn = 0
        last = False
        while not last:
            sizes = _received(group, turn, source, torch.empty(3, dtype=torch.int64))
            size = int(sizes[0])
            listed = int(sizes[1])
            last = bool(sizes[2])
            body = _received(
                group, turn + 1, source, torch.empty(size + listed + DIGEST_BYTES, dtype=torch.uint8)
            ).numpy()
            places = places_of_rows(json.loads(body[size : size + listed].tobytes()))
            digest = body[size + listed :].tobytes().hex()
            yield WeightBucket(
                number=number, last=last and source == group.sources - 1, places=places, data=body[:size], digest=digest
            )
            number = number + 1
            turn = turn + 2
            advanced()


def _received(group: SyncGroup, turn: int, source: int, buffer: torch.Tensor) -> torch.Tensor:
    found = buffer.to(group.buffer_device)
    group.begin(turn, source, found)
    group.finish(turn, source)
    return found.cpu()
