"""From a shard's prompts to the rows of its experience: pure functions between the engines' batches and Arrow tables."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa

from yatt_core.data.experience import PART_PREFIX, experience_schema
from yatt_core.data.prompts import Prompt
from yatt_core.engines.protocol import FINISHED_LENGTH, GenerateRequest, GenerateResult, Int32
from yatt_core.keys import WorkKey, sample_seed
from yatt_core.receipts import PromptRef
from yatt_core.rewards.scoring import SampleScore
from yatt_core.spec import RunSpec

SCORE_COLUMNS = ("reward", "correct", "reward_error")

Media = Sequence[tuple[str, ...]]


def response_schema(optional: Collection[str] = ()) -> pa.Schema:
    """The experience's columns that an engine's answer fills; optional: as of `experience_schema`."""
    return pa.schema([field for field in experience_schema((), optional) if field.name not in SCORE_COLUMNS])


def score_schema(parts: Sequence[str]) -> pa.Schema:
    """The experience's columns that rewards fill."""
    return pa.schema([f for f in experience_schema(parts) if f.name in SCORE_COLUMNS or f.name.startswith(PART_PREFIX)])


def split_batches(prompts: int, spec: RunSpec) -> list[range]:
    """Decode batches of a shard: ranges of its prompts, so that no batch has more than `batch_samples` responses."""
    size = max(1, spec.rollout.batch_samples // spec.rollout.samples_per_prompt)
    return [range(start, min(start + size, prompts)) for start in range(0, prompts, size)]


def training_request(
    spec: RunSpec,
    key: WorkKey,
    refs: Sequence[PromptRef],
    tokens: Sequence[Int32],
    stop: tuple[int, ...],
    version: int,
    media: Media = (),
) -> GenerateRequest:
    """The decode batch of some prompts of a shard; seeds follow the prompts' ordinals. media: the images of each."""
    samples = spec.rollout.samples_per_prompt
    seeds = [
        [sample_seed(spec.seed, key.branch, key.iteration, ref.ordinal, sample) for sample in range(samples)]
        for ref in refs
    ]
    return GenerateRequest(
        prompts=tokens,
        seeds=np.array(seeds, dtype=np.uint64),
        max_new_tokens=spec.rollout.max_new_tokens,
        stop_tokens=stop,
        weight_version=version,
        temperature=spec.rollout.temperature,
        top_p=spec.rollout.top_p,
        media=media,
    )


def greedy_request(
    spec: RunSpec, tokens: Sequence[Int32], stop: tuple[int, ...], version: int, media: Media = ()
) -> GenerateRequest:
    """One greedy response to each prompt. media: the images of each."""
    return GenerateRequest(
        prompts=tokens,
        seeds=np.zeros((len(tokens), 1), dtype=np.uint64),
        max_new_tokens=spec.rollout.max_new_tokens,
        stop_tokens=stop,
        weight_version=version,
        greedy=True,
        media=media,
    )


def split_responses(result: GenerateResult) -> list[Int32]:
    """The tokens of each response."""
    return np.split(result.tokens, np.cumsum(result.lengths)[:-1])


def response_table(
    refs: Sequence[PromptRef],
    prompts: Sequence[Prompt],
    tokens: Sequence[Int32],
    result: GenerateResult,
    texts: Sequence[str],
    with_images: bool = False,
) -> pa.Table:
    """What an engine made of some prompts, one row a response, in the order of the request. texts: of the responses.

    with_images: adds the column `media`; a matter of the run, not of these prompts, since its shards have the same columns.
    """
    samples = len(result.lengths) // len(prompts)
    offsets = np.concatenate([[0], np.cumsum(result.lengths)]).astype(np.int32)
    truncated = result.finish == FINISHED_LENGTH

    def per_sample(values: Sequence[object]) -> list[object]:
        return [value for value in values for _ in range(samples)]

    columns = {
        "prompt_ordinal": per_sample([ref.ordinal for ref in refs]),
        "sample": np.tile(np.arange(samples, dtype=np.int32), len(prompts)),
        "prompt_id": per_sample([prompt.prompt_id for prompt in prompts]),
        "source": per_sample([prompt.source for prompt in prompts]),
        "prompt": per_sample([prompt.text for prompt in prompts]),
        "prompt_tokens": per_sample(list(tokens)),
        "response": texts,
        "response_tokens": pa.ListArray.from_arrays(offsets, result.tokens),
        "log_probs_sampler": pa.ListArray.from_arrays(offsets, result.log_probs),
        "loss_mask": pa.ListArray.from_arrays(offsets, pa.array(np.ones(len(result.tokens), dtype=bool))),
        "finish": ["length" if cut else "stop" for cut in truncated],
        "truncated": truncated,
        "weight_version": np.full(len(texts), result.weight_version, dtype=np.int32),
    }
    if with_images:
        columns["media"] = per_sample([" ".join(prompt.media) for prompt in prompts])
    return pa.table(columns, schema=response_schema(columns))


def score_table(parts: Sequence[str], scores: Sequence[SampleScore]) -> pa.Table:
    """What the rewards made of some responses, in the order of the responses."""
    columns: dict[str, list[object]] = {
        "reward": [score.total for score in scores],
        **{PART_PREFIX + part: [score.parts[part] for score in scores] for part in parts},
        "correct": [score.correct for score in scores],
        "reward_error": [score.error or None for score in scores],
    }
    return pa.table(columns, schema=score_schema(parts))
