"""Batches of rows to learn from without sampling, in the form that sampled experience has.

Consumes a run's inputs and references to its prompts. Produces an `ExperienceBatch` of which each prompt has two samples:
the preferred and the other response, or a labelled response and the response to the next prompt of the batch. A prompt
of supervised training has one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from yatt_core.experience.batch import ExperienceBatch
from yatt_core.inputs.reader import Inputs
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.prompt import Prompt
from yatt_core.prompts.rows import EncodedResponse, encode_response, mask_of, responses_of
from yatt_core.protocols.receipts import PromptRef
from yatt_core.spec.objective import KtoObjective
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import offsets_of

Sample = tuple[EncodedResponse, float]
"""A response, and 1 if it is preferred or desirable, otherwise 0."""


def row_batch(spec: RunSpec, inputs: Inputs, codec: TextCodec, references: Sequence[PromptRef]) -> ExperienceBatch:
    """Returns the batch of some drawn prompts. Raises `DataError` for a row that cannot be used."""
    prompts = [inputs.prompt(reference) for reference in references]
    return _batch(spec, codec, prompts, [reference.ordinal for reference in references])


def held_out_batch(spec: RunSpec, inputs: Inputs, codec: TextCodec) -> ExperienceBatch:
    """Returns all held-out rows as a batch. Raises as `row_batch` does."""
    return _batch(spec, codec, inputs.held_out, range(len(inputs.held_out)))


def _batch(spec: RunSpec, codec: TextCodec, prompts: Sequence[Prompt], ordinals: Sequence[int]) -> ExperienceBatch:
    groups = _groups(spec, codec, prompts)
    size = len(groups[0])
    samples = [sample for group in groups for sample in group]
    questions = [encoded.prompt for encoded, _ in samples]
    answers = [encoded.response for encoded, _ in samples]
    offsets = offsets_of(np.array([len(answer) for answer in answers], dtype=np.int64))
    count = len(samples)
    rewards = np.array([reward for _, reward in samples], dtype=np.float64)
    return ExperienceBatch(
        ordinals=np.repeat(np.array(ordinals, dtype=np.int64), size),
        samples=np.tile(np.arange(size, dtype=np.int32), len(groups)),
        prompt_tokens=np.concatenate(questions),
        prompt_offsets=offsets_of(np.array([len(question) for question in questions], dtype=np.int64)),
        response_tokens=np.concatenate(answers),
        response_offsets=offsets,
        log_probs_sampler=np.zeros(int(offsets[-1]), dtype=np.float32),
        loss_mask=mask_of([encoded for encoded, _ in samples]),
        rewards=rewards,
        reward_parts={},
        correct=rewards > 0.0,
        truncated=np.array([encoded.truncated for encoded, _ in samples], dtype=np.bool_),
        weight_versions=np.zeros(count, dtype=np.int32),
    )


def _groups(spec: RunSpec, codec: TextCodec, prompts: Sequence[Prompt]) -> list[list[Sample]]:
    rows = [responses_of(spec, prompt) for prompt in prompts]
    if isinstance(spec.objective, KtoObjective):
        following = [*rows[1:], rows[0]]
        return [
            [
                (encode_response(spec, codec, prompt, own.replies[0]), float(own.desirable)),
                (encode_response(spec, codec, prompt, other.replies[0]), float(own.desirable)),
            ]
            for prompt, own, other in zip(prompts, rows, following, strict=True)
        ]
    return [
        [(encode_response(spec, codec, prompt, reply), float(place == 0)) for place, reply in enumerate(row.replies)]
        for prompt, row in zip(prompts, rows, strict=True)
    ]
