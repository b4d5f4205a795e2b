"""Spilling of the object store is measured; payload arrives memory-mapped, not copied."""

from __future__ import annotations

import numpy as np
import pytest
import ray

from yatt_core.cluster.object_store import SpillMeter, spilled_bytes
from yatt_core.cluster.ray_head import DEFAULT_OBJECT_STORE_BYTES
from yatt_core.protocols.generation import GeneratePiece, GenerateResult
from yatt_core.wire.packed import pack_arrays


def test_growth_is_computed_from_totals():
    meter = SpillMeter()
    assert [meter.growth(total) for total in (50, 50, 80, None, 90, 20, 25)] == [0, 0, 30, 0, 10, 0, 5]


@pytest.mark.usefixtures("connected")
def test_spilled_bytes_are_measured():
    before = spilled_bytes()
    assert before is not None
    part = np.zeros(DEFAULT_OBJECT_STORE_BYTES // 3, np.uint8)
    held = [ray.put(part) for _ in range(4)]
    after = spilled_bytes()
    assert after is not None and after - before >= part.nbytes
    assert len(held) == 4


@ray.remote(num_cpus=0)
class Engine:
    def answer(self, weights, rows):
        """Returns whether the weights arrived as a read-only mapping, and an answer of `rows` tokens."""
        tokens = np.arange(rows, dtype=np.int32)
        result = GenerateResult(tokens, -tokens.astype(np.float32), tokens[:1], np.zeros(1, np.int8), 1, 0.0)
        return not weights.data.flags.writeable and not weights.data.flags.owndata, GeneratePiece((0,), result)


@pytest.mark.usefixtures("connected")
def test_weights_and_answers_are_mapped_read_only():
    engine = Engine.remote()
    weights = ray.put(pack_arrays({"w": np.ones(1_000_000, np.float32)}))
    mapped, piece = ray.get(engine.answer.remote(weights, 1_000_000))
    assert mapped
    assert piece.result.tokens[-1] == 999_999
    with pytest.raises(ValueError, match="read-only"):
        piece.result.tokens[0] = 1
    tokens = piece.result.tokens
    log_probs = piece.result.log_probs
    assert log_probs.ctypes.data - tokens.ctypes.data == tokens.nbytes, "both are views of the one mapped buffer"
    ray.kill(engine)
