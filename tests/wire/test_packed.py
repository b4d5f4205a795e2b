"""Packed arrays and the messages made of them: exact round trips, aligned offsets, no copies."""

from __future__ import annotations

import pickle
from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tests.matrix import examples
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult, support_fields
from yatt_core.wire.packed import ALIGNMENT, PackedArrays, flatten, pack_arrays, split
from yatt_core.wire.support import Support

DTYPES = st.sampled_from(["<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|i1", "|b1", "<u2", ">f4"])
TENSORS = st.dictionaries(
    st.text(min_size=1, max_size=4),
    arrays.arrays(DTYPES, arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)),
    max_size=5,
)


def same(first, second) -> bool:
    return (first.dtype, first.shape, first.tobytes()) == (second.dtype, second.shape, second.tobytes())


@settings(max_examples=examples(150), deadline=None)
@given(TENSORS)
def test_round_trip_in_order_and_aligned(tensors):
    packed = pack_arrays(tensors)
    unpacked = packed.arrays()
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
    unpacked = pack_arrays(tensors).arrays()
    assert all(same(unpacked[name], tensors[name]) for name in tensors)
    assert unpacked["scalar"].shape == ()


def test_no_arrays_at_all():
    packed = pack_arrays({})
    assert (packed.nbytes, packed.arrays()) == (0, {})
    only_empty = {"a": np.zeros((2, 0), dtype=np.float32)}
    assert pack_arrays(only_empty).arrays()["a"].shape == (2, 0)


def test_packing_copies_and_unpacking_does_not():
    weight = np.ones(4, dtype=np.float32)
    packed = pack_arrays({"w": weight})
    weight[:] = 0
    view = packed.arrays()["w"]
    assert view.tolist() == [1, 1, 1, 1]
    assert np.shares_memory(view, packed.data)


def test_a_read_only_buffer_gives_read_only_views():
    packed = pack_arrays({"w": np.ones(4, dtype=np.float32)})
    packed.data.flags.writeable = False
    assert not packed.arrays()["w"].flags.writeable


def test_packed_arrays_are_pickled_with_their_buffer_out_of_band():
    packed = pack_arrays({"w": np.arange(1000, dtype=np.float32)})
    buffers: list[pickle.PickleBuffer] = []
    wire = pickle.dumps(packed, protocol=5, buffer_callback=buffers.append)
    assert len(wire) < 600
    assert len(buffers) == 1
    arrived: PackedArrays = pickle.loads(wire, buffers=buffers)
    assert arrived.arrays()["w"].tolist() == list(range(1000))


def through_the_wire(message):
    """Sends a message like Ray: buffers out of band, read-only on arrival. Returns it and the sizes of its parts."""
    buffers: list[pickle.PickleBuffer] = []
    wire = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
    arrived = pickle.loads(wire, buffers=[bytes(buffer.raw()) for buffer in buffers])
    return arrived, len(wire), [len(buffer.raw()) for buffer in buffers]


@given(st.lists(st.integers(0, 5), max_size=6))
def test_ragged_arrays_are_flattened_and_split(lengths):
    rows = [np.arange(length, dtype=np.int32) for length in lengths]
    flat, counts = flatten(rows, np.int32)
    assert (flat.dtype, counts.tolist()) == (np.int32, lengths)
    assert [row.tolist() for row in split(flat, counts)] == [row.tolist() for row in rows]


def test_an_array_can_be_computed_in_place():
    given = pack_arrays({"a": np.arange(5, dtype=np.int16), "b": np.ones((2, 3))})
    made = PackedArrays.empty(given.layout)
    for name, place in made.arrays().items():
        np.add(given.arrays()[name], 1, out=place)
    assert made.index == given.index
    assert made.arrays()["a"].tolist() == [1, 2, 3, 4, 5]
    assert (made.arrays()["b"] == 2).all()


def test_a_request_is_sent_as_one_buffer_and_arrives_read_only():
    prompts = [np.arange(length, dtype=np.int32) for length in range(1, 200)]
    seeds = np.arange(199 * 8, dtype=np.uint64).reshape(199, 8)
    request = GenerateRequest(prompts, seeds, 64, (1, 2), 3, temperature=0.5, top_p=0.9, greedy=True, media=[("ab",)])
    arrived, in_band, buffers = through_the_wire(request)
    assert len(buffers) == 1 and in_band < 1000
    assert [prompt.tolist() for prompt in arrived.prompts] == [prompt.tolist() for prompt in prompts]
    assert arrived.prompts[0].dtype == np.int32 and (arrived.seeds == seeds).all()
    others = {field.name for field in fields(GenerateRequest)} - {"prompts", "seeds"}
    assert all(getattr(arrived, name) == getattr(request, name) for name in others)
    with pytest.raises(ValueError, match="read-only"):
        arrived.prompts[3][0] = 1
    with pytest.raises(ValueError, match="read-only"):
        arrived.seeds[0, 0] = 1


def test_limits_and_question_lengths_are_sent_in_the_buffer():
    prompts = [np.arange(7, dtype=np.int32)] * 400
    seeds = np.zeros((400, 1), np.uint64)
    limits = np.arange(400, dtype=np.int32)
    questions = np.full(400, 5, np.int32)
    request = GenerateRequest(prompts, seeds, 400, (1,), 3, limits=limits, question_lengths=questions)
    arrived, in_band, buffers = through_the_wire(request)
    assert len(buffers) == 1 and in_band < 1000
    assert same(arrived.limits, limits) and same(arrived.question_lengths, questions)


def test_an_answer_is_sent_as_one_buffer_and_arrives_read_only():
    lengths = np.full(500, 20, np.int32)
    tokens = np.arange(10_000, dtype=np.int32)
    log_probs = np.linspace(-1, 0, 10_000, dtype=np.float32)
    support = support_fields(Support(np.arange(20_000, dtype=np.int32), np.full(10_000, 2, np.int32)))
    result = GenerateResult(tokens, log_probs, lengths, np.zeros(500, np.int8), 7, 1.5, **support)
    piece, in_band, buffers = through_the_wire(GeneratePiece((4, 9), result))
    assert len(buffers) == 1 and in_band < 1000
    assert (piece.rows, piece.result.weight_version, piece.result.seconds) == ((4, 9), 7, 1.5)
    for name in ("tokens", "log_probs", "lengths", "finish", "support_tokens", "support_sizes"):
        assert same(getattr(piece.result, name), getattr(result, name))
        assert not getattr(piece.result, name).flags.writeable


def test_an_empty_request_can_be_sent():
    arrived, _, _ = through_the_wire(GenerateRequest([], np.zeros((0, 4), np.uint64), 8, (), 0))
    assert (len(arrived.prompts), arrived.seeds.shape) == (0, (0, 4))
