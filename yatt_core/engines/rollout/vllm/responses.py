"""Converts vLLM's completions to responses, and responses to results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from yatt_core.errors import InfrastructureError, NumericError
from yatt_core.protocols.generation import (
    FINISHED_LENGTH,
    FINISHED_STOP,
    Float32,
    GenerateResult,
    Int32,
    support_fields,
)
from yatt_core.wire.support import Support

FINISHED = {"stop": FINISHED_STOP, "length": FINISHED_LENGTH}


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """One response.

    tokens, log_probs: [length].
    finish: why the response ended.
    versions: version of the weights that generated each token, [length].
    support: of each token; None unless the request asks for it.
    """

    tokens: Int32
    log_probs: Float32
    finish: int
    versions: Int32
    support: Support | None = None


Ended = Response | NumericError | InfrastructureError
"""A response, or why there is none."""


@dataclass(frozen=True, slots=True)
class Step:
    """What a step did.

    ended: the responses that it finished, by the name of their request.
    sequences: number of sequences that were waiting for it.
    seconds: its duration.
    """

    ended: tuple[tuple[str, Ended], ...]
    sequences: int
    seconds: float


def ended_of(completion: Any, with_support: bool = False) -> Ended:
    """Converts a vLLM completion with flat log-probabilities, in which the sampled token comes first.

    with_support: whether the other log-probabilities are those of the support.

    Returns a `NumericError` for log-probabilities that are not finite, an `InfrastructureError` for a completion that
    vLLM aborted.
    """
    if completion.finish_reason not in FINISHED:
        return InfrastructureError(f"vLLM aborted a response: {completion.finish_reason}")
    flat = completion.logprobs
    log_probs = np.array([flat.logprobs[start] for start in flat.start_indices], dtype=np.float32)
    if not np.isfinite(log_probs).all():
        return NumericError("the model produces logits that are not finite")
    spans = completion.weight_versions
    versions = np.repeat([int(span.version) for span in spans], [span.end - span.start for span in spans])
    tokens = np.array(completion.token_ids, dtype=np.int32)
    support = support_of(flat) if with_support else None
    return Response(tokens, log_probs, FINISHED[completion.finish_reason], versions.astype(np.int32), support)


def support_of(flat: Any) -> Support:
    """Returns the tokens whose log-probability is finite, at each position of vLLM's flat log-probabilities."""
    tokens, finite = np.array(flat.token_ids, dtype=np.int32), np.isfinite(np.array(flat.logprobs, dtype=np.float32))
    spans = zip(flat.start_indices, flat.end_indices, strict=True)
    # The sampled token is listed twice if it is among the likeliest.
    kept = [np.unique(tokens[start:end][finite[start:end]]) for start, end in spans]
    return Support(np.concatenate([np.zeros(0, np.int32), *kept]), np.array([len(one) for one in kept], dtype=np.int32))


def result_of(ended: Sequence[tuple[int, Response]], version: int, seconds: float) -> GenerateResult:
    """Concatenates the responses in the given order.

    version: the requested version of the weights.
    """
    responses = [response for _, response in ended]
    versions = np.concatenate([np.zeros(0, np.int32), *(response.versions for response in responses)])
    supports = [response.support for response in responses if response.support is not None]
    return GenerateResult(
        tokens=np.concatenate([np.zeros(0, np.int32), *(response.tokens for response in responses)]),
        log_probs=np.concatenate([np.zeros(0, np.float32), *(response.log_probs for response in responses)]),
        lengths=np.array([len(response.tokens) for response in responses], dtype=np.int32),
        finish=np.array([response.finish for response in responses], dtype=np.int8),
        weight_version=version,
        seconds=seconds,
        versions=versions if (versions != version).any() else None,
        **support_fields(Support.joined(supports) if supports else None),
    )
