"""The two small protocols that engines implement.

A rollout engine turns tokenized prompts into sampled responses with the weights of one version; a train engine
turns an iteration's experience into the weights of the next version. The rest of YATT does not depend on which
engine is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from yatt_core import durable
from yatt_core.keys import WorkKey
from yatt_core.manifests import FileEntry, entry_of_bytes
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult, Returned
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    RowsReceipt,
    RowsTask,
    SampleTask,
    SftReceipt,
    ShardRef,
    UpdateReceipt,
)
from yatt_core.wire.buckets import BucketBuffer, WeightBucket
from yatt_core.wire.part_files import write_tensors
from yatt_core.wire.parts import Box, Rectangle, TensorPart

Tensors = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class FrozenState:
    """Copies of what a rank contributes to a checkpoint; calling it writes them as files.

    tensors: parts of tensors by subfolder; those of all ranks make up each tensor, each number once.
    files: contents of other files by name; each file is contributed by one rank.
    weights_digest: digest of the weights if it is known; otherwise it is computed from the subfolder `weights`.
    """

    rank: int
    ranks: int
    tensors: Mapping[str, Sequence[TensorPart[npt.NDArray[Any]]]]
    files: Mapping[str, bytes]
    weights_digest: str | None = None

    @property
    def nbytes(self) -> int:
        """Size of the tensors and files in bytes."""
        tensors = sum(part.values.nbytes for parts in self.tensors.values() for part in parts)
        return int(tensors) + sum(len(data) for data in self.files.values())

    def __call__(self, folder: Path, label: str = "") -> dict[str, FileEntry]:
        """Writes the files below an existing folder, synced; returns size and sha256 of each, by relative name.

        label: part of the names of the files of tensors.
        """
        entries = write_tensors(folder=folder, rank=self.rank, ranks=self.ranks, tensors=self.tensors, label=label)
        for name, data in self.files.items():
            durable.write_file(folder / name, data)
            entries[name] = entry_of_bytes(data)
        return entries


@dataclass(frozen=True, slots=True)
class NeededTensor:
    """What a rank needs of a tensor of a checkpoint.

    subfolder: the checkpoint's subfolder with the tensor.
    box: a rectangle of the tensor; None if all of it is needed.
    """

    subfolder: str
    name: str
    box: Box | None = None


@dataclass(frozen=True, slots=True)
class EngineWork:
    """The work of an engine that answers several calls together.

    steps: number of steps.
    sequence_steps: number of sequences processed, summed over the steps.
    seconds: duration of the steps.
    prompt_tokens: number of prompt tokens read, and of tokens of moved responses read again, if it tells them apart.
    prefill_seconds: the time of that, which is not part of `seconds`.
    """

    steps: int = 0
    sequence_steps: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    prefill_seconds: float = 0.0


class RolloutEngine(Protocol):
    """An engine that generates responses.

    The caller makes one call at a time, unless the engine has `several_calls`. An engine raises
    `InfrastructureError` if asked for a version other than the one it holds.

    capabilities: `batch_invariant` (a response does not depend on the rest of its batch), `sleep` (the engine
        frees memory on request), `in_flight_update` (weights may arrive while it generates), `several_calls` (several
        threads may call it at once), `delta_sync` (it takes updates of which pieces have only what has changed since the
        version that it holds).
    """

    @property
    def version(self) -> int:
        """Version of its weights; -1 before the first update, during an update, and after one that failed."""
        ...

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """Its capabilities, by name."""
        ...

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Returns S responses to every prompt."""
        ...

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """Yields the responses of `generate`, bit for bit, in pieces as they finish.

        None means that nothing new has finished; the caller can use the pause to pass on pieces that it holds back.
        Raises the same errors as `generate`.
        """
        ...

    def begin_update(self, version: int) -> None:
        """Prepares for the weights of a version, restarting an update in progress; from here on the engine is dirty.

        The update consists of the full state dict under Hugging Face names, a tied tensor once under any of its
        names, in floating-point dtypes of any width, which are rounded to the engine's dtype. With
        `in_flight_update`, responses in progress wait for its end.
        """
        ...

    def buffers(self, count: int, nbytes: int) -> Sequence[BucketBuffer] | None:
        """Returns memory for a number of buckets of at most this many bytes each, if they arrive in host memory.

        None: any memory will do. The memory's content is arbitrary. It is valid until the next call, which may return the
        same memory. Buckets that arrive on a GPU stay there until `take`.
        """
        ...

    def take(self, bucket: WeightBucket) -> None:
        """Takes the next bucket of the update, in place.

        Raises `InfrastructureError` for a bucket that is out of order or does not match its digest, and for tensors
        that the model does not have or numbers that arrive twice; this aborts the update and leaves the engine dirty.
        """
        ...

    def end_update(self) -> None:
        """Activates the new weights.

        Raises `InfrastructureError` and leaves the engine dirty unless every tensor has arrived exactly once.
        """
        ...

    def update_weights(self, tensors: Tensors, version: int) -> None:
        """Performs a complete update, for callers that have all tensors in memory."""
        ...

    def rectangle_digests(self, rectangles: Sequence[Rectangle]) -> list[str] | None:
        """Returns digests of rectangles of its weights (`engines.rectangles`), computed from the memory that it uses.

        None if that memory cannot be read.
        """
        ...

    def sleep(self) -> None:
        """Frees as much memory as possible between two calls; the next call wakes the engine, with the same results."""
        ...

    def wake(self) -> None:
        """Takes the freed memory again, so that the next call need not; does nothing while the engine is awake."""
        ...


