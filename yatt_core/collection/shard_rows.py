"""Turns a shard's prompts into the rows of its experience: pure functions between engine batches and Arrow tables."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from yatt_core.experience.table import (
    FINISH_STOP,
    PART_PREFIX,
    STRETCH_TOKENS,
    STRETCH_VERSIONS,
    SUPPORT_SIZES,
    SUPPORT_TOKENS,
    TEACHER_PROMPT,
    TOKEN_REWARDS,
    UNREAD,
    UNSCORED,
    experience_schema,
    support_column,
)
from yatt_core.keys import WorkKey, sample_seed
from yatt_core.prompts.codec import TextCodec
from yatt_core.prompts.prompt import Completion
from yatt_core.prompts.stream import Prompt
from yatt_core.protocols.generation import GenerateRequest, GenerateResult, Int32, support_fields
from yatt_core.protocols.receipts import PromptRef
from yatt_core.rewards.scoring import SampleScore
from yatt_core.spec import RunSpec
from yatt_core.spec.rewards.judges import TemplatedPart
from yatt_core.tools.dialogue import Dialogue, DialogueResponse, Media
from yatt_core.wire.columns import fixed_column, list_array, ragged_column
from yatt_core.wire.ragged import offsets_of
from yatt_core.wire.support import Support

SCORE_COLUMNS = ("reward", "correct", "reward_error", UNSCORED, UNREAD, TOKEN_REWARDS)
TURN_SCHEMA = pa.schema(
    [
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("log_probs", pa.list_(pa.float32()), nullable=False),
        pa.field("finish", pa.int8(), nullable=False),
    ]
)
_SUPPORT_SCHEMA = pa.schema(
    [pa.field(name, pa.list_(pa.int32()), nullable=False) for name in (SUPPORT_TOKENS, SUPPORT_SIZES)]
)


@dataclass(frozen=True, slots=True)
class BatchMember:
    """One response of a decode batch, identified by the values from which its seeds are derived."""

    ordinal: int
    sample: int


def response_schema(optional: Collection[str] = ()) -> pa.Schema:
    """Returns the schema of the experience columns that come from an engine's answer.

    optional: as for `experience_schema`.
    """
    return pa.schema([field for field in experience_schema((), optional) if field.name not in SCORE_COLUMNS])


def score_schema(parts: Sequence[str], optional: Collection[str] = ()) -> pa.Schema:
    """Returns the schema of the experience columns that come from rewards.

    optional: as for `experience_schema`.
    """
    schema = experience_schema(parts, optional)
    return pa.schema([f for f in schema if f.name in SCORE_COLUMNS or f.name.startswith(PART_PREFIX)])


def split_batches(prompts: int, spec: RunSpec) -> list[range]:
    """Returns a shard's decode batches as ranges of its prompts with at most `batch_samples` responses each."""
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
    """Returns the decode batch for some prompts of a shard; seeds are derived from the prompts' ordinals.

    media: the images of each prompt.
    """
    seeds = [_seed(spec, key, member, turn=0) for member in members_of(spec, refs)]
    return GenerateRequest(
        prompts=tokens,
        seeds=np.array(seeds, dtype=np.uint64).reshape(len(tokens), -1),
        max_new_tokens=spec.rollout.max_new_tokens,
        stop_tokens=stop,
        weight_version=version,
        min_new_tokens=spec.rollout.min_new_tokens,
        **sampling_of(spec),
        media=media,
    )


def sampling_of(spec: RunSpec) -> dict[str, Any]:
    """Returns the settings of sampling that all turns share."""
    rollout = spec.rollout
    return {
        "temperature": rollout.temperature,
        "top_p": rollout.top_p,
        "top_k": rollout.top_k or 0,
        "min_p": rollout.min_p,
        "repetition_penalty": rollout.repetition_penalty,
        "record_support": spec.replays_support,
    }


def members_of(spec: RunSpec, refs: Sequence[PromptRef]) -> list[BatchMember]:
    """Returns the responses to some prompts, in row order."""
    return [BatchMember(ref.ordinal, sample) for ref in refs for sample in range(spec.rollout.samples_per_prompt)]


