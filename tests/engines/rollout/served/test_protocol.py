"""What two processes with libraries of their own say to each other arrives as it was, and nothing else is let in."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays, scalar_dtypes

from yatt_core.digests import json_digest
from yatt_core.engines.rollout.served.protocol import RECORDS, VERSION, Answer, Call, Opening, frame_of, value_of
from yatt_core.engines.rollout.served.responses import Response, Step
from yatt_core.engines.rollout.served.shared_bucket import SharedBucket
from yatt_core.engines.rollout.served.span import Span
from yatt_core.errors import InfrastructureError, NumericError
from yatt_core.protocols.generation import GenerateRequest
from yatt_core.wire.buckets import buckets_of
from yatt_core.wire.support import Support

FORMAT = "390e"
"""Begins the digest of the names and types of all records' fields, in version 4."""
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner).map(tuple) | st.dictionaries(st.text() | st.integers(), inner),
)


def plain(text: bytes) -> bytes:
    """Returns a frame of a text that nobody has made."""
    return len(text).to_bytes(8, "little") + text


@given(PLAIN)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    assert value_of(frame_of(value)) == value


@given(st.lists(arrays(scalar_dtypes(), array_shapes(min_dims=0, min_side=0))))
def test_arrays_keep_their_types_shapes_and_bits(sent: list[Any]) -> None:
    found = value_of(frame_of(sent))
    assert [(each.dtype, each.shape, each.tobytes()) for each in found] == [
        (each.dtype, each.shape, each.tobytes()) for each in sent
    ]


def test_requests_and_responses_arrive_as_they_were() -> None:
    request = GenerateRequest([np.arange(3, dtype=np.int32)], np.array([[2**63 + 1]], np.uint64), 4, (1,), 7)
    response = Response(
        tokens=np.arange(2, dtype=np.int32),
        log_probs=np.array([-0.1, -3e-30], np.float32),
        finish=1,
        versions=np.full(2, 7, np.int32),
        support=Support(np.arange(3, dtype=np.int32), np.array([1, 2], np.int32)),
    )
    step = Step((("0.1", response), ("0.2", NumericError("not finite"))), 1, 2, 0.5)
    found_request, found = value_of(frame_of((request, Answer(step))))
    assert found_request.prompts[0].tolist() == [0, 1, 2] and int(found_request.seeds[0, 0]) == 2**63 + 1
    assert (found_request.stop_tokens, found_request.limits, found_request.media) == ((1,), None, ())
    (name, own), (_, error) = found.value.ended
    assert (name, own.log_probs.tobytes(), own.support.sizes.tolist()) == ("0.1", response.log_probs.tobytes(), [1, 2])
    assert isinstance(error, NumericError) and str(error) == "not finite"


def test_a_bucket_s_description_keeps_its_places() -> None:
    (bucket,) = buckets_of({"a": np.ones((3, 4), np.float32)}.items())
    sent = Call("take", (SharedBucket(bucket, bucket.nbytes, "/proc/1/fd/2", 64),))
    (found,) = value_of(frame_of(sent)).arguments
    assert (found.frame.places, found.frame.digest, found.offset) == (bucket.places, bucket.digest, 64)
    found.frame.require_intact()


def test_an_opening_keeps_its_settings_and_nodes(tmp_path: Path) -> None:
    sent = Opening("models/a", {"dtype": "float32", "kv_cache_memory_bytes": None}, 9, span=Span(2, 1, "h", 4, "o"))
    assert value_of(frame_of(sent)) == sent
    assert value_of(frame_of(tmp_path)) == str(tmp_path)


def test_what_the_protocol_does_not_know_is_not_sent() -> None:
    for value in (object(), b"ab", bytearray(2), range(3), {1, 2}):
        with pytest.raises(TypeError, match=f"knows no {type(value).__name__}"):
            frame_of({"a": value})


def test_a_number_of_numpy_arrives_as_a_number() -> None:
    assert value_of(frame_of((np.int64(2**40), np.float32(0.5), np.bool_(True)))) == (2**40, 0.5, True)


def test_arrays_are_aligned() -> None:
    for text in ("", "a", "ab" * 40):
        _, one, other = value_of(frame_of((text, np.arange(3, dtype=np.uint64), np.arange(5.0))))
        assert one.flags.aligned and other.flags.aligned


def test_a_kind_of_error_that_is_not_listed_arrives_as_the_one_above_it() -> None:
    class TooOddError(NumericError):
        """Known to one side only."""

    found = value_of(frame_of(TooOddError("odd")))
    assert type(found) is NumericError and str(found) == "odd"


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\x02" + bytes(7) + b"{x",
        b"\x02" + bytes(7) + b"{}",
        frame_of(Span(2, 1, "h", 4, "o")).replace(b"Span", b"Path"),
        frame_of(Span(2, 1, "h", 4, "o")).replace(b"nodes", b"modes"),
        frame_of(np.arange(9))[:-8],
        frame_of(np.arange(9)).replace(b"<i8", b"|O8"),
        frame_of(np.arange(9)).replace(b"[9]", b"[-]").replace(b"[-]", b"-9 "),
        frame_of(np.arange(99)).replace(b"[99]", b"[-1]"),
        plain(b'{"record": "Span", "fields": []}'),
        plain(b"[" * 100_000),
    ],
    ids=[
        "nothing",
        "no JSON",
        "no kind",
        "unknown record",
        "unknown field",
        "too short",
        "objects",
        "no shape",
        "negative shape",
        "no fields",
        "too deep",
    ],
)
def test_other_bytes_are_an_error(frame: bytes) -> None:
    with pytest.raises(InfrastructureError, match=f"no frame of protocol {VERSION}"):
        value_of(frame)


def test_the_version_changes_with_the_records() -> None:
    """Whoever changes a record raises `protocol.VERSION`, and then these two lines."""
    format_of = {name: [[each.name, str(each.type)] for each in fields(record)] for name, record in RECORDS.items()}
    assert VERSION == 4
    assert json_digest(format_of)[: len(FORMAT)] == FORMAT
