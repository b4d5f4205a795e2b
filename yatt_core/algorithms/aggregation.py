"""How token losses become one loss: a weight for every token, with denominators taken over the whole optimizer step.

The loss is sum_i w_i sum_t loss[i, t]. Because w depends on the lengths of all responses in the step, the sum can
be split over ranks and micro-batches of any size without changing the gradient.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
Aggregation = Literal["token_mean", "sequence_mean", "fixed_length"]


def token_weights(lengths: Int64, aggregation: Aggregation, max_new_tokens: int) -> Float64:
    """Returns the weight of each token of each response, [N].

    token_mean: 1 / sum(lengths) (DAPO, arXiv 2503.14476).
    sequence_mean: 1 / (N length) (GRPO, arXiv 2402.03300).
    fixed_length: 1 / (N max_new_tokens) (Dr. GRPO, arXiv 2503.20783).

    lengths: [N], counted tokens of all responses of a step; a response without tokens still counts in N.
    """
    count = len(lengths)
    if not count:
        return np.empty(0)
    match aggregation:
        case "token_mean":
            return np.full(count, 1.0 / max(int(lengths.sum()), 1))
        case "sequence_mean":
            return 1.0 / (count * np.maximum(lengths, 1).astype(np.float64))
        case "fixed_length":
            return np.full(count, 1.0 / (count * max_new_tokens))


def undivided_weights(lengths: Int64, aggregation: Aggregation, max_new_tokens: int) -> Float64:
    """Returns `token_weights` times `denominator`, [N]: each depends on its own response alone. Arguments as there."""
    match aggregation:
        case "token_mean":
            return np.ones(len(lengths))
        case "sequence_mean":
            return 1.0 / np.maximum(lengths, 1).astype(np.float64)
        case "fixed_length":
            return np.full(len(lengths), 1.0 / max_new_tokens)


def denominator(samples: int, tokens: int, aggregation: Aggregation) -> int:
    """Returns what the losses of a whole step are divided by, at least 1.

    samples, tokens: numbers of responses of the step, and of their counted tokens.
    """
    return max(tokens if aggregation == "token_mean" else samples, 1)
