"""Sends and receives what has changed in the weights since the transfer whose weights the engines hold.

Consumes a rank's parts and the copy of what it sent last, which is brought up to date on the way. Numbers are compared
as the engines hold them, bit for bit. The ranks send one after another; how much each has to send is not known before,
so each bucket is preceded by its sizes and followed by its places. A rectangle in which too much has changed is sent
whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from yatt_core.engines.rectangles import Parts, rectangle_of
from yatt_core.engines.sync.group import Check, SyncGroup
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.engines.tensor_bits import BITS
from yatt_core.errors import InfrastructureError
from yatt_core.progress import advanced
from yatt_core.protocols.transfers import TransferTask
from yatt_core.wire.buckets import (
    DIGEST_BYTES,
    Contents,
    Place,
    WeightBucket,
    filled_buckets,
    placed,
    places_as_rows,
    places_of_rows,
)
from yatt_core.wire.changes import compress, encode_positions, encode_steps
from yatt_core.wire.number_types import storage_type
from yatt_core.wire.parts import Rectangle, TensorPart, cut_box

BLOCK = 4 << 20
"""Numbers that are compared at a time."""


def send_changes(
    group: SyncGroup,
    task: TransferTask,
    parts: Callable[[], Parts],
    rounded_to: str | None,
    most_bytes: int,
    check: Check,
    sent: SentWeights | None,
) -> int:
    """Sends what has changed in this rank's part of the weights; returns the bytes sent.

    Parameters and errors are those of `send_weights`.
    """
    if sent is None or sent.name != task.base:
        raise InfrastructureError(f"{group.own} does not know the weights of transfer {task.base}")
    sent.name = ""  # until all of it has been sent, it is not known what engines hold
    group.meet(task, b"", check)
    total = 0
    for bucket in filled_buckets(_changes(parts(), rounded_to, most_bytes, sent), most_bytes):
        listed = json.dumps(places_as_rows(bucket.places), separators=(",", ":")).encode()
        sizes = torch.tensor([bucket.nbytes, len(listed), int(bucket.last)], dtype=torch.int64)
        rest = np.frombuffer(listed + bytes.fromhex(bucket.digest), np.uint8)
        body = torch.from_numpy(np.concatenate([bucket.data, rest]))
        for turn, buffer in enumerate((sizes, body), start=2 * bucket.number):
            group.begin(turn, group.source, buffer.to(group.buffer_device))
            group.finish(turn, group.source)
        total += len(body)
        advanced()
    sent.name = task.name
    return total


def _changes(parts: Parts, rounded_to: str | None, most_bytes: int, sent: SentWeights) -> Contents:
    """Yields what has changed, rectangle by rectangle."""
    for part in parts:
        rectangle = rectangle_of(part, rounded_to)
        size = storage_type(rectangle.kind).itemsize
        for box in cut_box(part.box, min(BLOCK, most_bytes // size)):
            yield _changed(part, replace(rectangle, box=box), sent)


@torch.no_grad()
def _changed(
    part: TensorPart[torch.Tensor], rectangle: Rectangle, sent: SentWeights
) -> tuple[Place, npt.NDArray[np.uint8]]:
    """Returns what has changed in a rectangle, or all of it if that takes fewer bytes.

    The copy of what was sent is brought up to date.
    """
    slices = rectangle.box.slices(part.offsets)
    held = sent.of(part, rectangle.kind)[slices]
    new = part.values.detach()[slices].to("cpu", getattr(torch, rectangle.kind)).contiguous().view(-1)
    bits = BITS[new.element_size()]
    before = held.contiguous().view(-1).view(bits).numpy()
    after = new.view(bits).numpy()
    changes = np.flatnonzero(before != after)
    steps, far = encode_steps(before[changes], after[changes])
    compressed = compress(steps, encode_positions(changes))
    held.copy_(new.view(held.shape))
    place = placed(rectangle, 0)
    if far.nbytes + len(compressed) >= after.nbytes:
        return place, after.view(np.uint8)
    counted = replace(place, changes=changes.size, far=far.size, step_bytes=len(compressed))
    return counted, np.concatenate([far.view(np.uint8), compressed])


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
            size, listed, flag = sizes.tolist()
            last = bool(flag)
            rest = _received(group, turn + 1, source, torch.empty(size + listed + DIGEST_BYTES, dtype=torch.uint8))
            body = rest.numpy()
            yield WeightBucket(
                number=number,
                last=last and source == group.sources - 1,
                places=places_of_rows(json.loads(body[size : size + listed].tobytes())),
                data=body[:size],
                digest=body[size + listed :].tobytes().hex(),
            )
            number = number + 1
            turn = turn + 2
            advanced()


def _received(group: SyncGroup, turn: int, source: int, buffer: torch.Tensor) -> torch.Tensor:
    found = buffer.to(group.buffer_device)
    group.begin(turn, source, found)
    group.finish(turn, source)
    return found.cpu()
