"""The queue before an exporter: adding never waits and never fails, and the end takes bounded time."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest

from yatt_core.tracing.export import BATCH, BoundedExport


def test_what_is_added_is_sent_in_order_and_in_batches() -> None:
    batches: list[list[int]] = []

    def send(batch: Sequence[int]) -> bool:
        batches.append(list(batch))
        return True

    queue = BoundedExport[int]("numbers", send)
    for number in range(BATCH + 10):
        queue.add(number)
    assert queue.end(30.0) == 0
    assert [number for batch in batches for number in batch] == list(range(BATCH + 10))
    assert max(map(len, batches)) <= BATCH


def test_a_stuck_exporter_makes_nobody_wait_and_the_rest_is_counted() -> None:
    begun = threading.Event()
    free = threading.Event()

    def send(batch: Sequence[int]) -> bool:
        begun.set()
        return free.wait(60.0)

    queue = BoundedExport[int]("numbers", send, capacity=BATCH)
    for number in range(BATCH):
        queue.add(number)
    assert begun.wait(30.0)
    for number in range(2 * BATCH):
        queue.add(number)  # returns at once, although nothing can be sent
    assert queue.dropped == BATCH
    assert queue.end(0.0) == 2 * BATCH
    free.set()


@pytest.mark.parametrize("failure", [None, OSError("away"), ValueError("bad")])
def test_an_exporter_that_fails_is_not_asked_again_at_the_end(failure: Exception | None) -> None:
    asked: list[int] = []

    def send(batch: Sequence[int]) -> bool:
        asked.append(len(batch))
        if failure is not None:
            raise failure
        return False

    queue = BoundedExport[int]("numbers", send)
    for number in range(BATCH - 1):
        queue.add(number)
    assert queue.end(30.0) == BATCH - 1
    assert asked == [BATCH - 1]
    queue.add(1)
    assert queue.dropped == BATCH
