"""Weights in memory that other processes read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np

from yatt_core.engines.rollout.vllm.shared_bucket import BucketMemory, BucketReader
from yatt_core.wire.buckets import buckets_of

READER = """
import pickle, sys
from pathlib import Path
from yatt_core.engines.rollout.vllm.shared_bucket import BucketReader
shared = pickle.loads(Path(sys.argv[1]).read_bytes())
print(sum(float(piece.values.sum()) for piece in BucketReader().open(shared).pieces()))
"""


def test_another_process_reads_what_was_written_once(tmp_path: Path) -> None:
    memory, frame = BucketMemory(), tmp_path / "frame"
    (bucket,) = buckets_of([("a", np.ones((300, 100), np.float32)), ("b", np.full(7, 2.0, np.float32))])
    frame.write_bytes(pickle.dumps(memory.share(bucket)))
    assert frame.stat().st_size < 2000 < bucket.nbytes, "the description travels without the data"
    command = [sys.executable, "-c", READER, str(frame)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "30014.0"
    memory.close()


def test_the_memory_holds_one_bucket_at_a_time() -> None:
    memory, reader = BucketMemory(), BucketReader()
    buckets = list(buckets_of([("a", np.arange(1000.0))], most_bytes=4096))
    shared = [memory.share(bucket) for bucket in buckets]
    assert len(shared) == 2 and len({one.path for one in shared}) == 1
    path = Path(shared[-1].path)
    assert path.stat().st_size == shared[0].nbytes == 4096
    (piece,) = reader.open(shared[-1]).pieces()
    assert (piece.box.offsets, piece.values.tolist()) == ((512,), list(map(float, range(512, 1000))))
    (piece,) = reader.open(memory.share(buckets[0])).pieces()
    assert piece.values.tolist() == list(map(float, range(512))), "a larger bucket than before"
    memory.empty()
    assert path.stat().st_size == 0
    (piece,) = reader.open(memory.share(buckets[1])).pieces()
    assert piece.values[0] == 512.0, "after the memory was freed"
    (empty,) = buckets_of([])
    assert list(reader.open(memory.share(empty)).pieces()) == []
    memory.close()
    assert not path.exists()
    memory.close()  # again, as an engine that is closed twice does
