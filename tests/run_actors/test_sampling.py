"""An iteration's shards divided over samplers: all in order, few samplers or many, and what a lost one leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from yatt_core.errors import LostActorError
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import SampleTask, ShardRef
from yatt_core.run_actors.sampling import sample

TASK = SampleTask(WorkKey("run", 0, 1, "collect"), term=1, number=0, version=0)


def answered(call: Callable[..., Any], *given: Any) -> Future[Any]:
    """Returns the reference of a call that is over."""
    future: Future[Any] = Future()
    try:
        future.set_result(call(*given))
    except LostActorError as error:
        future.set_exception(error)
    return future


class FakeSampler:
    """A sampler's handle.

    sealed: the shards in the run's folder, which all samplers share.
    drawn: the shards that this one has drawn.
    lost_after: the number of shards after which it dies; None if it lives.
    """

    def __init__(self, count: int, sealed: set[int], lost_after: int | None = None) -> None:
        self._count = count
        self._sealed = sealed
        self.drawn: list[int] = []
        self.asked: list[list[int]] = []
        self._lost_after = lost_after
        self.count_shards = SimpleNamespace(remote=lambda task: answered(lambda: self._count))
        self.sample = SimpleNamespace(remote=lambda term, tasks: answered(self._draw, tasks))

    def _draw(self, tasks: Sequence[SampleTask]) -> tuple[ShardRef, ...]:
        self.asked.append([task.key.shard for task in tasks])
        for task in tasks:
            if task.key.shard in self._sealed:
                continue
            if self._lost_after == len(self.drawn):
                raise LostActorError("it was killed")
            self._sealed.add(task.key.shard)
            self.drawn.append(task.key.shard)
        return tuple(ShardRef(f"shard {task.key.shard}", "") for task in tasks)


class FakeCalls:
    """The driver's calls to some samplers."""

    def __init__(self, *samplers: FakeSampler) -> None:
        self._names = [f"rollout-{number}" for number in range(len(samplers))]
        self.registry = SimpleNamespace(of=lambda role: list(samplers), names_of=lambda role: self._names)
        self.awaited: list[list[str]] = []

    def get(self, references: list[Future[Any]], what: str, awaited: list[str]) -> list[Any]:
        self.awaited.append(awaited)
        return [reference.result() for reference in references]

    def get_from_group(self, asked: dict[Future[Any], str], what: str) -> list[Any]:
        return self.get(list(asked), what, list(asked.values()))


def sampled(*samplers: FakeSampler) -> tuple[list[str], FakeCalls]:
    """Returns the shards' folders in the order of the answer."""
    calls: Any = FakeCalls(*samplers)
    return [shard.folder for shard in sample(calls, TASK)], calls


@pytest.mark.parametrize(("samplers", "count"), [(1, 5), (2, 5), (3, 3), (4, 2), (2, 1)])
def test_all_shards_come_back_in_order_each_drawn_once(samplers: int, count: int) -> None:
    sealed: set[int] = set()
    handles = [FakeSampler(count, sealed) for _ in range(samplers)]
    found, calls = sampled(*handles)
    assert found == [f"shard {number}" for number in range(count)]
    assert sorted(number for handle in handles for number in handle.drawn) == list(range(count))
    shares = [len(handle.drawn) for handle in handles]
    assert max(shares) - min(shares) <= 1
    assert [len(handle.asked) for handle in handles] == [min(1, share) for share in shares], (
        "nobody is asked for nothing"
    )
    assert calls.awaited == [["rollout-0"], [f"rollout-{number}" for number in range(min(samplers, count))]]


def test_what_was_sealed_before_a_sampler_was_lost_is_not_drawn_again() -> None:
    sealed: set[int] = set()
    with pytest.raises(LostActorError, match="it was killed"):
        sampled(FakeSampler(5, sealed), FakeSampler(5, sealed, lost_after=1))
    assert sealed == {0, 1, 2, 4}
    alone = FakeSampler(5, sealed)
    found, _ = sampled(alone)
    assert found == [f"shard {number}" for number in range(5)]
    assert alone.drawn == [3]
