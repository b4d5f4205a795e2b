"""Passes buckets of weights from the memory of an engine's first node to its workers on other nodes.

Consumes buckets in memory that processes share (`shared_bucket`), of a GPU or of the host. The first worker sends each bucket
once, over the network on which the workers exchange activations, by NCCL from GPU to GPU; every worker of another node receives
it into memory of its own and checks its digest there.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import distributed

from yatt_core.engines.rollout.served.shared_bucket import BucketReader, SharedBucket
from yatt_core.wire.buckets import WeightBucket


class BucketRelay:
    """One worker's end. All workers build theirs at the same time, and open the same buckets in the same order.

    ranks: number of workers.
    here: number of workers of each node.
    device: on which the worker computes.
    """

    def __init__(self, rank: int, ranks: int, here: int, device: torch.device) -> None:
        self._sends = rank == 0 and ranks > here
        self._receives = rank >= here
        self._device = device
        self._reader = BucketReader(device)
        self._group = None
        if ranks > here:
            backend = "nccl" if device.type == "cuda" else "gloo"
            self._group = distributed.new_group([0, *range(here, ranks)], backend=backend)

    def open(self, shared: SharedBucket) -> WeightBucket:
        """Returns a bucket: received data is memory of its own, other data is valid as `SharedBucket.lasts` says.

        Raises `InfrastructureError` if it was damaged on its way from another node.
        """
        if self._receives and shared.nbytes:
            data = torch.empty(shared.nbytes, dtype=torch.uint8, device=self._device)
            distributed.broadcast(data, 0, self._group)
            bucket = replace(shared.frame, data=data)
            bucket.require_intact()
            return bucket
        bucket = self._reader.open(shared)
        if self._sends and shared.nbytes:
            distributed.broadcast(torch.as_tensor(bucket.data, device=self._device), 0, self._group)
        return bucket
