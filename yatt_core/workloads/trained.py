"""What the trainer's engine hands to a run's workload, on one rank: all that differs by `workload.kind`.

Reinforcement learning of a language model, learning from rows, and classes of the public contract (`contract.py`) implement it.
The engine keeps what all of them share: versions, receipts, calls that may be repeated. A workload prepares what an iteration
learns from and seals it, learns from it, and knows how its state is saved, read again by any number of ranks, and digested.

What a workload does not have it leaves out: `Evaluates`, `FineTunes`, `Accumulates`, `FreesMemory` and `SendsWeights`, which is
among those of engines, are protocols of their own. What a whole run has is declared by `workload_kinds.WorkloadParts`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from yatt_core.protocols.engines import FrozenState, NeededTensor
from yatt_core.protocols.receipts import BatchTask, PrepareReceipt, RowsReceipt, RowsTask, SftReceipt

Fingerprint = Mapping[str, float | str]
Changed = Callable[[], None]
"""Called when the state begins to change: until the call that changes it is complete, it has no version."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """The outcome of an update.

    fingerprint: what a replay must reproduce.
    timing: seconds and bytes, on which no result depends.
    """

    metrics: dict[str, float]
    fingerprint: dict[str, float | str]
    timing: dict[str, float]


class TrainedWorkload(Protocol):
    """A workload on one rank of the trainer. Every rank gets the same calls, in the same order."""

    @property
    def copies_alone(self) -> bool:
        """See `TrainEngine.copies_alone`."""
        ...

    def verify(self) -> None:
        """Raises `ConfigurationError` for code of the spec that is missing or, in an exact run, has changed."""
        ...

    def connect(self, rank: int, ranks: int, address: str, changed: Changed) -> None:
        """Joins the group of ranks, with the state that this rank holds."""
        ...

    def require_ready(self) -> None:
        """Raises `InfrastructureError` unless it has a state, which is on its device afterwards, and all its ranks."""
        ...

    def begin(self) -> None:
        """Makes the state before the first iteration, again if there is one."""
        ...

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Makes and seals the columns that the iteration learns from; only rank 0 returns a receipt."""
        ...

    def learn(self, task: BatchTask, prepared: PrepareReceipt, changed: Changed) -> Learnt:
        """Learns from an iteration's columns. Raises `NumericError` for a loss or a metric that is not finite."""
        ...

    def skip(self, iteration: int) -> Fingerprint:
        """Goes on to an iteration's version without learning; returns the digests of the state."""
        ...

    def weights_digest(self) -> str:
        """Returns the digest of the weights, on every rank."""
        ...

    def freeze(self, version: int) -> FrozenState:
        """Copies this rank's contribution to a checkpoint; see `TrainEngine.freeze_state`."""
        ...

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields what `load` will read of a checkpoint's tensors."""
        ...

    def load(self, folder: Path, version: int, changed: Changed) -> None:
        """Takes over the state that all ranks wrote, whatever their number. Raises `DataError` for another version."""
        ...


@runtime_checkable
class Evaluates(Protocol):
    """A workload that the trainer evaluates; answers to held-out tasks are the controllers' work."""

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Returns what held-out data say of the state; changes nothing. All ranks return the same."""
        ...


@runtime_checkable
class FineTunes(Protocol):
    """A workload that may learn from demonstrations before its first iteration."""

    def fine_tune(self, changed: Changed) -> SftReceipt | None:
        """Learns, and resets what counts steps; None, with the state unchanged, if the spec asks for nothing."""
        ...


@runtime_checkable
class Accumulates(Protocol):
    """A workload that may learn from parts of an iteration while the rest is sampled."""

    def accumulate(self, task: BatchTask) -> float:
        """See `TrainEngine.accumulate`."""
        ...


@runtime_checkable
class FreesMemory(Protocol):
    """A workload that gives a device's memory to other roles between two calls."""

    def offload(self) -> None:
        """See `TrainEngine.offload`."""
        ...

    def reload(self) -> None:
        """See `TrainEngine.reload`."""
        ...
