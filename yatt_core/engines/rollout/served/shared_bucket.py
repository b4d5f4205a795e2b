"""Buckets of weights in memory that other processes of this machine read: received there, or copied there once.

Consumes buckets. Produces their descriptions, small enough for a pipe. The memory has no name in any folder: it is
reached through the descriptor of the process that made it, and ends with that process if it is not closed before. It is
kept between updates, since finding its pages takes as long as copying a bucket.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from yatt_core.wire.buckets import BucketBuffer, WeightBucket


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Where to find a bucket.

    frame: the bucket without its data.
    path: of the memory that contains its data.
    offset: of the data in the memory, in bytes.
    nbytes: size of the data.
    lasts: whether the data stays as it is until the update ends; otherwise until the next bucket.
    """

    frame: WeightBucket
    path: str
    offset: int
    nbytes: int
    lasts: bool = False


class BucketReader:
    """The memory as another process sees it: mapped once, so that its pages are found once."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def open(self, shared: SharedBucket) -> WeightBucket:
        """Returns a bucket, whose data is valid until the writer replaces it (`lasts`); all are of one memory."""
        if not shared.nbytes:
            return shared.frame
        if self._memory is None or len(self._memory) < shared.offset + shared.nbytes:
            # Writable only because torch has no tensors over read-only memory.
            descriptor = os.open(shared.path, os.O_RDWR)
            try:
                self._memory = mmap.mmap(descriptor, 0)
            finally:
                os.close(descriptor)
        return replace(shared.frame, data=np.frombuffer(self._memory, np.uint8, shared.nbytes, shared.offset))


class BucketMemory:
    """Memory for a few buckets at a time."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("yatt-weights"), "r+b", buffering=0)
        self._memory = np.empty(0, np.uint8)

    @property
    def nbytes(self) -> int:
        """Size of the memory in bytes."""
        return self._memory.nbytes

    def buffers(self, count: int, nbytes: int) -> Sequence[BucketBuffer]:
        """Returns places for buckets of at most this size, of any content; they replace those that were returned before."""
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        if self._memory.nbytes < count * size:
            self._file.truncate(count * size)
            self._memory = np.frombuffer(mmap.mmap(self._file.fileno(), count * size), np.uint8)
        return [self._memory[place * size :][:nbytes] for place in range(count)]

    def share(self, bucket: WeightBucket) -> SharedBucket:
        """Returns where others find a bucket. One that did not arrive in the memory is copied there, over what was there."""
        data = bucket.data
        assert isinstance(data, np.ndarray), "other processes read host memory"
        nbytes = bucket.nbytes
        if nbytes and not np.may_share_memory(data, self._memory):
            (place,) = self.buffers(1, nbytes)
            place[:] = data
            data = place
        offset = data.ctypes.data - self._memory.ctypes.data if nbytes else 0
        frame = replace(bucket, data=np.empty(0, np.uint8))
        return SharedBucket(frame, f"/proc/{os.getpid()}/fd/{self._file.fileno()}", offset, nbytes)

    def close(self) -> None:
        """Frees the memory for good once nobody uses its buffers; a second call does nothing."""
        self._file.close()
        self._memory = np.empty(0, np.uint8)
