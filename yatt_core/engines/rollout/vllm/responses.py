"""Converts vLLM's completions to responses, and responses to results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from yatt_core.errors import InfrastructureError, NumericError
from yatt_core.protocols.generation import FINISHED_LENGTH, FINISHED_STOP, Float32, GenerateResult, Int32

FINISHED = {"stop": FINISHED_STOP, "length": FINISHED_LENGTH}


@dataclass(frozen=True, slots=True, eq=False)
class Response:
    """One response.

    tokens, log_probs: [length].
    finish: why the response ended.
    versions: version of the weights that generated each token, [length].
    """

    tokens: Int32
    log_probs: Float32
    finish: int
    versions: Int32


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


def ended_of(completion: Any) -> Ended:
    """Converts a vLLM completion with flat log-probabilities, in which the sampled token comes first.

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
    return Response(tokens, log_probs, FINISHED[completion.finish_reason], versions.astype(np.int32))


def result_of(ended: Sequence[tuple[int, Response]], version: int, seconds: float) -> GenerateResult:
    """Concatenates the responses in the given order.

    version: the requested version of the weights.
    """
    responses = [response for _, response in ended]
    versions = np.concatenate([np.zeros(0, np.int32), *(response.versions for response in responses)])
    return GenerateResult(
        tokens=np.concatenate([np.zeros(0, np.int32), *(response.tokens for response in responses)]),
        log_probs=np.concatenate([np.zeros(0, np.float32), *(response.log_probs for response in responses)]),
        lengths=np.array([len(response.tokens) for response in responses], dtype=np.int32),
        finish=np.array([response.finish for response in responses], dtype=np.int8),
        weight_version=version,
        seconds=seconds,
        versions=versions if (versions != version).any() else None,
    )
