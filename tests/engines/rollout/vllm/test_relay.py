"""Buckets of weights reach the workers of other nodes whole, or are refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from yatt_core.engines.rollout.served.shared_bucket import BucketMemory
from yatt_core.engines.rollout.vllm import relay as module
from yatt_core.engines.rollout.vllm.relay import BucketRelay
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import buckets_of

CPU = torch.device("cpu")
TENSORS = {"a": np.arange(3000, dtype=np.float32), "b": np.ones((4, 5), np.float32)}


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What is on its way; the ranks call one after another, the sender first."""
    sent = list[torch.Tensor]()

    def broadcast(tensor: torch.Tensor, source: int, group: list[int]) -> None:
        assert (source, group) == (0, [0, 2, 3])
        if sent:
            tensor.copy_(sent[0])
        else:
            sent.append(tensor.clone())

    fake = SimpleNamespace(new_group=lambda ranks, backend: ranks, broadcast=broadcast)
    monkeypatch.setattr(module, "distributed", fake)
    return sent


def test_every_worker_opens_the_same_bucket(wire: list[torch.Tensor]) -> None:
    memory = BucketMemory()
    relays = [BucketRelay(rank, 4, 2, CPU) for rank in range(4)]
    for bucket in buckets_of(TENSORS.items(), 8000):
        wire.clear()
        shared = memory.share(bucket)
        for relay in relays:
            opened = relay.open(shared)
            assert np.array_equal(opened.data, bucket.data) and opened.places == bucket.places
    assert wire[0].numel() == bucket.nbytes, "the last bucket was sent once, to all"


def test_a_bucket_that_was_damaged_on_its_way_is_refused(wire: list[torch.Tensor]) -> None:
    (bucket,) = buckets_of(TENSORS.items(), 1 << 20)
    memory = BucketMemory()
    shared = memory.share(bucket)
    BucketRelay(0, 4, 2, CPU).open(shared)
    wire[0][5] += 1
    BucketRelay(1, 4, 2, CPU).open(shared)
    with pytest.raises(InfrastructureError, match="damaged"):
        BucketRelay(2, 4, 2, CPU).open(shared)


def test_the_workers_of_one_node_send_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "distributed", None)
    (bucket,) = buckets_of(TENSORS.items(), 1 << 20)
    memory = BucketMemory()
    shared = memory.share(bucket)
    for rank in range(2):
        assert np.array_equal(BucketRelay(rank, 2, 2, CPU).open(shared).data, bucket.data)


def test_buckets_on_a_gpu_go_on_by_nccl_from_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Host memory stands for the GPU's: what is sent is the memory that the engine's process lends, and no copy of it."""
    from yatt_core.engines import device_memory

    lent = list[torch.Tensor]()
    sent = list[torch.Tensor]()

    def lend(buffer: torch.Tensor) -> bytes:
        lent.append(buffer)
        return b"lent"

    monkeypatch.setattr(device_memory, "lent", lend)
    monkeypatch.setattr(device_memory, "borrowed", lambda description, device: lent[-1])
    backends = list[str]()
    fake = SimpleNamespace(
        new_group=lambda ranks, backend: backends.append(backend),
        broadcast=lambda tensor, source, group: sent.append(tensor),
    )
    monkeypatch.setattr(module, "distributed", fake)
    (bucket,) = buckets_of(TENSORS.items(), 1 << 20)
    shared = BucketMemory(lends=True).share(replace(bucket, data=torch.as_tensor(bucket.data)))
    opened = BucketRelay(0, 4, 2, CPU).open(shared)
    assert isinstance(opened.data, torch.Tensor)
    assert opened.data.data_ptr() == sent[0].data_ptr() == lent[0].data_ptr()
    BucketRelay(3, 4, 2, torch.device("cuda", 1))
    assert backends == ["gloo", "nccl"]
