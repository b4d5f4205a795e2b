"""The two small protocols that every engine keeps, and the batches that cross them.

A rollout engine turns tokenized prompts into sampled responses with the weights of one version; a train engine turns an
iteration's experience into the weights of the next version. The rest of YATT never knows which engine it has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import (
    BatchTask,
    PrepareReceipt,
    UpdateReceipt,
    WarmupReceipt,
)
from yatt_core.wire.buckets import WeightBucket
from yatt_core.wire.packed import PackedArrays, flatten, pack_arrays, split

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]
UInt64 = npt.NDArray[np.uint64]
Tensors = Mapping[str, npt.NDArray[Any]]

StateWriter = Callable[[Path], None]

FINISHED_STOP, FINISHED_LENGTH = 0, 1


@dataclass(frozen=True, slots=True)
class FrozenState:
    """Copies of what a snapshot holds; called with a folder, it writes its files there. weights: the full state dict. besides:
    bytes of a critic's state.
    """

    weights: Tensors
    write: StateWriter
    besides: int = 0

    def __call__(self, folder: Path) -> None:
        """Writes the files into an existing folder."""
        self.write(folder)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """One decode batch: P prompts, S samples each; the members are fixed by the caller.

    prompts: P arrays of token ids. seeds: [P, S], one per response. stop_tokens end a response and are part of it.
    greedy: take the likeliest token; seeds and temperature are then unused (log-probabilities are at temperature 1).
    media: content addresses of each prompt's images, P tuples; empty for prompts of text alone. limits: [P], at most
    max_new_tokens, where the responses to some prompts may be shorter than to others. question_lengths: [P], where prompts
    hold earlier turns: tokens of the question in front, in which alone images are shown. progress: [P], where responses, one to
    each prompt, are continued that another engine has begun: tokens that it has made. It travels as one buffer, and arrives
    with arrays that cannot be written to.
    """

    prompts: Sequence[Int32]
    seeds: UInt64
    max_new_tokens: int
    stop_tokens: tuple[int, ...]
    weight_version: int
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False
    media: Sequence[tuple[str, ...]] = ()
    limits: Int32 | None = None
    question_lengths: Int32 | None = None
    progress: Int32 | None = None

    @property
    def prompt_limits(self) -> Int32:
        """Most new tokens of the responses to each prompt, [P]."""
        if self.limits is not None:
            return self.limits
        return np.full(len(self.prompts), self.max_new_tokens, dtype=np.int32)

    def __reduce__(self) -> tuple[Any, ...]:
        """pickle's way: the arrays packed, all else as it is."""
        tokens, lengths = flatten(self.prompts, np.int32)
        arrays = {"tokens": tokens, "lengths": lengths, "seeds": self.seeds}
        given = {name: array for name in _OPTIONAL_ARRAYS if (array := getattr(self, name)) is not None}
        return _request_of, (pack_arrays({**arrays, **given}), _others(self, "prompts", "seeds", *given))


_OPTIONAL_ARRAYS = ("limits", "question_lengths", "progress")


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """The responses, row p * S + s after row; tokens and log-probabilities of all rows behind one another.

    tokens, log_probs: [sum(lengths)]. lengths, finish: [P * S]. log_probs are those of the sampled tokens under the
    distribution that was sampled from (after temperature and top-p). seconds: wall time of the batch. versions: [sum(lengths)],
    of the weights that made each token, where these changed meanwhile; otherwise `weight_version` made all. It travels as one
    buffer, and arrives with arrays that cannot be written to.
    """

    tokens: Int32
    log_probs: Float32
    lengths: Int32
    finish: Int8
    weight_version: int
    seconds: float
    versions: Int32 | None = None

    @property
    def token_versions(self) -> Int32:
        """Version of the weights that made each token, [sum(lengths)]."""
        return np.full(len(self.tokens), self.weight_version, np.int32) if self.versions is None else self.versions

    def __reduce__(self) -> tuple[Any, ...]:
        """pickle's way: the arrays packed, all else as it is."""
        arrays = {name: array for name in _RESULT_ARRAYS if (array := getattr(self, name)) is not None}
        return _result_of, (pack_arrays(arrays), _others(self, *arrays))


_RESULT_ARRAYS = ("tokens", "log_probs", "lengths", "finish", "versions")


@dataclass(frozen=True, slots=True)
class GeneratePiece:
    """What of a decode batch is finished while the rest is under way.

    rows: numbers of these responses within the request, ascending; p * S + s is the s-th one to prompt p. result: of these
    rows alone; its seconds are those since the batch began, or since the piece before it.
    """

    rows: tuple[int, ...]
    result: GenerateResult


@dataclass(frozen=True, slots=True)
class Returned:
    """Responses that left an engine before they had ended, to go on elsewhere. rows: as of `GeneratePiece`. progress: tokens
    that each has so far.
    """

    rows: tuple[int, ...]
    progress: tuple[int, ...]


def resumed_request(request: GenerateRequest, returned: Returned) -> GenerateRequest:
    """What is left to do of a request: each response is a prompt of its own, with its own seed, and goes on where it was."""
    samples = request.seeds.shape[1]
    prompts = [row // samples for row in returned.rows]
    questions = request.question_lengths
    return replace(
        request,
        prompts=[request.prompts[prompt] for prompt in prompts],
        seeds=request.seeds.reshape(-1)[list(returned.rows)][:, None],
        media=[request.media[prompt] for prompt in prompts] if request.media else (),
        limits=request.prompt_limits[prompts],
        question_lengths=None if questions is None else questions[prompts],
        progress=np.array(returned.progress, dtype=np.int32),
    )


def _others(message: GenerateRequest | GenerateResult, *arrays: str) -> dict[str, Any]:
    """The fields of a message that are no arrays."""
    return {field.name: getattr(message, field.name) for field in fields(message) if field.name not in arrays}


def _request_of(packed: PackedArrays, others: Mapping[str, Any]) -> GenerateRequest:
    arrays = dict(packed.arrays())
    prompts = split(arrays.pop("tokens"), arrays.pop("lengths"))
    values: dict[str, Any] = {**arrays, **others}
    return GenerateRequest(prompts=prompts, **values)


def _result_of(packed: PackedArrays, others: Mapping[str, Any]) -> GenerateResult:
    values: dict[str, Any] = {**packed.arrays(), **others}
    return GenerateResult(**values)


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

    A version is the number of iterations learnt; 0 after `initialise` and `warm_up`.
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

    def warm_up(self) -> WarmupReceipt:
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
        """Copies what a snapshot holds (weights, optimizer, schedule, reference); good until it is called again.

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
