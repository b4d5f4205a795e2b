"""The rewards of a batch's tokens: pure functions of responses, scores and the critique of the spec."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from yatt_core.algorithms.critique import token_rewards
from yatt_core.prompts.reading import UNKNOWN, Reading
from yatt_core.prompts.steps import Decode, StepText, TokenSteps, split_steps
from yatt_core.prompts.thoughts import final_spans
from yatt_core.rewards.scoring import SampleScore
from yatt_core.spec.rewards.critique import CritiqueSpec
from yatt_core.wire.columns import list_array, ragged_column


def token_reward_column(
    critique: CritiqueSpec,
    responses: pa.Table,
    scores: Sequence[SampleScore],
    decode: Decode,
    reading: Reading = UNKNOWN,
) -> pa.Array:
    """Returns the rewards of each response's tokens, a list of float32 per row.

    responses: as `response_table` returns them.
    decode: the policy's `TextCodec.decode`.
    reading: how its turns are read; what the chat template wrote is the beginning of a text, but none of its tokens.
    """
    finder = TokenSteps(decode)
    texts: list[str] = responses.column("response").to_pylist()
    tokens, offsets = ragged_column(responses, "response_tokens")
    rows = []
    for text, score, (start, stop) in zip(texts, scores, itertools.pairwise(offsets.tolist()), strict=True):
        spans = ((0, len(text)),) if critique.reads == "response" else final_spans(text, reading.marks)
        steps = split_steps("".join(text[begin:end] for begin, end in spans), critique.steps)
        places = finder.find(tokens[start:stop], steps, StepText(text, spans, len(reading.prefill or "")))
        wrong = np.array(score.wrong_steps)
        rows.append(
            token_rewards(
                outcome=score.total,
                wrong=wrong,
                token_steps=places,
                outcome_weight=critique.outcome_weight,
                wrong_step_penalty=critique.wrong_step_penalty,
            )
        )
    return list_array(np.concatenate(rows).astype(np.float32), offsets)
