"""Digests: equal to those of an independent computation, and dependent on contents only."""

from __future__ import annotations

import hashlib
import math
import struct

import numpy as np
import pytest

from yatt_core.digests import (
    READ_BYTES,
    canonical_json,
    chain_digest,
    experience_digest_of_iteration,
    file_sha256,
    json_digest,
    weights_digest,
)

TENSORS = {
    "b.weight": np.array([[1.0, -2.0], [0.5, 3.0]], dtype=np.float32),
    "a.bias": np.array([7, -1, 2**40], dtype=np.int64),
    "scale": np.array(0.25, dtype=np.float64),
    "empty": np.zeros((0, 3), dtype=np.float16),
    "mask": np.array([True, False]),
}
PINNED = "1723de0225e4b1387c228b02aba8b443e90414024f8dc6a72a60b8cb7961703b"


def by_hand() -> str:
    return hashlib.sha256(
        b"a.bias|int64|3|"
        + struct.pack("<3q", 7, -1, 2**40)
        + b"b.weight|float32|2,2|"
        + struct.pack("<4f", 1.0, -2.0, 0.5, 3.0)
        + b"empty|float16|0,3|"
        + b"mask|bool|2|\x01\x00"
        + b"scale|float64||"
        + struct.pack("<d", 0.25)
    ).hexdigest()


def test_the_digest_of_weights_matches_an_independent_computation():
    assert weights_digest(TENSORS) == by_hand() == PINNED
    assert weights_digest({}) == hashlib.sha256(b"").hexdigest()


def test_order_byte_order_and_layout_do_not_matter():
    digest = weights_digest(TENSORS)
    assert weights_digest(dict(reversed(TENSORS.items()))) == digest
    big_endian = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in TENSORS.items()}
    assert weights_digest(big_endian) == digest
    fortran = {name: np.array(array, order="F") for name, array in TENSORS.items()}
    assert not fortran["b.weight"].flags.c_contiguous
    assert weights_digest(fortran) == digest
    strided = TENSORS | {"a.bias": np.repeat(TENSORS["a.bias"], 2)[::2]}
    assert weights_digest(strided) == digest


def test_name_type_shape_and_every_bit_matter():
    weight = TENSORS["b.weight"]
    negative_zero = weight.copy()
    negative_zero[0, 0] = -0.0
    zero = weight.copy()
    zero[0, 0] = 0.0
    others = [
        {"c.weight": weight},
        {"b.weight": weight.T},
        {"b.weight": weight.reshape(4)},
        {"b.weight": weight.reshape(1, 4)},
        {"b.weight": weight.view(np.int32)},
        {"b.weight": weight.astype(np.float64)},
        {"b.weight": np.nextafter(weight, np.float32(9))},
        {"b.weight": zero},
        {"b.weight": negative_zero},
        {"b.weight": weight, "head": weight},
    ]
    digests = {weights_digest(other) for other in [{"b.weight": weight}, *others]}
    assert len(digests) == len(others) + 1


def test_nan_has_a_digest():
    assert weights_digest({"w": np.array([math.nan])}) != weights_digest({"w": np.array([0.0])})


def test_canonical_json():
    assert canonical_json({"b": [1, 2.5, None, True], "a": {"é": "x"}}) == '{"a":{"é":"x"},"b":[1,2.5,null,true]}'
    assert json_digest({"a": 1, "b": 2}) == json_digest({"b": 2, "a": 1})
    assert json_digest({"a": 1}) == hashlib.sha256(b'{"a":1}').hexdigest()
    assert json_digest({"a": 1}) != json_digest({"a": 1.0}) != json_digest({"a": "1.0"})
    assert json_digest([1, 2]) != json_digest([2, 1])
    assert canonical_json(0.1) == "0.1"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_values_without_a_canonical_form_are_refused(value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"a": [value]})


@pytest.mark.parametrize("size", [0, 1, READ_BYTES - 1, READ_BYTES, 2 * READ_BYTES + 1])
def test_the_digest_of_a_file(tmp_path, size):
    data = bytes(range(256)) * (size // 256 + 1)
    path = tmp_path / "file"
    path.write_bytes(data[:size])
    assert file_sha256(path) == hashlib.sha256(data[:size]).hexdigest()


def test_chains():
    groups = bytes(range(64))
    assert experience_digest_of_iteration(groups) == hashlib.sha256(groups).hexdigest()
    assert chain_digest([]) == hashlib.sha256(b"").hexdigest()
    assert chain_digest(["aa", "bb"]) == hashlib.sha256(b"aabb").hexdigest()
    assert chain_digest(["aa", "bb"]) != chain_digest(["bb", "aa"])