@runtime_checkable
class CommonEngine(Protocol):
    """A rollout engine with `several_calls`."""

    def take_work(self) -> EngineWork:
        """Returns the work done since the last call."""
        ...


@runtime_checkable
class HandingEngine(Protocol):
    """A rollout engine whose responses may go on in another one, from the tokens that they have.

    An engine that is `batch_invariant` goes on with the bits that the first one would have drawn.
    """

    def answers(self, request: GenerateRequest, number: int) -> Iterator[GeneratePiece | Returned | None]:
        """Yields what `stream` does, and the responses that are handed over meanwhile. Raises as `stream` does.

        number: the call's, for `give_up`.
        """
        ...

    def hand_over(self, count: int) -> None:
        """Makes its calls of `answers` return the newest responses, at least so many if there are."""
        ...

    def give_up(self, numbers: Collection[int]) -> None:
        """Drops the responses of calls of `answers`, which then end without them; other numbers are ignored."""
        ...


@runtime_checkable
class SamplingEngine(Protocol):
    """A rollout engine that samples for a workload of one's own, in place of answering prompts."""

    def count_shards(self, task: SampleTask) -> int:
        """Returns the number of an iteration's shards; the shard that the task names does not matter."""
        ...

    def sample(self, task: SampleTask) -> ShardRef:
        """Draws and seals a shard, unless it is sealed already.

        Raises `InfrastructureError` if asked for a version other than its own.
        """
        ...


@runtime_checkable
class SendsWeights(Protocol):
    """A rank of a trainer whose weights go to other engines, as tensors under Hugging Face names."""

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """Yields the tensors for the rollout engines one after another, under Hugging Face names, tied tensors once.

        For a caller that has trainer and engine in one process (`RolloutEngine.update_weights`). All ranks iterate to the
        end, in step; only rank 0's arrays are used, and each is valid only until the next one.
        """
        ...

    @property
    def in_step(self) -> bool:
        """Whether all ranks must take part in step in `sync_parts`, as when adapters are merged.

        What such a rank holds by itself cannot be compared with what an engine holds.
        """
        ...

    def sync_parts(self, outlines: bool = False) -> Iterator[TensorPart[Any]]:
        """Yields what this rank contributes to the weights for the rollout engines, as tensors on its device.

        Parts of one tensor are adjacent. Each call yields the same parts in the same order. Unless `in_step`, nothing is
        gathered; otherwise every rank must iterate to the end, whatever becomes of its transfer.

        outlines: whether the parts may lack their numbers, so that a rank can yield them by itself.
        """
        ...


