"""The contract of a training of your own: what a class provides so that YATT runs it as it runs a language model.

A workload names its inputs, what an iteration learns from, one update, one evaluation and its state. YATT calls it on every
rank of the trainer, in the same order on each, and provides the rest: durable phases, leases, checkpoints, exact resume,
guards, metrics, queue and dashboards. A run killed anywhere ends with the same bits as an undisturbed one if all that a
workload computes is a function of its settings, its inputs, the run's seed, its state, and what it is given.

The class is called with `RunFacts`. It raises `ValueError` for settings that it cannot use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
Cell = str | float | int | bool | None
MOST_ROWS = 200
"""Rows of a `Listing`."""


def advanced(words: str = "") -> None:
    """Says that a piece of a long call is finished: the deadline of a phase counts from the latest piece of any rank.

    The sums and exchanges of `Ranks` say so too. It changes no result.

    words: how far the call has come, for people.
    """
    progress.advanced(words)


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a workload knows of its run.

    settings: `workload.settings` and `workload.tunable` of the spec, together.
    iterations: the number of iterations of the whole run, for schedules.
    device: the rank's device, as torch names it: `cpu`, or `cuda:0`.
    folder: what relative paths in `settings` are relative to, the folder of the spec; None if the spec has none.
    checkpoint_every: iterations from one checkpoint to the next.
    continues: whether the run begins with another run's state, which `Continues.continue_from` gets.
    tunable: the names of the settings in `workload.tunable`, which can change while the inputs stay. A class raises
        `ValueError` for one on which its inputs or the form of its state depend: nothing else keeps the two apart.
    models: the folder of each model in `workload.models`, by its name; read when inputs are checked or built, and not later.
    sampler_dtype: the type in which samplers will hold the weights, as for `begin_sampling`; None without samplers.
    """

    seed: int
    settings: Mapping[str, Any]
    iterations: int
    device: str = "cpu"
    folder: Path | None = None
    checkpoint_every: int = 1
    continues: bool = False
    tunable: frozenset[str] = frozenset()
    models: Mapping[str, Path] = field(default_factory=dict)
    sampler_dtype: str | None = None

    def path_of(self, text: str) -> Path:
        """Returns the absolute path that a text of the settings names; `~` is the home folder.

        Raises `ValueError` for a relative one in a spec without a folder.
        """
        path = Path(text).expanduser()
        if path.is_absolute():
            return path
        if self.folder is None:
            raise ValueError(f"{text!r} is relative, and the spec has no folder; expected an absolute path")
        return self.folder / path


@dataclass(frozen=True, slots=True)
class Draw:
    """An iteration's turn to draw.

    seed: the run's; after a rollback, one of the new branch, so that what led to it is not drawn again.
    number: counts the draws. After a rollback by a guard or for a value that is not finite, it goes on counting, while iterations
        repeat: what is drawn depends on the number, what is scheduled on the iteration.
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


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """N images for people to look at.

    pixels: [N, height, width, 3], uint8: red, green and blue.
    captions: what each shows or was asked to show, of which 2,000 characters are kept; images with one caption stand together, as
        a prompt's.
    rewards: [N] numbers.
    seeds: [N] integers, from which each was drawn.
    """

    pixels: Array
    captions: Sequence[str]
    rewards: Array
    seeds: Array


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
        each start; what they were made from may change or vanish afterwards. None may be called `manifest.json` or `start`. Not
        called before `begin` where the files are there, so it must leave no state behind.
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


@dataclass(frozen=True, slots=True)
class RankNeeds:
    """Bytes of tensors that the rank of the trainer holds that has most of them.

    weights: of the model, all the time, buffers included.
    optimizer: moments and whatever else an optimizer keeps, all the time.
    gradients: in `update`.
    frozen: of models that no update changes, such as a reference or one that rewards, all the time.
    prepare, learn, evaluate: what `draw` and `sample`, `update`, and `evaluate` take at most beside all these.
    """

    weights: int
    optimizer: int
    gradients: int
    frozen: int = 0
    prepare: int = 0
    learn: int = 0
    evaluate: int = 0


@dataclass(frozen=True, slots=True)
class SamplerNeeds:
    """Bytes of tensors that a sampler holds.

    weights: of the model, all the time.
    sent: those of them that arrive after each update.
    frozen: as a rank's.
    collect: what `sample_shard` takes at most beside these.
    """

    weights: int
    sent: int
    frozen: int = 0
    collect: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a workload needs, as far as its settings say it.

    parameters: of the model, without frozen ones beside it.
    trained: those of them that an update changes.
    state: bytes of `state()`, of all ranks together.
    rank: of the trainer.
    sampler: None without samplers.
    work: what an iteration or, by its name, an evaluation does, in counts: `images`, `image_steps`, `evaluation_image_steps`.
    on_device: False if everything stays in the host's memory, whatever `RunFacts.device` is.
    assumed: what is assumed or not counted, in sentences for people.
    """

    parameters: int
    trained: int
    state: int
    rank: RankNeeds
    sampler: SamplerNeeds | None = None
    work: Mapping[str, int] = field(default_factory=dict)
    on_device: bool = True
    assumed: Sequence[str] = ()


@runtime_checkable
class StatesNeeds(Protocol):
    """A workload that can say what it needs before anything is built, for `yatt plan`."""

    def needs(self, ranks: int, sampler_dtype: str | None) -> Needs:
        """Returns what a run needs: from the settings alone, without inputs, weights or other ranks.

        Called on a workload that has not begun.

        ranks: number of the trainer's ranks.
        sampler_dtype: the type in which samplers hold the weights, as for `begin_sampling`; None without samplers.
        """
        ...


