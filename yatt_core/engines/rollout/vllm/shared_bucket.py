"""A bucket of weights in memory that other processes of this machine read: written once, whatever their number.

Consumes buckets. Produces their descriptions, small enough for a pipe. The memory has no name in any folder: it is
reached through the descriptor of the process that wrote it, and ends with that process.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass, replace

import numpy as np

from yatt_core.wire.buckets import WeightBucket


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Where to find a bucket.

    frame: the bucket without its data.
    path: of the memory that contains its data.
    nbytes: size of the data.
    """

    frame: WeightBucket
    path: str
    nbytes: int


class BucketReader:
    """The memory as another process sees it: mapped once for all buckets of an update, so that its pages are found once."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def open(self, shared: SharedBucket) -> WeightBucket:
        """Returns a bucket, whose data is valid until the writer shares the next one; all are of one memory."""
        if not shared.nbytes:
            return shared.frame
        if self._memory is None or len(self._memory) < shared.nbytes:
            # Writable only because torch has no tensors over read-only memory.
            descriptor = os.open(shared.path, os.O_RDWR)
            try:
                self._memory = mmap.mmap(descriptor, shared.nbytes)
            finally:
                os.close(descriptor)
        return replace(shared.frame, data=np.frombuffer(self._memory, np.uint8, shared.nbytes))


class BucketMemory:
    """Memory for one bucket at a time."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.memfd_create("yatt-weights"), "r+b", buffering=0)

    def share(self, bucket: WeightBucket) -> SharedBucket:
        """Copies a bucket into the memory, in place of the previous one."""
        descriptor, data, written = self._file.fileno(), bucket.data.data, 0
        while written < len(data):
            written += os.pwrite(descriptor, data[written:], written)
        frame = replace(bucket, data=np.empty(0, np.uint8))
        return SharedBucket(frame, f"/proc/{os.getpid()}/fd/{descriptor}", bucket.nbytes)

    def empty(self) -> None:
        """Frees the memory until the next bucket."""
        self._file.truncate(0)

    def close(self) -> None:
        """Frees the memory for good; a second call does nothing."""
        self._file.close()