class TrainEngine(SendsWeights, Protocol):
    """One logical rank of the trainer; every rank gets the same calls in the same order.

    A version is the number of iterations learned; it is 0 after `initialise` and `sft`.
    """

    @property
    def version(self) -> int:
        """Version of its weights; -1 if they are undefined (before the start, or after a failed update)."""
        ...

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update, applied or skipped; None since `initialise` or `restore`."""
        ...

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Joins the group of ranks.

        address: `tcp://host:port` of the rendezvous, served by rank 0.
        """
        ...

    def initialise(self) -> None:
        """Loads the initial weights as version 0."""
        ...

    def sft(self) -> SftReceipt:
        """Runs supervised fine-tuning on the demonstrations; the version stays 0 and the optimizer is reset afterwards.

        A second call while the version is still 0 returns the receipt of the first.
        """
        ...

    def accumulate(self, task: BatchTask) -> float:
        """Prepares the first sealed shards of iteration k at version k-1 and adds up their gradients, in their order.

        For runs with `asynchrony.streamed`. Shards that were added before are not added again; those of other inputs are
        dropped. `prepare` and `learn` add whatever is missing then. Does nothing at version k. Returns the seconds of this
        rank's work.
        """
        ...

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Writes the advantages, and old and reference log-probabilities if needed; only rank 0 returns a receipt."""
        ...

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies the optimizer steps of iteration k at version k-1; at version k it returns the stored receipt.

        Raises `NumericError` if a loss or gradient is not finite; the version is then -1 if a step was taken.
        """
        ...

    def evaluate(self, task: RowsTask) -> RowsReceipt:
        """Scores the held-out rows of a run that learns from its data, at the task's version; changes nothing.

        Every rank must call it; all of them return the same receipt.
        """
        ...

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Advances from version k-1 to the task's version k without changing weights or optimizer.

        At version k, it returns the stored receipt like `learn`. The fingerprint has `skipped` 1.0 and, if cheap
        to compute, the weights' digest.
        """
        ...

    @property
    def copies_alone(self) -> bool:
        """Whether a rank can copy its state for a checkpoint by itself, beside calls that only read, and ranks not in step."""
        ...

    def weights_digest(self) -> str:
        """Returns the `weights_digest` of its weights. Every rank must call it; only rank 0's result counts."""
        ...

    def offload(self) -> None:
        """Frees device memory between two calls: parameters, gradients and optimizer state move to host memory.

        Tensors that are already on the host stay there; gradient buffers and caches are returned to the system in
        any case. Nothing else changes: every call that needs the tensors first restores them as `reload` does. A
        second call has no effect.
        """
        ...

    def reload(self) -> None:
        """Restores all offloaded tensors, bit for bit; does nothing if there are none."""
        ...

    def freeze_state(self) -> FrozenState:
        """Copies this rank's contribution to a checkpoint (weights, optimizer, schedule, reference).

        Training may continue before another thread has written the copies, which are valid until the next call.
        Every rank must call it. With `copies_alone`, ranks need not call it together, and a thread of its own may: beside
        calls that only read, and while nothing is offloaded.
        """
        ...

    def needed(self, folder: Path) -> Iterator[NeededTensor]:
        """Yields what `restore` will read of a checkpoint's tensors.

        folder: has the other files of the checkpoint, and of files of tensor parts at least the headers.
        """
        ...

    def restore(self, folder: Path, version: int) -> None:
        """Loads what the states frozen on all ranks wrote, after the caller verified the files' digests.

        The files may come from another engine and layout of ranks; with the same ones, training continues bit for
        bit. A rank reads only what it needs.
        """
        ...


def all_there(shards: Sequence[ShardRef]) -> None:
    """Fetches nothing, for a disk that has all shards."""


@dataclass(frozen=True, slots=True)
class RankContext:
    """Where a train engine finds its files.

    run_folder: absolute path.
    model_path: Hugging Face folder of the initial model.
    fetch: brings sealed shards to this node's disk, unless they are there. The engine calls it for those that it is about
        to read, so that a failure is one of reading.
    """

    run_folder: Path
    inputs_folder: Path
    model_path: str
    branch: int
    fetch: Callable[[Sequence[ShardRef]], None] = all_there
