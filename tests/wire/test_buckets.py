"""Weights in buckets: nothing is lost or changed, and no bucket exceeds its limit."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from yatt_core.engines.rollout.incoming import Assembly
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import WeightBucket, buckets_of
from yatt_core.wire.number_types import Array
from yatt_core.wire.parts import Box


def tensors() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    made: dict[str, Array] = {
        f"layer.{number}": rng.standard_normal(shape).astype(np.float32)
        for number, shape in enumerate([(3, 5), (), (64, 17), (1,), (0, 4), (7,), (5, 3, 11)])
    }
    return {**made, "state": np.arange(5, dtype=np.uint8), "turned": made["layer.2"].T, "empty": np.zeros(0)}


def joined(buckets: list[WeightBucket]) -> dict[str, Array]:
    """Reassembles tensors from buckets, as a receiver does."""
    assembly = Assembly()
    found = dict[str, Array]()
    for bucket in buckets:
        for piece in bucket.pieces():
            if (tensor := assembly.put(piece)) is not None:
                found[piece.name] = tensor
    return found


@pytest.mark.parametrize("most_bytes", [64, 100, 1000, 4352, 1 << 20])
def test_reassembled_tensors_equal_the_originals(most_bytes: int) -> None:
    given = tensors()
    buckets = [pickle.loads(pickle.dumps(bucket, protocol=5)) for bucket in buckets_of(given.items(), most_bytes)]
    found = joined(buckets)
    assert list(found) == list(given)
    for name, array in given.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
    for bucket in buckets:
        bucket.require_intact()
    assert [bucket.number for bucket in buckets] == list(range(len(buckets)))
    assert [bucket.last for bucket in buckets] == [False] * (len(buckets) - 1) + [True]
    assert max(bucket.nbytes for bucket in buckets) <= most_bytes
    assert (len(buckets) == 1) == (most_bytes == 1 << 20)


def test_only_tensors_larger_than_a_bucket_are_cut() -> None:
    pieces = [piece for bucket in buckets_of(tensors().items(), 700) for piece in bucket.pieces()]
    assert {piece.name for piece in pieces if piece.box.sizes != piece.shape} == {"layer.2", "turned"}


def test_a_changed_bucket_does_not_match_its_digest() -> None:
    """Whether its bytes or its places changed. Equal weights have equal digests."""
    bucket, again = (list(buckets_of(tensors().items(), 700))[1] for _ in range(2))
    bucket.require_intact()
    assert bucket.digest == again.digest
    place = bucket.places[0]
    moved = replace(place, box=Box(tuple(start + 1 for start in place.box.offsets), place.box.sizes))
    other = bucket.data.copy()
    other[-1] ^= 1
    for changed in (replace(bucket, data=other), replace(bucket, places=(moved, *bucket.places[1:]))):
        with pytest.raises(InfrastructureError, match=rf"bucket {changed.number} "):
            changed.require_intact()


def test_a_stream_without_tensors_is_one_empty_bucket() -> None:
    (bucket,) = buckets_of([], 64)
    assert bucket.last and not list(bucket.pieces())


def test_one_tensor_and_one_bucket_are_held_at_a_time() -> None:
    """Measures numpy's allocations for 64 tensors of 1 MiB and one of 8 MiB in buckets of 2 MiB."""
    mib = 1 << 20
    sizes = [1] * 32 + [8] + [1] * 32

    def stream() -> Iterator[tuple[str, Array]]:
        for number, size in enumerate(sizes):
            yield f"{number}", np.ones(size * mib // 4, np.float32)

    tracemalloc.start()
    try:
        count = 0
        for bucket in buckets_of(stream(), 2 * mib):
            count += 1
            del bucket
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == sum(sizes) // 2
    assert peak < (8 + 2 + 2 + 1) * mib, (
        "more than the largest tensor, a bucket, and the successor of each while it is released"
    )
