"""Requests to a rollout engine and its results: decode batches, and their responses as a whole or in pieces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from yatt_core.wire.packed import PackedArrays, flatten, pack_arrays, split
from yatt_core.wire.support import Support

Int32 = npt.NDArray[np.int32]
Int8 = npt.NDArray[np.int8]
Float32 = npt.NDArray[np.float32]
UInt64 = npt.NDArray[np.uint64]

FINISHED_STOP = 0
FINISHED_LENGTH = 1


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """A decode batch of P prompts with S samples each; the caller alone decides which prompts are in it.

    It is sent as a single buffer, and its arrays are read-only on arrival.

    prompts: P arrays of token ids.
    seeds: [P, S], one per response.
    stop_tokens: tokens that end a response and are part of it.
    top_k: number of likeliest tokens to sample from; 0: all.
    min_p: least probability of a token to sample, as a fraction of the likeliest one's.
    repetition_penalty: what the logits of tokens in the prompt or the response so far are divided by if they are
        positive, and multiplied by if they are negative.
    min_new_tokens: number of tokens before which no stop token is sampled.
    greedy: whether to take the most likely token; seeds and all settings of sampling are then unused, and
        log-probabilities are at temperature 1.
    record_support: whether the result has the support of each token; only for requests with top_k.
    media: content addresses of each prompt's images, P tuples; empty if no prompt has images.
    limits: [P], at most max_new_tokens; set if the responses to some prompts have a lower limit.
    question_lengths: [P], set if prompts contain earlier turns: tokens of the leading question, the only part
        with images.
    begun: what another engine drew of the responses, row by row; None unless they have been moved. The answer has the whole
        responses, and limits count all of their tokens.
    drawn: [P], set if responses are drawn in slices: the last tokens of a prompt that belong to its responses already. Noise
        and minimum of new tokens go on from there; limits count what is new.
    """

    prompts: Sequence[Int32]
    seeds: UInt64
    max_new_tokens: int
    stop_tokens: tuple[int, ...]
    weight_version: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    min_new_tokens: int = 0
    greedy: bool = False
    record_support: bool = False
    media: Sequence[tuple[str, ...]] = ()
    limits: Int32 | None = None
    question_lengths: Int32 | None = None
    begun: GenerateResult | None = None
    drawn: Int32 | None = None

    @property
    def prompt_limits(self) -> Int32:
        """Maximum number of new tokens of the responses to each prompt, [P]."""
        if self.limits is not None:
            return self.limits
        return np.full(len(self.prompts), self.max_new_tokens, dtype=np.int32)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arrays in one packed buffer, and all other fields as they are."""
        tokens, lengths = flatten(self.prompts, np.int32)
        arrays = {"tokens": tokens, "lengths": lengths, "seeds": self.seeds}
        given = {name: array for name in _OPTIONAL_ARRAYS if (array := getattr(self, name)) is not None}
        return _request_of, (pack_arrays({**arrays, **given}), _others(self, "prompts", "seeds", *given))


_OPTIONAL_ARRAYS = ("limits", "question_lengths", "drawn")


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """The responses in row order, p * S + s; tokens and log-probabilities of all rows are concatenated.

    It is sent as a single buffer, and its arrays are read-only on arrival.

    tokens: [sum(lengths)].
    log_probs: [sum(lengths)], of the sampled tokens under the sampling distribution (after penalty, temperature and
        truncation).
    lengths, finish: [P * S].
    seconds: wall time of the batch.
    versions: [sum(lengths)], version of the weights that produced each token; None if `weight_version` produced
        all of them.
    support_tokens: [sum(support_sizes)], the tokens that top_k, top_p, min_p and min_new_tokens left to draw each token
        from, ascending; None unless the request asks for them.
    support_sizes: [sum(lengths)], their number; None as `support_tokens`.
    """

    tokens: Int32
    log_probs: Float32
    lengths: Int32
    finish: Int8
    weight_version: int
    seconds: float
    versions: Int32 | None = None
    support_tokens: Int32 | None = None
    support_sizes: Int32 | None = None

    @property
    def token_versions(self) -> Int32:
        """Version of the weights that produced each token, [sum(lengths)]."""
        return np.full(len(self.tokens), self.weight_version, np.int32) if self.versions is None else self.versions

    @property
    def support(self) -> Support | None:
        """The support of each token; None if it was not recorded."""
        if self.support_tokens is None or self.support_sizes is None:
            return None
        return Support(self.support_tokens, self.support_sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the arrays in one packed buffer, and all other fields as they are."""
        arrays = {name: array for name in _RESULT_ARRAYS if (array := getattr(self, name)) is not None}
        return _result_of, (pack_arrays(arrays), _others(self, *arrays))


def support_fields(support: Support | None) -> dict[str, Int32]:
    """Returns the fields of a result that record the support of its tokens."""
    return {} if support is None else {"support_tokens": support.tokens, "support_sizes": support.sizes}


_RESULT_ARRAYS = ("tokens", "log_probs", "lengths", "finish", "versions", "support_tokens", "support_sizes")


@dataclass(frozen=True, slots=True)
class GeneratePiece:
    """The responses of a decode batch that have finished while others are still running.

    rows: row numbers of these responses in the request, ascending; p * S + s is sample s of prompt p.
    result: the result for these rows only; its seconds count from the start of the batch, or from the previous piece.
    """

    rows: tuple[int, ...]
    result: GenerateResult


@dataclass(frozen=True, slots=True)
class Returned:
    """Responses that left an engine before they had ended, to be continued elsewhere.

    rows: as in `GeneratePiece`.
    result: what has been drawn of them so far; their `finish` says nothing.
    """

    rows: tuple[int, ...]
    result: GenerateResult


def resumed_request(request: GenerateRequest, returned: Returned) -> GenerateRequest:
    """Returns the remaining part of a request.

    Each response becomes a prompt of its own, with its own seed, and continues from the tokens that it has.
    """
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
        begun=returned.result,
        drawn=None if request.drawn is None else request.drawn[prompts],
    )


def _others(message: GenerateRequest | GenerateResult, *arrays: str) -> dict[str, Any]:
    """Returns the fields of a message that are not arrays."""
    return {field.name: getattr(message, field.name) for field in fields(message) if field.name not in arrays}


def _request_of(packed: PackedArrays, others: Mapping[str, Any]) -> GenerateRequest:
    arrays = dict(packed.arrays())
    prompts = split(arrays.pop("tokens"), arrays.pop("lengths"))
    values: dict[str, Any] = {**arrays, **others}
    return GenerateRequest(prompts=prompts, **values)


def _result_of(packed: PackedArrays, others: Mapping[str, Any]) -> GenerateResult:
    values: dict[str, Any] = {**packed.arrays(), **others}
    return GenerateResult(**values)
