"""Several ranks as threads of this process, and a small task for tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks.workloads.alone import begun

SMALL = {
    "documents": 60,
    "train_queries": 80,
    "dev_queries": 20,
    "test_queries": 20,
    "steps": 3,
    "batch": 8,
    "width": 16,
    "vector_width": 16,
    "token_width": 8,
    "recall_at": 20,
}


UNREAD = {"plain": "token_width", "late": "vector_width"}
"""What a method does not read of these."""


def small_settings(**settings: Any) -> dict[str, Any]:
    """Returns the settings of the small task, without those that the method does not read."""
    unread = UNREAD.get(settings.get("method", "self"))
    return {name: value for name, value in {**SMALL, **settings}.items() if name != unread}


class Group:
    """Lets threads exchange values; all must make the same calls."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.barrier = threading.Barrier(count)
        self.given: list[Any] = [None] * count


class ThreadRank:
    """Implements `Ranks`."""

    def __init__(self, group: Group, rank: int) -> None:
        self._group = group
        self.rank = rank
        self.count = group.count

    def _all(self, value: Any) -> list[Any]:
        self._group.given[self.rank] = value
        self._group.barrier.wait()
        found = list(self._group.given)
        self._group.barrier.wait()
        return found

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        found = self._all(tensor.clone())
        tensor.zero_()
        for other in found:
            tensor += other
        return tensor

    def gathered(self, columns: Any) -> tuple[dict[str, Any], ...]:
        return tuple({name: column.copy() for name, column in found.items()} for found in self._all(dict(columns)))

    def share(self, total: int) -> range:
        return range(total * self.rank // self.count, total * (self.rank + 1) // self.count)


def on_ranks(count: int, work: Callable[[ThreadRank], Any]) -> list[Any]:
    """Returns what each rank's work returns."""
    group = Group(count)

    def guarded(rank: int) -> Any:
        try:
            return work(ThreadRank(group, rank))
        except BaseException:
            group.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(guarded, range(count)))


def small(kind: Any, folder: Path, iterations: int, **settings: Any) -> Any:
    """Returns a workload of the small task that has begun on one rank."""
    return begun(kind, folder, seed=3, iterations=iterations, **small_settings(**settings))
