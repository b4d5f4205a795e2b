"""Converts vLLM's completions to responses."""

from __future__ import annotations

from typing import Any

import numpy as np

from yatt_core.engines.rollout.served.responses import Ended, Response
from yatt_core.errors import InfrastructureError, NumericError
from yatt_core.protocols.generation import FINISHED_LENGTH, FINISHED_STOP
from yatt_core.wire.support import Support

FINISHED = {"stop": FINISHED_STOP, "length": FINISHED_LENGTH}


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
    return Response(
        tokens=tokens,
        log_probs=log_probs,
        finish=FINISHED[completion.finish_reason],
        versions=versions.astype(np.int32),
        support=support,
    )


def support_of(flat: Any) -> Support:
    """Returns the tokens whose log-probability is finite, at each position of vLLM's flat log-probabilities."""
    tokens = np.array(flat.token_ids, dtype=np.int32)
    finite = np.isfinite(np.array(flat.logprobs, dtype=np.float32))
    spans = zip(flat.start_indices, flat.end_indices, strict=True)
    # The sampled token is listed twice if it is among the likeliest.
    kept = [np.unique(tokens[start:end][finite[start:end]]) for start, end in spans]
    return Support(np.concatenate([np.zeros(0, np.int32), *kept]), np.array([len(one) for one in kept], dtype=np.int32))
