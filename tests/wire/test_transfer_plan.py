"""The plan of a transfer: each number in one bucket, buckets within their limit, tensors soon complete."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yatt_core.wire.parts import Box, whole_box
from yatt_core.wire.transfer_plan import (
    Rectangle,
    decode_rectangles,
    encode_rectangles,
    merged_order,
    plan_transfer,
)


def rows(name: str, total: int, first: int, last: int, width: int = 8) -> Rectangle:
    return Rectangle(name, (total, width), Box((first, 0), (last - first, width)), "bfloat16")


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 4), st.sampled_from([16, 100, 1000, 10**6])
)
def test_every_number_is_planned_once_within_the_limit(heights: list[int], ranks: int, most: int) -> None:
    cuts = [[height * rank // ranks for rank in range(ranks + 1)] for height in heights]
    sources = [
        [
            rows(f"t{n}", height, *cuts[n][rank : rank + 2])
            for n, height in enumerate(heights)
            if cuts[n][rank] < cuts[n][rank + 1]
        ]
        for rank in range(ranks)
    ]
    assert [decode_rectangles(encode_rectangles(each)) for each in sources] == sources
    plan = plan_transfer(sources, most, 10**6)
    assert [bucket.number for bucket in plan] == list(range(len(plan)))
    assert [bucket.last for bucket in plan] == [False] * (len(plan) - 1) + [True]
    assert all(bucket.nbytes <= most for bucket in plan)
    assert len({(place.name, place.box) for bucket in plan for place in bucket.places}) == sum(
        len(b.places) for b in plan
    )
    counts = [
        sum(place.count for b in plan for place in b.places if place.name == f"t{n}") for n in range(len(heights))
    ]
    assert counts == [8 * height for height in heights]
    for rank, source in enumerate(sources):
        sent = dict.fromkeys(place.name for bucket in plan if bucket.source == rank for place in bucket.places)
        assert list(sent) == [rectangle.name for rectangle in source], "a rank passes over its tensors once"


def test_parts_of_one_tensor_travel_together() -> None:
    """Otherwise an engine that needs whole tensors would hold the parts of many."""
    sources = [[rows(f"t{n}", 64, 32 * rank, 32 * rank + 32) for n in range(10)] for rank in range(2)]
    plan = plan_transfer(sources, 2100, 2100)
    seen: dict[str, list[int]] = {}
    for bucket in plan:
        for place in bucket.places:
            seen.setdefault(place.name, []).append(bucket.number)
    assert all(max(numbers) - min(numbers) <= 1 for numbers in seen.values())


def test_orders_are_merged_and_contradictions_named() -> None:
    assert merged_order([["a", "b", "d"], ["b", "c", "d"]]) == ["a", "b", "c", "d"]
    assert merged_order([["a1", "a2"], ["b1", "b2"]]) == ["a1", "b1", "a2", "b2"], "stages are interleaved"
    with pytest.raises(ValueError, match=r"\bx\b"):
        merged_order([["w", "x", "y"], ["w", "y", "x"]])


def test_without_numbers_there_is_one_bucket() -> None:
    for sources in ([[]], [[Rectangle("empty", (0, 4), whole_box((0, 4)), "float32")]]):
        (bucket,) = plan_transfer(sources, 64, 64)
        assert bucket.last and not bucket.nbytes
