"""The two small protocols that every engine keeps.

A rollout engine turns tokenized prompts into sampled responses with the weights of one version; a train engine turns an
iteration's experience into the weights of the next version. The rest of YATT never knows which engine it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy.typing as npt

from yatt_core.keys import WorkKey
from yatt_core.protocols.generation import GeneratePiece, GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    SftReceipt,
    UpdateReceipt,
)
from yatt_core.wire.buckets import WeightBucket

Tensors = Mapping[str, npt.NDArray[Any]]

StateWriter = Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class FrozenState:
    """Copies of what a checkpoint holds; called with a folder, it writes its files there. weights: the full state dict. besides:
    bytes of a critic's state.
    """

    weights: Tensors
    write: StateWriter
    besides: int = 0

    def __call__(self, folder: Path) -> None:
        """Writes the files into an existing folder."""
        self.write(folder)


class RolloutEngine(Protocol):
    """Generates. One call at a time, unless it can do `several_calls`; the caller serialises.

    capabilities: `batch_invariant` (a response does not depend on the batch it is in), `sleep` (it gives memory
    back when told to), `in_flight_update` (weights may come while it generates), `several_calls` (it may be asked by several
    threads at once).
    Raises `InfrastructureError` when asked for another version than it holds.
    """

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 before the first update, while one is under way, and after one that failed."""
        ...

    @property
    def capabilities(self) -> Mapping[str, bool]:
        """What it can do, by name."""
        ...

    def generate(self, request: GenerateRequest) -> GenerateResult:
        """Answers every prompt S times."""
        ...

    def stream(self, request: GenerateRequest) -> Iterator[GeneratePiece | None]:
        """The same responses, bit for bit, in pieces as they are finished.

        None comes where nothing new is finished: a moment at which to pass on what was held back. Raises as `generate`.
        """
        ...

    def begin_update(self, version: int) -> None:
        """Makes ready for the weights of a version, anew where an update is under way. From here on the engine is dirty.

        What comes is the full state dict in Hugging Face names, a tied tensor once, under any of its names; floating point of any
        width, rounded to the engine's dtype. Responses under way wait for the end, where the engine can do `in_flight_update`.
        """
        ...

    def take(self, bucket: WeightBucket) -> None:
        """Takes the next bucket of the update, in place.

        Raises `InfrastructureError` for a bucket out of order and for tensors that are not the model's or come twice: the update
        is over then, and the engine stays dirty.
        """
        ...

    def end_update(self) -> None:
        """Puts the new weights to work. Raises `InfrastructureError`, and stays dirty, unless every tensor has come once."""
        ...

    def update_weights(self, tensors: Tensors, version: int) -> None:
        """A whole update at once, for who has all tensors in its memory."""
        ...

    def sleep(self) -> None:
        """Gives back, between two calls, what memory it can; the next call wakes it, and nothing that it answers changes."""
        ...


class TrainEngine(Protocol):
    """One logical rank of the trainer; every rank gets the same calls in the same order.

    A version is the number of iterations learnt; 0 after `initialise` and `sft`.
    """

    @property
    def version(self) -> int:
        """Version of the weights it holds; -1 when they are undefined (before the start, or after a failed update)."""
        ...

    @property
    def applied(self) -> WorkKey | None:
        """Key of the last update, or of the last skipped one; none since `initialise` or `restore`."""
        ...

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Joins the group of ranks. address: `tcp://host:port` of the rendezvous, served by rank 0."""
        ...

    def initialise(self) -> None:
        """Loads the initial weights; version 0."""
        ...

    def sft(self) -> SftReceipt:
        """Supervised training on the demonstrations; version stays 0. The optimizer starts afresh behind it.

        Once: a second call, at version 0 still, returns the receipt of the first.
        """
        ...

    def prepare(self, task: BatchTask) -> PrepareReceipt | None:
        """Writes old and reference log-probabilities where needed, and the advantages; only rank 0 returns a receipt."""
        ...

    def learn(self, task: BatchTask, prepared: PrepareReceipt) -> UpdateReceipt:
        """Applies the iteration's optimizer steps. At version k it returns the kept receipt of k, at k-1 it applies.

        Raises `NumericError` for a loss or gradient that is not finite, and leaves version -1 if a step was taken.
        """
        ...

    def skip(self, task: BatchTask) -> UpdateReceipt:
        """Goes from version k-1 to the task's version k with the same weights and optimizer; at k, as `learn`.

        The fingerprint has `skipped` 1.0 and, where it is cheap, the weights' digest.
        """
        ...

    def stream_weights(self) -> Iterator[tuple[str, npt.NDArray[Any]]]:
        """What goes to the rollout engines, one tensor after another in Hugging Face names, tied tensors once.

        Every rank goes through all of it, and all in step; rank 0's arrays count, and each until the next one.
        """
        ...

    def offload(self) -> None:
        """Makes room on the device between two calls: parameters, gradients and optimizer go to the host's memory.

        What is there already stays; gradients' buffers and what is kept for speed alone are given back to the system in any case.
        Nothing changes otherwise: whatever needs the tensors has them back first, as by `reload`. Twice is once.
        """
        ...

    def reload(self) -> None:
        """Has all of it back, bit for bit. Nothing where nothing was given away."""
        ...

    def freeze_state(self) -> FrozenState | None:
        """Copies what a checkpoint holds (weights, optimizer, schedule, reference); good until it is called again.

        Training may go on before the copies are written, in another thread. Every rank calls it, rank 0 alone gets the copies.
        Nothing is pickled where safetensors will do.
        """
        ...

    def restore(self, folder: Path, version: int) -> None:
        """Loads what a writer of `freeze_state` wrote, after the caller verified the files' digests.

        It may have been written under another layout of ranks; under the same one training goes on bit for bit.
        """
        ...


@dataclass(frozen=True, slots=True)
class RankContext:
    """Where a train engine finds things. run_folder: absolute. model_path: the initial Hugging Face folder."""

    run_folder: Path
    inputs_folder: Path
    model_path: str
    branch: int
