"""Weights in memory that other processes read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from yatt_core.engines.rollout.served.shared_bucket import BucketMemory, BucketReader
from yatt_core.wire.buckets import buckets_of

READER = """
import pickle, sys
from pathlib import Path
from yatt_core.engines.rollout.served.shared_bucket import BucketReader
shared = pickle.loads(Path(sys.argv[1]).read_bytes())
print(sum(float(piece.values.sum()) for piece in BucketReader().open(shared).pieces()))
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
    reader = BucketReader()
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
    reader = BucketReader()
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
