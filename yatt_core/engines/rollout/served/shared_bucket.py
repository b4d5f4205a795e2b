"""Buckets of weights that other processes of this machine read where they have arrived: on a GPU, or in host memory.

Consumes buckets. Produces their descriptions, small enough for a pipe. A GPU's memory is lent (`engines.device_memory`). Host
memory has no name in any folder: it is reached through the descriptor of the process that made it, and ends with that process
if it is not closed before. It is kept between updates, since finding its pages takes as long as copying a bucket. Only buckets
that have arrived in neither are copied: to host memory, once.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from yatt_core.wire.buckets import BucketBuffer, WeightBucket

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class SharedBucket:
    """Where to find a bucket.

    frame: the bucket without its data.
    nbytes: size of the data.
    path: of the host memory that contains the data.
    offset: of the data in this memory, in bytes.
    lent: description of the memory of a GPU that contains the data in place of that; empty if none does.
    lasts: whether the data stays as it is until the update ends; otherwise until the next bucket.
    """

    frame: WeightBucket
    nbytes: int
    path: str = ""
    offset: int = 0
    lent: str = ""
    lasts: bool = False


class BucketReader:
    """The memory as another process sees it: that of the host is mapped once, so that its pages are found once.

    device: where the reader computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: mmap.mmap | None = None

    def open(self, shared: SharedBucket) -> WeightBucket:
        """Returns a bucket, whose data is valid until the writer replaces it (`lasts`); those on the host are of one memory."""
        if not shared.nbytes:
            return shared.frame
        if shared.lent:
            from yatt_core.engines.device_memory import borrowed

            return replace(shared.frame, data=borrowed(shared.lent.encode(), self._device))
        if self._memory is None or len(self._memory) < shared.offset + shared.nbytes:
            # Writable only because torch has no tensors over read-only memory.
            descriptor = os.open(shared.path, os.O_RDWR)
            try:
                self._memory = mmap.mmap(descriptor, 0)
            finally:
                os.close(descriptor)
        return replace(shared.frame, data=np.frombuffer(self._memory, np.uint8, shared.nbytes, shared.offset))


class BucketMemory:
    """Memory of the host for a few buckets at a time, and loans of those that have arrived on a GPU.

    lends: whether the readers can borrow the memory of this process's GPU.
    """

    def __init__(self, lends: bool = False) -> None:
        self._lends = lends
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
        """Returns where others find a bucket. One that they could not read is copied to host memory, over what was there."""
        frame = replace(bucket, data=np.empty(0, np.uint8))
        if not bucket.nbytes:
            return SharedBucket(frame, 0)
        import torch

        data = torch.as_tensor(bucket.data)
        offset = data.data_ptr() - self._memory.ctypes.data
        if not 0 <= offset < self._memory.nbytes:
            if self._lends and isinstance(bucket.data, torch.Tensor):
                from yatt_core.engines.device_memory import lent

                return SharedBucket(frame, bucket.nbytes, lent=lent(data).decode())
            (place,) = self.buffers(1, bucket.nbytes)
            torch.from_numpy(place).copy_(data)
            offset = 0
        return SharedBucket(frame, bucket.nbytes, f"/proc/{os.getpid()}/fd/{self._file.fileno()}", offset)

    def close(self) -> None:
        """Frees the memory for good once nobody uses its buffers; a second call does nothing."""
        self._file.close()
        self._memory = np.empty(0, np.uint8)