def next_turn_request(
    spec: RunSpec,
    key: WorkKey,
    members: Sequence[BatchMember],
    dialogue: Dialogue,
    stop: tuple[int, ...],
    version: int,
    numbers: Sequence[int] | None = None,
) -> GenerateRequest:
    """Returns the request for next turns, in which each response that continues is a prompt of its own.

    members: the members of the whole batch.
    numbers: the responses whose next turns are requested, either all in their first turn or none; by default all that continue.
    """
    chosen = dialogue.members if numbers is None else numbers
    turns = [dialogue.responses[number].turns for number in chosen]
    seeds = [[_seed(spec, key, members[number], turn)] for number, turn in zip(chosen, turns, strict=True)]
    limits = dialogue.limits(chosen)
    return GenerateRequest(
        prompts=dialogue.contexts(chosen),
        seeds=np.array(seeds, dtype=np.uint64),
        max_new_tokens=int(limits.max()),
        stop_tokens=stop,
        weight_version=version,
        min_new_tokens=0 if any(turns) else spec.rollout.min_new_tokens,
        **sampling_of(spec),
        media=dialogue.media(chosen),
        limits=limits,
        question_lengths=dialogue.question_lengths(chosen),
    )


def _seed(spec: RunSpec, key: WorkKey, member: BatchMember, turn: int) -> int:
    return sample_seed(
        seed=spec.seed,
        branch=key.branch,
        iteration=key.iteration,
        ordinal=member.ordinal,
        sample=member.sample,
        turn=turn,
    )


def turn_table(result: GenerateResult) -> pa.Table:
    """Returns an engine's results for one turn as a table for the log, with one row per member."""
    offsets = offsets_of(result.lengths)
    columns = {
        "tokens": list_array(result.tokens, offsets),
        "log_probs": list_array(result.log_probs, offsets),
        "finish": pa.array(result.finish),
    }
    if (support := result.support) is None:
        return pa.table(columns, schema=TURN_SCHEMA)
    columns |= _support_columns(support, offsets)
    return pa.table(columns, schema=pa.unify_schemas([TURN_SCHEMA, _SUPPORT_SCHEMA]))


def turn_result(table: pa.Table, version: int) -> GenerateResult:
    """Returns the result that `turn_table` was built from, without its timings."""
    tokens, offsets = ragged_column(table, "tokens")
    log_probs, _ = ragged_column(table, "log_probs")
    lengths = np.diff(offsets).astype(np.int32)
    support = support_column(table)
    finish = fixed_column(table, "finish")
    return GenerateResult(
        tokens=tokens,
        log_probs=log_probs,
        lengths=lengths,
        finish=finish,
        weight_version=version,
        seconds=0.0,
        **support_fields(support),
    )


def _support_columns(support: Support, offsets: npt.NDArray[np.int64]) -> dict[str, pa.Array]:
    """Returns the columns of the supports of some responses' tokens. offsets: of the responses, [rows + 1]."""
    return {
        SUPPORT_TOKENS: list_array(support.tokens, support.offsets[offsets]),
        SUPPORT_SIZES: list_array(support.sizes, offsets),
    }


def response_table(
    refs: Sequence[PromptRef],
    prompts: Sequence[Prompt],
    tokens: Sequence[Int32],
    responses: Sequence[DialogueResponse],
    version: int,
    several_turns: bool = False,
    with_images: bool = False,
    shown_to_teacher: Sequence[Int32] | None = None,
    stretches: Sequence[Sequence[tuple[int, int]]] | None = None,
) -> pa.Table:
    """Returns the responses to some prompts, one row per response, in the order of the request.

    several_turns: adds the columns of turns.
    with_images: adds `media`.
    shown_to_teacher: the tokens that the policy sees in place of each prompt as its own teacher; None without
        self-distillation.
    stretches: of each response, version and number of tokens of each slice; None if responses are drawn whole.

    All four depend on the run rather than on these prompts, since all shards of a run have the same columns.
    """
    samples = len(responses) // len(prompts)
    response_tokens = [response.tokens for response in responses]
    offsets = offsets_of(np.array([len(row) for row in response_tokens]))

    def per_sample(values: Sequence[object]) -> list[object]:
        return [value for value in values for _ in range(samples)]

    columns = {
        "prompt_ordinal": per_sample([ref.ordinal for ref in refs]),
        "sample": np.tile(np.arange(samples, dtype=np.int32), len(prompts)),
        "prompt_id": per_sample([prompt.prompt_id for prompt in prompts]),
        "source": per_sample([prompt.source for prompt in prompts]),
        "prompt": per_sample([prompt.text for prompt in prompts]),
        "prompt_tokens": per_sample(list(tokens)),
        "response": [response.text for response in responses],
        "response_tokens": list_array(np.concatenate(response_tokens), offsets),
        "log_probs_sampler": list_array(np.concatenate([response.log_probs for response in responses]), offsets),
        "loss_mask": list_array(np.concatenate([response.loss_mask for response in responses]), offsets),
        "finish": [response.finish for response in responses],
        "truncated": [response.finish != FINISH_STOP for response in responses],
        "weight_version": np.full(len(responses), version, dtype=np.int32),
    }
    if with_images:
        columns["media"] = per_sample([" ".join(prompt.media) for prompt in prompts])
    if shown_to_teacher is not None:
        columns[TEACHER_PROMPT] = per_sample(list(shown_to_teacher))
    if stretches is not None:
        columns["weight_version"] = np.array([parts[0][0] for parts in stretches], dtype=np.int32)
        columns[STRETCH_VERSIONS] = [[version for version, _ in parts] for parts in stretches]
        columns[STRETCH_TOKENS] = [[tokens for _, tokens in parts] for parts in stretches]
    supports = [support for response in responses if (support := response.support) is not None]
    if supports:
        columns |= _support_columns(Support.joined(supports), offsets)
    if several_turns:
        columns["turns"] = [response.turns for response in responses]
        columns["tool_error"] = [response.tool_error or None for response in responses]
    return pa.table(columns, schema=response_schema(columns))


