"""Weights that arrive in buckets: complete, once and in order; otherwise the engine has none."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
import torch

from tests.engines.rollout.cases import Case, prompts_of, request_of, rows_of
from yatt_core.engines.rollout.own_tensors import OwnTensors
from yatt_core.errors import InfrastructureError
from yatt_core.wire.buckets import WeightBucket, buckets_of
from yatt_core.wire.number_types import Array
from yatt_core.wire.parts import Rectangle, whole_box

SMALL = 6000
"""Bytes per bucket, so small that the models' larger matrices arrive in pieces."""


def cut(case: Case, version: int) -> list[WeightBucket]:
    most = 16 if case.name == "virtual" else SMALL
    buckets = list(buckets_of(case.weights(version).items(), most))
    assert len(buckets) > 1
    return buckets


def test_buckets_of_any_size_give_the_same_weights(case: Case) -> None:
    request = request_of(prompts_of([5, 19]), samples=4, weight_version=1)
    case.engine.update_weights(case.weights(1), 1)
    at_once = rows_of(case.engine.generate(request))
    case.engine.update_weights(case.weights(0), 0)
    case.engine.begin_update(1)
    for bucket in cut(case, 1):
        case.engine.take(bucket)
    case.engine.end_update()
    assert case.engine.version == 1
    assert rows_of(case.engine.generate(request)) == at_once


def test_an_interrupted_update_leaves_the_engine_dirty_until_the_next_sync(case: Case) -> None:
    """From the first bucket on, an interrupted update cannot be resumed."""
    request = request_of(prompts_of([5, 19]), samples=4)
    before = rows_of(case.engine.generate(request))
    for taken in (0, 1, len(cut(case, 1)) - 1):
        case.engine.begin_update(1)
        assert case.engine.version == -1
        for bucket in cut(case, 1)[:taken]:
            case.engine.take(bucket)
            assert case.engine.version == -1
        for version in (0, 1):
            with pytest.raises(InfrastructureError, match="version -1"):
                case.engine.generate(request_of(prompts_of([5]), weight_version=version))
        case.engine.update_weights(case.weights(0), 0)
        assert rows_of(case.engine.generate(request)) == before


def test_an_update_ends_only_once_every_bucket_has_arrived(case: Case) -> None:
    buckets = cut(case, 1)
    wrong = [buckets[:-1], buckets[1:], [buckets[0], *buckets], [*buckets, buckets[-1]], [*reversed(buckets)], []]
    for sent in wrong:
        case.engine.begin_update(1)
        with pytest.raises(InfrastructureError):
            for bucket in sent:
                case.engine.take(bucket)
            case.engine.end_update()
        assert case.engine.version == -1
        for late in (lambda: case.engine.take(buckets[0]), case.engine.end_update):
            with pytest.raises(InfrastructureError, match=r"\bsync\b"):
                late()
    case.engine.update_weights(case.weights(0), 0)


def test_a_repeated_tensor_is_refused(case: Case) -> None:
    weights = list(case.weights(1).items())

    def twice() -> Iterable[tuple[str, Array]]:
        yield from [*weights, weights[0]]

    case.engine.begin_update(1)
    with pytest.raises(InfrastructureError, match=rf"{weights[0][0]} .*\btwice\b"):
        for bucket in buckets_of(twice(), SMALL):
            case.engine.take(bucket)
    assert case.engine.version == -1


def test_a_damaged_bucket_is_refused_before_anything_of_it_is_used(case: Case) -> None:
    case.engine.begin_update(1)
    bucket = cut(case, 1)[0]
    bucket.data[-1] ^= 1
    held = repr(getattr(case.engine, "_tensors", None))
    with pytest.raises(InfrastructureError, match=r"bucket 0 .*digest"):
        case.engine.take(bucket)
    assert (case.engine.version, repr(getattr(case.engine, "_tensors", None))) == (-1, held)
    case.engine.update_weights(case.weights(0), 0)


def test_a_bucket_may_be_reused_once_it_is_taken(case: Case) -> None:
    """The engine keeps no view of a bucket's memory."""
    request = request_of(prompts_of([5, 19]), samples=4, weight_version=1)
    case.engine.update_weights(case.weights(1), 1)
    expected = rows_of(case.engine.generate(request))
    case.engine.begin_update(1)
    for bucket in cut(case, 1):
        case.engine.take(bucket)
        bucket.data[:] = np.uint8(0xFF)
    case.engine.end_update()
    assert rows_of(case.engine.generate(request)) == expected


class Sleeper(OwnTensors):
    """An engine that has only weights."""

    def _complete(self, version: int) -> None:
        """Has nothing to activate."""


def test_a_sleeping_engine_sleeps_again_after_a_comparison_that_fails() -> None:
    sleeper = Sleeper({"own": torch.zeros(4)}, {})
    sleeper.sleep()
    rectangles = [Rectangle(name, (4,), whole_box((4,)), "float32") for name in ("own", "other")]
    with pytest.raises(InfrastructureError, match="no tensor other"):
        sleeper.rectangle_digests(rectangles)
    assert sleeper._away is not None
