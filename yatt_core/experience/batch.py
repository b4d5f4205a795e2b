"""An iteration's experience as flat numpy arrays, the input of trainers and algorithms.

Consumes sealed shards as listed in the ledger and checks every digest before parsing a byte. Produces an
`ExperienceBatch` in canonical order (prompt ordinal, sample), regardless of the shards' order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from yatt_core.errors import DataError
from yatt_core.experience.table import (
    PART_PREFIX,
    TEACHER_PROMPT,
    TOKEN_REWARDS,
    UNREAD,
    UNSCORED,
    experience_schema,
    group_offsets,
    is_scored,
    parts_of,
    sort_samples,
    support_column,
)
from yatt_core.manifests import load_manifest, read_file
from yatt_core.protocols.receipts import ShardRef
from yatt_core.spent_time import DATA, spent
from yatt_core.wire.columns import fixed_column, ragged_column
from yatt_core.wire.ragged import offsets_of, ragged_positions
from yatt_core.wire.support import Support
from yatt_core.wire.tables import parsing

SHARD_KIND = "shard"
SAMPLES_FILE = "samples.parquet"

Bool = npt.NDArray[np.bool_]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

UNLIKE_SHARDS = "the shards of an iteration have different columns"
_TEXTS = frozenset(
    {"prompt_id", "source", "prompt", "response", "finish", "reward_error", "turns", "tool_error", UNREAD}
)


@dataclass(frozen=True, slots=True, eq=False)
class ExperienceBatch:
    """N samples in flat arrays with T response tokens in total. Sample i's tokens are [offsets[i] : offsets[i + 1]].

    ordinals, samples, weight_versions: [N].
    prompt_tokens: [sum of prompt lengths] with prompt_offsets [N + 1].
    response_tokens, log_probs_sampler, loss_mask: [T] with response_offsets [N + 1].
    rewards (total), correct, truncated: [N].
    reward_parts: name of the part -> [N].
    scored: which samples have a score, [N]; None if all have one.
    token_rewards: [T]; None without a critique.
    teacher_prompt_tokens: [sum of lengths] with teacher_prompt_offsets [N + 1], what the policy sees as its own teacher;
        None without self-distillation.
    support: the support of each response token, T of them; None unless the update replays it.
    media: content addresses of each prompt's images, N tuples; empty if there are none.
    padding: ordinals of the groups that only fill up the batch; none of their tokens counts, and no statistic
        includes them.
    held: the samples whose tokens are here, [N]; None if all are. Of the others, only an outline is known
        (`outline.py`): their tokens are -1, their log-probabilities NaN, their supports empty.
    """

    ordinals: Int64
    samples: Int32
    prompt_tokens: Int32
    prompt_offsets: Int64
    response_tokens: Int32
    response_offsets: Int64
    log_probs_sampler: Float32
    loss_mask: Bool
    rewards: Float64
    reward_parts: Mapping[str, Float64]
    correct: Bool
    truncated: Bool
    weight_versions: Int32
    scored: Bool | None = None
    token_rewards: Float32 | None = None
    teacher_prompt_tokens: Int32 | None = None
    teacher_prompt_offsets: Int64 | None = None
    support: Support | None = None
    media: tuple[tuple[str, ...], ...] = ()
    padding: tuple[int, ...] = ()
    held: Bool | None = None

    def __len__(self) -> int:
        return len(self.ordinals)

    @property
    def prompt_lengths(self) -> Int64:
        """Tokens of each sample's prompt, [N]."""
        return np.diff(self.prompt_offsets)

    @property
    def response_lengths(self) -> Int64:
        """Tokens of each response, [N]."""
        return np.diff(self.response_offsets)

    @property
    def lengths(self) -> Int64:
        """Tokens of each sample, prompt and response combined, [N]."""
        return self.prompt_lengths + self.response_lengths

    @property
    def learned(self) -> Bool:
        """True for the samples used for learning, [N]: all but the padding."""
        return ~np.isin(self.ordinals, np.array(self.padding, dtype=np.int64))

    @property
    def group_offsets(self) -> Int64:
        """The index of each prompt's first sample, then N: [prompts + 1]; only for a batch in canonical order."""
        return group_offsets(self.ordinals)

    def shown_to_teacher(self) -> ExperienceBatch:
        """Returns the samples with the prompts that the policy sees as its own teacher.

        Raises `DataError` if they were collected without self-distillation.
        """
        tokens = self.teacher_prompt_tokens
        offsets = self.teacher_prompt_offsets
        if tokens is None or offsets is None:
            raise DataError(
                "experience: has no teacher_prompt_tokens, which algorithm.distillation.privileged needs; it was "
                "collected without"
            )
        return replace(self, prompt_tokens=tokens, prompt_offsets=offsets)

    def take(self, indices: npt.NDArray[np.integer[Any]]) -> ExperienceBatch:
        """Returns copies of the samples at these indices, in this order."""
        prompts = ragged_positions(self.prompt_offsets, indices)
        shown = self.teacher_prompt_tokens
        shown_offsets = self.teacher_prompt_offsets
        if shown is not None and shown_offsets is not None:
            shown = shown[ragged_positions(shown_offsets, indices)]
            shown_offsets = offsets_of(np.diff(shown_offsets)[indices])
        responses = ragged_positions(self.response_offsets, indices)
        return ExperienceBatch(
            ordinals=self.ordinals[indices],
            samples=self.samples[indices],
            prompt_tokens=self.prompt_tokens[prompts],
            prompt_offsets=offsets_of(self.prompt_lengths[indices]),
            response_tokens=self.response_tokens[responses],
            response_offsets=offsets_of(self.response_lengths[indices]),
            log_probs_sampler=self.log_probs_sampler[responses],
            loss_mask=self.loss_mask[responses],
            rewards=self.rewards[indices],
            reward_parts={part: values[indices] for part, values in self.reward_parts.items()},
            correct=self.correct[indices],
            truncated=self.truncated[indices],
            weight_versions=self.weight_versions[indices],
            scored=None if self.scored is None else self.scored[indices],
            token_rewards=None if self.token_rewards is None else self.token_rewards[responses],
            teacher_prompt_tokens=shown,
            teacher_prompt_offsets=shown_offsets,
            support=None if self.support is None else self.support.at(responses),
            media=tuple(self.media[i] for i in indices) if self.media else (),
            padding=self.padding,
            held=None if self.held is None else self.held[indices],
        )


