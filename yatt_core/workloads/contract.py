"""The contract of a training of your own: what a class provides so that YATT runs it as it runs a language model.

A workload names its inputs, what an iteration learns from, one update, one evaluation and its state. YATT calls it on every
rank of the trainer, in the same order on each, and provides the rest: durable phases, leases, checkpoints, exact resume,
guards, metrics, queue and dashboards. A run killed anywhere ends with the same bits as an undisturbed one if all that a
workload computes is a function of its settings, its inputs, the run's seed, its state, and what it is given.

The class is called with `RunFacts`. It raises `ValueError` for settings that it cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from yatt_core import progress
from yatt_core.keys import stable_seed

if TYPE_CHECKING:
    import torch

Array = npt.NDArray[Any]
Columns = Mapping[str, Array]
"""What an iteration learns from: arrays by name, of booleans, integers or floating-point numbers."""
Metrics = Mapping[str, float]


def advanced(words: str = "") -> None:
    """Says that a piece of a long call is finished: the deadline of a phase counts from the latest piece of any rank.

    The sums and exchanges of `Ranks` say so too. It changes no result.

    words: how far the call has come, for people.
    """
    progress.advanced(words)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a workload knows of its run.

    settings: `workload.settings` of the spec.
    iterations: the number of iterations of the whole run, for schedules.
    device: the rank's device, as torch names it: `cpu`, or `cuda:0`.
    """

    seed: int
    settings: Mapping[str, Any]
    iterations: int
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class Draw:
    """An iteration's turn to draw.

    number: counts all draws of the run. A rollback goes back to an earlier iteration, but to no earlier number, so that what
        led to it is not drawn again: what is drawn depends on the number, what is scheduled on the iteration.
    """

    seed: int
    iteration: int
    number: int

    def seed_of(self, purpose: str, *parts: int) -> int:
        """Returns a seed of 64 bits for a purpose, such as `negatives` or `noise`, and numbers, such as an image and a step."""
        return stable_seed(f"workload.{purpose}", self.seed, self.number, *parts)

    def generator(self, purpose: str, *parts: int) -> np.random.Generator:
        """Returns numpy's generator with the seed of a purpose."""
        return np.random.default_rng(self.seed_of(purpose, *parts))


class Ranks(Protocol):
    """The ranks that train together. All must make the same calls in the same order.

    rank: this one's number, from 0.
    count: their number; with 1, no call needs a network.
    """

    @property
    def rank(self) -> int: ...
    @property
    def count(self) -> int: ...
    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over the ranks, in place, with the same bits on every rank. Returns it."""
        ...

    def gathered(self, columns: Columns) -> tuple[dict[str, Array], ...]:
        """Returns the arrays of every rank, in the order of the ranks, on every rank."""
        ...

    def share(self, total: int) -> range:
        """Returns this rank's part of `total` rows: ranges of almost equal length, in the order of the ranks."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Some rows of a tensor that is divided over the ranks.

    values: this rank's rows, [rows, ...].
    start: the number of their first row in the whole tensor.
    total: the number of rows of the whole tensor.
    """

    values: torch.Tensor
    start: int
    total: int


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """The state of a workload between two iterations: all that its next update depends on. Tensors are not copied.

    A tensor is the same on every rank, unless it is `Rows`. No type is narrower than what the update computes with, and none is
    bfloat16.

    weights: what a version's digest is computed from, by name.
    others: further tensors, such as an optimizer's moments.
    facts: values that JSON can hold, such as counters; the same on every rank.
    """

    weights: Mapping[str, torch.Tensor | Rows]
    others: Mapping[str, torch.Tensor | Rows] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


class SavedTensors(Protocol):
    """Tensors of a checkpoint by name; whichever ranks have written them, any rows can be read."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...
    def whole(self, name: str) -> torch.Tensor:
        """Reads a tensor. Raises `DataError` if there is none of this name."""
        ...

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """Reads rows of a tensor. Raises `DataError` if there is none of this name."""
        ...


@dataclass(frozen=True, slots=True)
class SavedState:
    """A state in a checkpoint, as `State` describes it."""

    weights: SavedTensors
    others: SavedTensors
    facts: Mapping[str, Any]


class Workload(Protocol):
    """A training of your own.

    ranks: `one` if it trains on one rank only, `any` if each rank does its share of an update. On another number of ranks, sums
        are taken in another order, so that the last bits of a result may differ.
    """

    ranks: ClassVar[Literal["one", "any"]]

    def build_inputs(self, folder: Path) -> None:
        """Writes the files that the run learns from and is evaluated on, into an empty folder.

        Called once a run, by one rank. The files are kept with the run under the digests of their bytes and verified before
        each start; what they were made from may change or vanish afterwards. None may be called `manifest.json`. Not called
        before `begin` where the files are there, so it must leave no state behind.
        """
        ...

    def begin(self, inputs: Path, ranks: Ranks) -> None:
        """Builds the model, the optimizer and whatever else belongs to the state before the first iteration.

        May be called again, which begins anew.

        inputs: the folder with the files of `build_inputs`, which must not be changed.
        """
        ...

    def draw(self, draw: Draw) -> Columns:
        """Returns what an iteration learns from, the same on every rank: a pure function of the inputs and the draw.

        It is sealed, by digest, before the update.
        """
        ...

    def update(self, columns: Columns, draw: Draw) -> Metrics:
        """Learns from an iteration's columns; returns metrics, the same on every rank.

        Guards watch `loss` and `grad_norm`. A metric that is not finite undoes the update: the state of the last checkpoint is
        restored, and `recovery.on_non_finite` applies.
        """
        ...

    def evaluate(self) -> Metrics:
        """Returns what held-out data say of the current state, the same on every rank; changes nothing.

        `accuracy` is the metric that the best iteration is chosen by.
        """
        ...

    def state(self) -> State:
        """Returns the present state."""
        ...

    def load(self, saved: SavedState) -> None:
        """Takes over a state after `begin`, bit for bit, whichever number of ranks has saved it."""
        ...


@runtime_checkable
class Samples(Protocol):
    """A workload whose iterations sample from the model before they learn, as reinforcement learning does."""

    def sample(self, columns: Columns, draw: Draw) -> Columns:
        """Returns this rank's share of what the update learns from, sampled from the current state, which stays unchanged.

        It is sealed, by digest, before the update: a run that is killed after it learns from what was sampled. Each rank's
        `update` gets what its own `sample` has returned. All randomness must come from `draw.seed_of`.

        columns: what `draw` has returned.
        """
        ...
