"""Packed tensors: what comes out is what went in, at aligned places, without a copy."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from yatt_core.engines.packing import ALIGNMENT, PackedTensors, pack_tensors, unpack_tensors

DTYPES = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|i1", "|b1", "<u2", ">f4"])
TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=4),
    arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    max_size=5,
)


def same(first, second) -> bool:
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@settings(max_examples=150, deadline=None)
@given(TENSORS)
def test_round_trip_in_order_and_aligned(tensors):
    packed = pack_tensors(tensors)
    unpacked = unpack_tensors(packed)
    assert list(unpacked) == list(tensors)
    assert all(same(unpacked[name], tensors[name]) for name in tensors)
    places = [(offset, tensors[name].nbytes) for name, (_, _, offset) in packed.index.items()]
    assert all(offset % ALIGNMENT == 0 for offset, _ in places)
    ends = [0, *(offset + size for offset, size in places)]
    assert all(end <= offset < end + ALIGNMENT for end, (offset, _) in zip(ends, places, strict=False))
    assert packed.nbytes == ends[-1]


def test_scalars_empty_tensors_and_odd_layouts():
    tensors = {
        "odd": np.arange(3, dtype=np.uint8),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 7), dtype=np.float32),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "strided": np.arange(10, dtype=np.int32)[::3],
        "last_empty": np.zeros(0, dtype=np.int64),
    }
    unpacked = unpack_tensors(pack_tensors(tensors))
    assert all(same(unpacked[name], tensors[name]) for name in tensors)
    assert unpacked["scalar"].shape == ()


def test_nothing_at_all():
    packed = pack_tensors({})
    assert (packed.nbytes, unpack_tensors(packed)) == (0, {})
    only_empty = {"a": np.zeros((2, 0), dtype=np.float32)}
    assert unpack_tensors(pack_tensors(only_empty))["a"].shape == (2, 0)


def test_packing_copies_and_unpacking_does_not():
    weight = np.ones(4, dtype=np.float32)
    packed = pack_tensors({"w": weight})
    weight[:] = 0
    view = unpack_tensors(packed)["w"]
    assert view.tolist() == [1, 1, 1, 1]
    assert np.shares_memory(view, packed.data)


def test_a_read_only_buffer_gives_read_only_views():
    packed = pack_tensors({"w": np.ones(4, dtype=np.float32)})
    packed.data.flags.writeable = False
    assert not unpack_tensors(packed)["w"].flags.writeable


def test_it_travels_with_its_buffer_out_of_band():
    packed = pack_tensors({"w": np.arange(1000, dtype=np.float32)})
    buffers: list[pickle.PickleBuffer] = []
    wire = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(wire) < 600
    assert len(buffers) == 1
    arrived: PackedTensors = pickle.loads(wire, buffers=buffers)
    assert unpack_tensors(arrived)["w"].tolist() == list(range(1000))
