"""The responses of an engine in a process of its own, and the results that they make up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from yatt_core.errors import InfrastructureError, NumericError
from yatt_core.protocols.generation import Float32, GenerateResult, Int32, support_fields
from yatt_core.wire.support import Support


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
    """What one call's steps did.

    ended: the responses that they finished, by the name of their request.
    steps: their number.
    sequences: number of sequences processed, summed over the steps.
    seconds: their duration.
    """

    ended: tuple[tuple[str, Ended], ...]
    steps: int
    sequences: int
    seconds: float


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
