"""A model that is a table with a value for each response token, and ranks that are threads.

Gradients can be compared token by token with finite differences, and the trainer's own classes run on any number of ranks
within milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any, TypeVar

import numpy as np
import torch

from yatt_core.engines.train.model.chunks import slices
from yatt_core.engines.train.model.forward import DistributionLoss, Float32, MicroBatch, Reader, TokenLoss
from yatt_core.engines.train.model.head_values import EntropyUse, Numbers
from yatt_core.engines.train.ranks.collective import REDUCE_OP, Collective

CHUNK = 3
"""Tokens that the head hands out at a time."""
T = TypeVar("T")


class Table:
    """Passes over a table with a value, and the entropy of a distribution, for each response token."""

    def __init__(self, values: np.ndarray[Any, Any], entropies: np.ndarray[Any, Any] | None = None) -> None:
        self.values = torch.from_numpy(values.astype(np.float64)).requires_grad_()
        given = np.zeros(len(values)) if entropies is None else entropies
        self.entropies = torch.from_numpy(given.astype(np.float64)).requires_grad_()

    def score(self, micro_batches: Sequence[MicroBatch]) -> list[Float32]:
        return [self.values.detach()[batch.positions].float().numpy() for batch in micro_batches]

    def read(self, micro_batches: Sequence[MicroBatch], reader: Reader) -> list[tuple[Numbers, ...]]:
        raise AssertionError("a table has no distributions")

    @property
    def vocabulary(self) -> int:
        raise AssertionError("a table has no distributions")

    def backward(
        self,
        micro_batches: Sequence[MicroBatch],
        loss: TokenLoss,
        entropy: EntropyUse = "none",
        temperature: float | None = None,
        whole: bool = False,
        taught: DistributionLoss | None = None,
    ) -> None:
        assert taught is None, "a table has no distributions"
        for batch in micro_batches:
            count = len(batch.positions)
            for chunk in slices(max(count, 1) if whole else CHUNK, count):
                part = batch.part(chunk)
                entropies = self.entropies[part.positions] if entropy != "none" else torch.zeros(0)
                loss(part, self.values[part.positions], entropies).backward()  # type: ignore[no-untyped-call]


class Gradients:
    """The optimizer of a table: keeps the gradients."""

    parameters = 0

    def __init__(self, table: Table) -> None:
        self.table = table

    def zero(self) -> None:
        for tensor in (self.table.values, self.table.entropies):
            tensor.grad = torch.zeros_like(tensor)

    def reduce(self, collective: Collective) -> None:
        for tensor in (self.table.values, self.table.entropies):
            assert tensor.grad is not None
            collective.sum(tensor.grad)

    def apply(self, learning_rate: float, loss: float) -> float:
        raise AssertionError("no step is taken here")

    def reset(self) -> None:
        raise AssertionError

    def copy(self) -> Any:
        raise AssertionError

    @contextmanager
    def exchanged(self, other: Any) -> Iterator[None]:
        own = self.table.values
        self.table.values = torch.from_numpy(other.astype(np.float64))
        yield
        self.table.values = own


class ThreadCollective(Collective):
    """One of several threads that meet at a barrier."""

    def __init__(
        self,
        rank: int,
        ranks: int,
        barrier: Barrier,
        given: list[torch.Tensor | None],
        said: list[Sequence[bytes]],
    ) -> None:
        super().__init__()
        self.rank = rank
        self.ranks = ranks
        self._barrier = barrier
        self._given = given
        self._said = said

    def exchanged(self, outgoing: Sequence[bytes]) -> list[bytes]:
        self._said[self.rank] = outgoing
        self._barrier.wait()
        received = [said[self.rank] for said in self._said]
        self._barrier.wait()
        return received

    def gathered(self, data: bytes) -> Sequence[bytes | bytearray]:
        return self.exchanged([data] * self.ranks)

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        self._given[self.rank] = tensor.clone()
        self._barrier.wait()
        all_ranks = torch.stack([one for one in self._given if one is not None])
        total = all_ranks.amax(0) if operation == REDUCE_OP.MAX else all_ranks.sum(0)
        self._barrier.wait()
        return tensor.copy_(total)


def on_threads(ranks: int, work: Callable[[ThreadCollective], T]) -> list[T]:
    """Returns what each rank of a group of threads returned."""
    barrier = Barrier(ranks)
    given = list[torch.Tensor | None]([None] * ranks)
    said = list[Sequence[bytes]]([()] * ranks)

    def one(rank: int) -> T:
        try:
            return work(ThreadCollective(rank, ranks, barrier, given, said))
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(one, range(ranks)))
