"""Weights in memory that other processes read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.gpu import lent_memory
from yatt_core.engines.rollout.served.engine import has_this_torch
from yatt_core.engines.rollout.served.shared_bucket import BucketMemory, BucketReader
from yatt_core.wire.buckets import WeightBucket, buckets_of

CPU = torch.device("cpu")
READER = """
import pickle, sys
from pathlib import Path
import torch
from yatt_core.engines.rollout.served.shared_bucket import BucketReader
shared = pickle.loads(Path(sys.argv[1]).read_bytes())
print(sum(float(piece.values.sum()) for piece in BucketReader(torch.device("cpu")).open(shared).pieces()))
"""


def test_another_process_reads_what_was_written_once(tmp_path: Path) -> None:
    memory = BucketMemory()
    frame = tmp_path / "frame"
    (bucket,) = buckets_of([("a", np.ones((300, 100), np.float32)), ("b", np.full(7, 2.0, np.float32))])
    frame.write_bytes(pickle.dumps(memory.share(bucket)))
    assert frame.stat().st_size < 2000 < bucket.nbytes, "the description travels without the data"
    command = [sys.executable, "-c", READER, str(frame)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "30014.0"
    memory.close()


def test_a_bucket_that_arrived_in_the_memory_is_read_where_it_is() -> None:
    memory = BucketMemory()
    reader = BucketReader(CPU)
    places = memory.buffers(2, 5000)
    arrived = []
    for place, bucket in zip(places, buckets_of([("a", np.arange(1000.0))], most_bytes=4096), strict=True):
        place[: bucket.nbytes] = bucket.data
        arrived.append(replace(bucket, data=place[: bucket.nbytes]))
    shared = [memory.share(bucket) for bucket in arrived]
    assert len({one.offset for one in shared}) == 2 and len({one.path for one in shared}) == 1
    places[1][:8] = np.array([-1.0]).view(np.uint8)
    first, second = (next(iter(reader.open(one).pieces())).values for one in shared)
    assert first.tolist() == list(map(float, range(512))), "the second bucket has not replaced it"
    assert second[:2].tolist() == [-1.0, 513.0], "what was written later is seen, so nothing was copied"
    assert [each.ctypes.data for each in memory.buffers(2, 5000)] == [each.ctypes.data for each in places]
    memory.close()


def test_buckets_from_elsewhere_are_copied_into_the_memory_one_at_a_time() -> None:
    memory = BucketMemory()
    reader = BucketReader(CPU)
    buckets = list(buckets_of([("a", np.arange(1000.0))], most_bytes=4096))
    shared = [memory.share(bucket) for bucket in buckets]
    assert len(shared) == 2 and len({one.path for one in shared}) == 1
    path = Path(shared[-1].path)
    assert path.stat().st_size == shared[0].nbytes == 4096
    (piece,) = reader.open(shared[-1]).pieces()
    assert (piece.box.offsets, piece.values.tolist()) == ((512,), list(map(float, range(512, 1000))))
    (larger,) = buckets_of([("a", np.arange(2000.0))])
    (piece,) = reader.open(memory.share(larger)).pieces()
    assert piece.values.tolist() == list(map(float, range(2000))), "the memory has grown"
    (piece,) = reader.open(memory.share(buckets[1])).pieces()
    assert piece.values[0] == 512.0
    (empty,) = buckets_of([])
    assert list(reader.open(memory.share(empty)).pieces()) == []
    memory.close()
    assert not path.exists()
    memory.close()  # again, as an engine that is closed twice does


LENT_READER = """
import pickle, sys
from pathlib import Path
import torch
from benchmarks.gpu.lent_memory import lend_host_memory
from yatt_core.engines.rollout.served.shared_bucket import BucketReader
lend_host_memory()
bucket = BucketReader(torch.device("cpu")).open(pickle.loads(Path(sys.argv[1]).read_bytes()))
bucket.require_intact()
assert isinstance(bucket.data, torch.Tensor)
print(sum(float(piece.values.sum()) for piece in bucket.pieces()))
"""


@pytest.fixture
def lent(monkeypatch: pytest.MonkeyPatch) -> dict[int, object]:
    """Has host memory stand for a GPU's; returns what is lent, by the addresses of buffers."""
    from yatt_core.engines import device_memory

    monkeypatch.setattr(device_memory, "lent", lent_memory.lent)
    monkeypatch.setattr(device_memory, "borrowed", lent_memory.borrowed)
    monkeypatch.setattr(lent_memory, "FILES", made := {})
    return made


def on_a_gpu(value: float) -> WeightBucket:
    """Returns a bucket of which host memory stands for a GPU's."""
    (bucket,) = buckets_of([("a", np.full((300, 100), value, np.float32))])
    assert isinstance(bucket.data, np.ndarray)
    return replace(bucket, data=torch.from_numpy(bucket.data))


def test_another_process_reads_a_bucket_that_arrived_on_a_gpu_where_it_is(
    tmp_path: Path, lent: dict[int, object]
) -> None:
    memory = BucketMemory(lends=True)
    frame = tmp_path / "frame"
    bucket = on_a_gpu(1.0)
    frame.write_bytes(pickle.dumps(memory.share(bucket)))
    assert memory.nbytes == 0, "nothing was copied to host memory"
    assert list(lent) == [bucket.data.data_ptr()] and frame.stat().st_size < 2000 < bucket.nbytes
    command = [sys.executable, "-c", LENT_READER, str(frame)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "30000.0"
    memory.close()


def test_buckets_from_a_gpu_are_copied_for_readers_that_cannot_reach_it(lent: dict[int, object]) -> None:
    memory = BucketMemory()
    reader = BucketReader(CPU)
    for value in (1.0, 2.0):
        shared = memory.share(on_a_gpu(value))
        assert not shared.lent and reader.open(shared).data[:4].view(np.float32) == value
    assert not lent
    memory.close()


def test_what_arrived_on_the_host_is_never_lent_as_memory_of_a_gpu(lent: dict[int, object]) -> None:
    """A transfer over gloo between processes that have GPUs, and weights that are merged with adapters on the host."""
    memory = BucketMemory(lends=True)
    (place,) = memory.buffers(1, 200_000)
    bucket = on_a_gpu(3.0)
    arrived = torch.from_numpy(place[: bucket.nbytes]).copy_(torch.as_tensor(bucket.data))
    (merged,) = buckets_of([("a", np.ones(9, np.float32))])
    reader = BucketReader(CPU)
    for given in (replace(bucket, data=arrived), merged):
        shared = memory.share(given)
        reader.open(shared).require_intact()
        assert shared.path and not shared.lent
    assert not lent
    memory.close()


def test_only_the_same_torch_reads_what_torch_says_of_a_gpus_memory() -> None:
    own = torch.__version__.partition("+")[0]
    assert has_this_torch({"torch": own}) and has_this_torch({"torch": f"{own}+cu130"})
    assert not has_this_torch({"torch": f"{own}.1"}) and not has_this_torch({})
