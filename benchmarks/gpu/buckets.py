"""Checks of buckets of weights on a GPU: their digests, and processes that take them from there, as vLLM's workers do.

Consumes the GPUs. vLLM itself is not among the packages: a worker is a process that reads buckets as its workers do. Where cores
stand in for GPUs, host memory takes the place of the memory of one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from benchmarks.gpu.claims import Finding, Place
from benchmarks.gpu.courses import VISIBLE
from benchmarks.gpu.lent_memory import lend_host_memory
from benchmarks.gpu.work import SEED
from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.engines.device import own_device
from yatt_core.engines.device_memory import wait_for
from yatt_core.engines.rollout.served.shared_bucket import BucketMemory, BucketReader, SharedBucket
from yatt_core.wire.bit_sums import block_sums, sums_on_device
from yatt_core.wire.buckets import WeightBucket, bucket_digest, buckets_of

BUCKET_BYTES = (64 << 20) + 5
STAND_IN_BYTES = (2 << 20) + 5
"""Neither is a whole number of words."""
BUFFERS = 2
"""As many as a transfer fills by turns."""
TURNS = 3


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What a worker took.

    sent, taken: digests of each bucket: its own, and that of what the worker copied.
    seconds: of the copies, without the first one, for which the memory is opened.
    """

    sent: tuple[str, ...]
    taken: tuple[str, ...]
    seconds: float


def digests_agree(place: Place) -> Finding:
    """Compares the sums of the same random bytes, whole and cut, and those of bytes of which one bit has changed."""
    data = _random(_size(place), SEED)
    there = torch.from_numpy(data).to(own_device())
    cuts = (data.size, data.size - 1, data.size // 2 + 3, 5)
    differing = sum(sums_on_device(there[:cut]) != block_sums(data[:cut]) for cut in cuts)
    begun = time.perf_counter()
    whole = sums_on_device(there)
    seconds = time.perf_counter() - begun
    places = (0, data.size // 3, data.size - 1)
    unnoticed = 0
    for at in places:
        there[at] ^= 1
        unnoticed += sums_on_device(there) == whole
        there[at] ^= 1
    said = f"{differing} of {len(cuts)} digests differ, {unnoticed} of {len(places)} changed bits go unnoticed"
    return Finding(differing + unnoticed == 0, said, {"digest_gb_s": data.size / seconds / 1e9})


def worker_takes_buckets(place: Place) -> Finding:
    """Has a process on the same GPU take buckets from another one's memory."""
    return _taken(place, (place.devices[0], place.devices[0]))


def second_worker_takes_buckets(place: Place) -> Finding:
    """Has a process on a second GPU take buckets from the memory of the first one, which it sees, too."""
    return _taken(place, (place.devices[0], f"{place.devices[1]},{place.devices[0]}"))


def _taken(place: Place, devices: tuple[str, str]) -> Finding:
    _, found = on_ranks(2, _lend_or_borrow, devices, _size(place), place.stand_in)
    return judged(found, _size(place))


def judged(found: Borrowed, size: int) -> Finding:
    """Compares a worker's digests with the buckets' own. size: bytes of a bucket."""
    count = len(found.sent)
    differing = sum(one != other for one, other in zip(found.sent, found.taken, strict=True))
    holds = count == BUFFERS * TURNS and not differing
    said = f"{differing} of {count} buckets differ, of which each {TURNS} are in the same memory one after another"
    return Finding(holds, said, {"worker_ipc_gb_s": (count - 1) * size / found.seconds / 1e9})


def _lend_or_borrow(rank: Rank, devices: Sequence[str], size: int, stand_in: bool) -> Borrowed:
    os.environ[VISIBLE] = devices[rank.rank]  # before anything touches a GPU
    if stand_in:
        lend_host_memory()
    return _lend(rank, size) if rank.rank == 0 else _borrow(rank)


def _lend(rank: Rank, size: int) -> Borrowed:
    """Puts buckets into memory by turns, as a transfer does, and says where they are."""
    memory = BucketMemory(lends=True)
    buffers = [torch.empty(size, dtype=torch.uint8, device=own_device()) for _ in range(BUFFERS)]
    for turn in range(BUFFERS * TURNS):
        rank.shared(_filled(memory, buffers[turn % BUFFERS], turn))
        rank.shared(None)  # from here on the memory is used again
    return Borrowed((), (), 0.0)


def _filled(memory: BucketMemory, buffer: torch.Tensor, turn: int) -> SharedBucket:
    (given,) = buckets_of([("numbers", _random(buffer.numel(), turn))], buffer.numel())
    assert isinstance(given.data, np.ndarray)
    bucket = replace(given, data=buffer.copy_(torch.from_numpy(given.data)))
    bucket.require_intact()
    return memory.share(bucket)


def _borrow(rank: Rank) -> Borrowed:
    device = own_device()
    reader = BucketReader(device)
    found = list[tuple[WeightBucket, torch.Tensor]]()
    seconds = list[float]()
    for _ in range(BUFFERS * TURNS):
        shared: SharedBucket = rank.shared(None)
        begun = time.perf_counter()
        bucket = reader.open(shared)
        assert isinstance(bucket.data, torch.Tensor)
        found.append((bucket, bucket.data.clone()))
        wait_for(device)
        seconds.append(time.perf_counter() - begun)
        rank.shared(None)
    return Borrowed(
        sent=tuple(bucket.digest for bucket, _ in found),
        taken=tuple(bucket_digest(bucket.places, data) for bucket, data in found),
        seconds=sum(seconds[1:]),
    )


def _random(size: int, seed: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, size, np.uint8)


def _size(place: Place) -> int:
    return STAND_IN_BYTES if place.stand_in else BUCKET_BYTES