@runtime_checkable
class ChecksInputs(Protocol):
    """A workload that can say whether its inputs can be built, without building them."""

    def check_inputs(self) -> None:
        """Reads what `build_inputs` would read, and writes nothing. Raises `ValueError` for what cannot be used.

        Called before a new run is created, in the process of the command, on a workload that has not begun.
        """
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


@runtime_checkable
class SamplesApart(Samples, Protocol):
    """A workload that samples, and for which processes of their own can do it in place of the trainer's ranks: samplers.

    Each sampler has an object of the class, on which `begin_sampling` is called in place of `begin`, and then `draw`, `shards`,
    `sample_shard` and, if there are any, `images`; before these, `continue_from`, if the run begins with another run's state.
    """

    def begin_sampling(self, inputs: Path, dtype: str) -> None:
        """Builds what sampling needs, in a process that belongs to no group of ranks.

        inputs: as for `begin`.
        dtype: the type in which the weights are held, `float32` or `bfloat16`. Raises `ValueError` for one with which the run's
            settings do not go.
        """
        ...

    def sampling_weights(self) -> Mapping[str, torch.Tensor | Rows]:
        """Returns the weights that an update changes and samples depend on, by name: floating-point tensors of any type.

        A rank's are sent to the samplers, where they arrive in the tensors that a sampler's own object returns: whole ones of
        the same names and shapes. What no update changes need not be among them.
        """
        ...

    def shards(self, columns: Columns) -> Sequence[slice]:
        """Cuts the drawn columns into shards of rows, in their order and without gaps: what is sampled, and sealed, at a time.

        A pure function of the columns, all of which then have the same number of rows. Each shard has at least one; the last one
        may name rows beyond the end. Of S shards, a rank's `update` gets those of `Ranks.share(S)`, joined row by row.
        """
        ...

    def sample_shard(self, columns: Columns, draw: Draw) -> Columns:
        """Samples the rows of a shard, as `sample` does on a rank: the same bits for each row, whatever its neighbours.

        All shards have the same columns, with the same types and shapes of rows.

        columns: what `draw` has returned, the rows of the shard alone.
        """
        ...


@dataclass(frozen=True, slots=True)
class Listing:
    """A small table for people.

    columns: their names.
    rows: each with a text, a number or a truth value, or None, for every column; at most `MOST_ROWS`.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


@runtime_checkable
class Tabulates(Protocol):
    """A workload whose evaluations have curves or figures by kind too, beside its metrics."""

    def tables(self) -> Mapping[str, Listing]:
        """Returns what the evaluation that was just made has found, by names of lower-case letters, digits and `_`.

        Called after `evaluate`, on every rank. Every number of the second and further columns is plotted over the first one: as
        curves over numbers, as bars over texts. They are for people, and change no result.
        """
        ...


@runtime_checkable
class Shows(Protocol):
    """A workload that can say in words what an iteration learns from."""

    def shown(self, columns: Columns) -> Listing:
        """Returns an iteration's columns as rows that people can read, the first ones if there are more than `MOST_ROWS`.

        A function of the columns and the inputs. Called after `draw` and `sample`, on the first rank only, so that it must not
        call `Ranks`.

        columns: what is sealed for the first rank.
        """
        ...


@dataclass(frozen=True, slots=True)
class Recognition:
    """What a recogniser has found: the beginning of a spec.

    what: in words, such as `a corpus of 40 documents`.
    spec: the keys of a spec without its `name`, as YAML would have them: `workload` and, as is useful, `iterations` and others.
    """

    what: str
    spec: Mapping[str, Any]


class Recogniser(Protocol):
    """A function that an entry point of the group `yatt.recognisers` names: `yatt init` asks it what a path is."""

    def __call__(self, path: Path) -> Recognition | None:
        """Returns the spec of a run on a file or folder; None if this is nothing that the workload could learn from.

        The first paragraph of a recogniser's docstring says what it expects: it is shown to who asks this recogniser alone.

        path: absolute; a spec that names it, or a path below it, is written with relative paths where that is possible.

        Raises `ValueError`, with file and line, for what is meant for the workload and could not be read by it.
        """
        ...


@runtime_checkable
class Continues(Protocol):
    """A workload that can begin with the state of another run, as a later stage of a pipeline does."""

    def continue_from(self, saved: SavedState) -> None:
        """Takes over what it goes on with, such as the weights, but no moments and counters.

        Called after each `begin`, also before `load`: what is not part of the state, such as a reference that weights are kept
        near to, may come from it too.

        saved: a checkpoint of another run, maybe of another class or with other settings; the run has its own copy.
        """
        ...


@runtime_checkable
class SharesModel(Protocol):
    """A workload whose ranks hold a model together, by a library that knows torch's process-wide group alone, such as FSDP2.

    YATT opens that group of the ranks before `begin`, and again whenever the ranks have met anew.
    """

    def regroup(self) -> None:
        """Goes on with what this rank holds: the process-wide group is another one than before.

        Called on each rank that has begun, so that nothing may be exchanged in it.
        """
        ...


@runtime_checkable
class ShowsImages(Protocol):
    """A workload that samples, and whose samples are images."""

    def images(self, columns: Columns, draw: Draw) -> Images:
        """Returns the images of this rank's samples, in their order, for people to look at; nothing is learnt from them.

        Called right after `sample` or, in a sampler, `sample_shard`, on the same object, which may have kept the images until
        then. They are stored as files by digest beside what is sealed; if these are lost before the update is made, or made
        again after a crash, both methods are called once more.

        columns: what `sample` has returned.
        """
        ...
