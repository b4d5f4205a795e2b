"""Series reduced by the database: correct along rollbacks and forks, in a few buckets that stay as the series grows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from db.core.engine import Fence
from db.core.errors import RunNotFound
from db.ledger import Ledger
from db.read.series import Bucket, bucket_width
from db.write.metrics import TIMING, Metric
from db.write.runs import Parent
from tests.db.tools import commit_of, holder


def commit(ledger: Ledger, fence: Fence, first: int, last: int, branch: int = 0, offset: float = 0.0) -> None:
    for step in range(first, last + 1):
        metrics = [Metric("reward", offset + step * 7 % 5), Metric("seconds", 1.0, TIMING)]
        ledger.commits.commit(fence, commit_of(step, branch, metrics))


def expected_buckets(points: list[tuple[int, float]], width: int) -> list[Bucket]:
    buckets = []
    for _, group in itertools.groupby(points, key=lambda point: point[0] // width):
        steps, values = zip(*group, strict=True)
        buckets.append(Bucket(steps[0], steps[-1], len(steps), min(values), max(values), sum(values) / len(values)))
    return buckets


@pytest.mark.postgresql
def test_buckets_are_correct_along_a_rollback_and_a_fork(ledger: Ledger, run: str, fence: Fence) -> None:
    commit(ledger, fence, 0, 20)
    branch = ledger.runs.start_branch(fence, 9, "back")
    commit(ledger, fence, 10, 15, branch, offset=100.0)
    fork = ledger.runs.create("toy", {}, "d", 100, parent=Parent(run, branch, 12)).id
    forks = ledger.leases.acquire(fork, holder("fork"), 10)
    commit(ledger, forks, 13, 18, 0, offset=1000.0)
    for name in (run, fork):
        points = ledger.metrics.history(name, "reward")
        for buckets in (1, 2, 3, 5, 100):
            (found,) = ledger.series.reduced(name, ["reward"], buckets)
            assert found.width == bucket_width(0, points[-1][0], buckets)
            assert list(found.buckets) == [
                Bucket(b.first, b.last, b.count, b.low, b.high, pytest.approx(b.mean))
                for b in expected_buckets(points, found.width)
            ]
        (part,) = ledger.series.reduced(name, ["reward"], 2, first=8, last=11)
        assert sum(bucket.count for bucket in part.buckets) == 4
        assert (part.buckets[0].first, part.buckets[-1].last) == (8, 11)
    assert [key.key for key in ledger.series.keys(fork)] == ["reward", "seconds"]


@pytest.mark.postgresql
def test_unknown_series_are_empty_and_unknown_runs_are_errors(ledger: Ledger, run: str, fence: Fence) -> None:
    commit(ledger, fence, 0, 3)
    seconds, nothing = ledger.series.reduced(run, ["seconds", "'; DROP TABLE run; --"], 2)
    assert (seconds.metric_class, [bucket.count for bucket in seconds.buckets]) == ("timing", [2, 2])
    assert (nothing.metric_class, nothing.buckets) == ("", ())
    assert ledger.series.reduced(run, [], 5) == ()
    with pytest.raises(RunNotFound):
        ledger.series.reduced("none", ["reward"], 5)
    with pytest.raises(RunNotFound):
        ledger.series.keys("none")


def test_a_growing_series_keeps_its_buckets(ledger: Ledger, run: str, fence: Fence) -> None:
    commit(ledger, fence, 0, 40)
    (before,) = ledger.series.reduced(run, ["reward"], 16)
    commit(ledger, fence, 41, 50)
    (after,) = ledger.series.reduced(run, ["reward"], 16)
    assert before.width == after.width
    assert after.buckets[: len(before.buckets) - 1] == before.buckets[:-1]


@given(first=st.integers(0, 10**6), steps=st.integers(1, 10**6), buckets=st.integers(1, 2000))
def test_buckets_are_no_more_than_requested_and_no_wider_than_needed(first: int, steps: int, buckets: int) -> None:
    last = first + steps - 1
    width = bucket_width(first, last, buckets)
    assert width & (width - 1) == 0
    assert last // width - first // width + 1 <= buckets + 1
    assert width == 1 or steps > buckets * width / 2