def no_samples(spec: RunSpec) -> pa.Table:
    """Returns the samples of a shard of which no group is complete after its slice: none."""
    rewards = spec.rewards
    distillation = spec.algorithm.distillation
    optional = {
        STRETCH_VERSIONS: True,
        STRETCH_TOKENS: True,
        "turns": spec.rollout.tools is not None,
        "tool_error": spec.rollout.tools is not None,
        UNSCORED: spec.may_mask,
        UNREAD: any(isinstance(part, TemplatedPart) for part in rewards.judges),
        TOKEN_REWARDS: rewards.critique is not None,
        TEACHER_PROMPT: distillation is not None and distillation.privileged is not None,
    }
    present = [name for name, held in optional.items() if held]
    return experience_schema([part.name for part in rewards.parts], present).empty_table()


def completions_of(responses: pa.Table, codec: TextCodec) -> list[Completion]:
    """Returns the responses in a table as reward functions see them: those from which the table was built."""
    texts: list[str] = responses.column("response").to_pylist()
    finishes: list[str] = responses.column("finish").to_pylist()
    tokens, offsets = ragged_column(responses, "response_tokens")
    mask, _ = ragged_column(responses, "loss_mask")
    several = "turns" in responses.column_names
    completions = []
    for text, finish, (start, stop) in zip(texts, finishes, itertools.pairwise(offsets.tolist()), strict=True):
        own = mask[start:stop]
        spoken = _turn_texts(tokens[start:stop], own, codec) if several else [text]
        ids: list[int] = tokens[start:stop][own].tolist()
        completions.append(
            Completion.of_turns(
                text=text,
                spoken=spoken,
                tokens=len(ids),
                stop_reason=finish,
                token_ids=ids,
                reading=codec.reading,
            )
        )
    return completions


def _turn_texts(tokens: Int32, mask: npt.NDArray[np.bool_], codec: TextCodec) -> list[str]:
    """Returns the text of each of the policy's turns; between them are the tokens of tool results."""
    changes = np.flatnonzero(np.diff(mask)) + 1
    return [codec.decode_turn(part) for part in np.split(tokens, changes)[::2]]


def score_table(spec: RunSpec, scores: Sequence[SampleScore], tokens: pa.Array | None = None) -> pa.Table:
    """Returns the scores of some responses as a table, in the order of the responses.

    tokens: the rewards of each response's tokens; None without a critique.
    """
    rewards = spec.rewards
    parts = [part.name for part in rewards.parts]
    columns: dict[str, object] = {
        "reward": [score.total for score in scores],
        **{PART_PREFIX + part: [score.parts[part] for score in scores] for part in parts},
        "correct": [score.correct for score in scores],
        "reward_error": [score.error or None for score in scores],
    }
    if spec.may_mask:
        columns[UNSCORED] = [" ".join(score.missing) or None for score in scores]
    if any(isinstance(part, TemplatedPart) for part in rewards.judges):
        columns[UNREAD] = [" ".join(score.unread) or None for score in scores]
    if tokens is not None:
        columns[TOKEN_REWARDS] = tokens
    return pa.table(columns, schema=score_schema(parts, columns))