def load_batch(run_folder: Path, shards: Sequence[ShardRef]) -> ExperienceBatch:
    """Returns the samples of the shards, without texts. Raises `DataError` naming a file that fails its check."""
    return batch_of_table(load_learning_table(run_folder, shards)[0])


def load_table(run_folder: Path, shards: Sequence[ShardRef]) -> pa.Table:
    """Returns all columns of the shards' samples in canonical order, including texts. Raises like `load_batch`."""
    return _load(run_folder, shards, without=frozenset())[0]


def load_learning_table(run_folder: Path, shards: Sequence[ShardRef]) -> tuple[pa.Table, int]:
    """Returns the columns of `load_batch` as a table in canonical order, and the bytes read. Raises like `load_batch`."""
    return _load(run_folder, shards, without=_TEXTS)


def batch_of_table(table: pa.Table) -> ExperienceBatch:
    """Returns the arrays of an experience table in canonical order, as writable copies."""
    prompt_tokens, prompt_offsets = ragged_column(table, "prompt_tokens")
    response_tokens, response_offsets = ragged_column(table, "response_tokens")
    shown = ragged_column(table, TEACHER_PROMPT) if TEACHER_PROMPT in table.column_names else None
    support = support_column(table)
    return ExperienceBatch(
        prompt_tokens=prompt_tokens.copy(),
        prompt_offsets=prompt_offsets,
        response_tokens=response_tokens.copy(),
        response_offsets=response_offsets,
        log_probs_sampler=ragged_column(table, "log_probs_sampler")[0].copy(),
        teacher_prompt_tokens=None if shown is None else shown[0].copy(),
        teacher_prompt_offsets=None if shown is None else shown[1],
        support=None if support is None else Support(support.tokens.copy(), support.sizes.copy()),
        **sample_arrays(table),
    )


def sample_arrays(table: pa.Table) -> dict[str, Any]:
    """Returns the fields of a batch that do not take the columns of `outline.TOKEN_LISTS`, as writable copies."""
    return {
        "ordinals": fixed_column(table, "prompt_ordinal").copy(),
        "samples": fixed_column(table, "sample").copy(),
        "loss_mask": ragged_column(table, "loss_mask")[0].copy(),
        "rewards": fixed_column(table, "reward").copy(),
        "reward_parts": {part: fixed_column(table, PART_PREFIX + part).copy() for part in parts_of(table)},
        "correct": fixed_column(table, "correct").copy(),
        "truncated": fixed_column(table, "truncated").copy(),
        "weight_versions": fixed_column(table, "weight_version").copy(),
        "scored": is_scored(table) if UNSCORED in table.column_names else None,
        "token_rewards": ragged_column(table, TOKEN_REWARDS)[0].copy() if TOKEN_REWARDS in table.column_names else None,
        "media": tuple(tuple(text.split()) for text in table["media"].to_pylist())
        if "media" in table.column_names
        else (),
    }


@spent(DATA, "read experience")
def _load(run_folder: Path, shards: Sequence[ShardRef], without: frozenset[str]) -> tuple[pa.Table, int]:
    found = [_load_shard(run_folder, shard, without) for shard in shards]
    if not found:
        raise DataError(f"{run_folder}: a batch needs at least one shard")
    tables = [table for table, _ in found]
    if any(table.schema != tables[0].schema for table in tables):
        raise DataError(f"{run_folder}: {UNLIKE_SHARDS}")
    return sort_samples(pa.concat_tables(tables).combine_chunks()), sum(size for _, size in found)


def _load_shard(run_folder: Path, shard: ShardRef, without: frozenset[str]) -> tuple[pa.Table, int]:
    folder = run_folder / shard.folder
    manifest = load_manifest(folder, SHARD_KIND, shard.manifest_sha256)
    if SAMPLES_FILE not in manifest.files:
        raise DataError(f"{folder}: {SAMPLES_FILE} is missing from its manifest")
    data = read_file(folder, SAMPLES_FILE, manifest.files[SAMPLES_FILE])
    with parsing(folder / SAMPLES_FILE):
        file = pq.ParquetFile(pa.BufferReader(data))
        names = [name for name in file.schema_arrow.names if name not in without]
        parts = [name.removeprefix(PART_PREFIX) for name in names if name.startswith(PART_PREFIX)]
        schema = experience_schema(parts, names)
        table = file.read(columns=names, use_threads=False)
        table = table.cast(pa.schema([schema.field(name) for name in names]))
    if shard.without:
        stale = pc.is_in(table.column("prompt_ordinal"), value_set=pa.array(shard.without, pa.int64()))
        table = table.filter(pc.invert(stale))
    return table, len(data)
