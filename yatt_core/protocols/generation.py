"""What a rollout engine is asked and answers: decode batches, and their responses whole or in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.wire.packed import PackedArrays, flatten, pack_arrays, split

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]
UInt64 = npt.NDArray[np.uint64]

FINISHED_STOP, FINISHED_LENGTH = 0, 1


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
