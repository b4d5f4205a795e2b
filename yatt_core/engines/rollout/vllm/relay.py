"""Passes buckets of weights from the memory of an engine's first node to its workers on other nodes.

Consumes buckets in shared memory (`shared_bucket`). The first worker sends each bucket once, over the network on which the
workers exchange activations; every worker of another node receives it into memory of its own and checks its digest.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import distributed

from yatt_core.engines.rollout.served.shared_bucket import BucketReader, SharedBucket
from yatt_core.wire.buckets import WeightBucket


class BucketRelay:
    """One worker's end. All workers build theirs at the same time, and open the same buckets in the same order.

    ranks: number of workers.
    here: number of workers of each node.
    """

    def __init__(self, rank: int, ranks: int, here: int) -> None:
        self._sends = rank == 0 and ranks > here
        self._receives = rank >= here
        self._reader = BucketReader()
        self._group = None
        if ranks > here:
            self._group = distributed.new_group([0, *range(here, ranks)], backend="gloo")

    def open(self, shared: SharedBucket) -> WeightBucket:
        """Returns a bucket in host memory: received data is memory of its own, other data is valid as `SharedBucket.lasts` says.

        Raises `InfrastructureError` if it was damaged on its way from another node.
        """
        if not self._receives:
            bucket = self._reader.open(shared)
            if self._sends and shared.nbytes:
                distributed.broadcast(torch.from_numpy(bucket.data), 0, self._group)
            return bucket
        if not shared.nbytes:
            return shared.frame
        data = np.empty(shared.nbytes, np.uint8)
        distributed.broadcast(torch.from_numpy(data), 0, self._group)
        bucket = replace(shared.frame, data=data)
        bucket.require_intact()
        return bucket
