"""What a round has drawn of groups that go on: the tokens so far, and the versions of the weights that they were drawn under.

Consumes responses in progress. Produces the table that a shard is sealed with beside its complete groups; the next round reads it
and goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from yatt_core.errors import DataError
from yatt_core.experience.batch import SHARD_KIND, load_table
from yatt_core.experience.table import STRETCH_TOKENS, STRETCH_VERSIONS, group_digests, sort_samples
from yatt_core.manifests import Manifest, load_manifest, read_file
from yatt_core.protocols.receipts import ShardRef
from yatt_core.wire.tables import parsing

CARRIED_FILE = "carried.parquet"
SAMPLE_COLUMNS = {"tokens": "response_tokens", "log_probs": "log_probs_sampler"}
"""What the experience calls columns of `CARRIED_SCHEMA` that have other names in it."""
CARRIED_SCHEMA = pa.schema(
    [
        pa.field("prompt_ordinal", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("log_probs", pa.list_(pa.float32()), nullable=False),
        pa.field(STRETCH_VERSIONS, pa.list_(pa.int32()), nullable=False),
        pa.field(STRETCH_TOKENS, pa.list_(pa.int32()), nullable=False),
        pa.field("finish", pa.string(), nullable=False),
    ]
)
"""tokens, log_probs: of the response so far, results of tools included. stretch_versions, stretch_tokens: as in the experience.
finish: why the response has ended; empty if it goes on."""
CARRIED_TURNS_SCHEMA = pa.schema(
    [
        *CARRIED_SCHEMA,
        pa.field("turns", pa.list_(pa.int32()), nullable=False),
        pa.field("answers", pa.string(), nullable=False),
        pa.field("answer_tokens", pa.list_(pa.int32()), nullable=False),
        pa.field("tool_error", pa.string(), nullable=False),
    ]
)
"""What runs with tools carry. turns: tokens of each of the policy's turns; the last one goes on unless it has an answer. answers,
answer_tokens: the results between the turns, as a JSON list of texts, and the tokens of each. tool_error: the first error of a
call; empty if none."""


@dataclass(frozen=True, slots=True)
class GroupSlice:
    """What a round has made of a group.

    question: tokens of its prompt.
    lengths: tokens of each of its responses so far.
    drawn: tokens of the policy in each of its responses that are new.
    is_complete: whether all of its responses have ended.
    """

    question: int
    lengths: tuple[int, ...]
    drawn: tuple[int, ...]
    is_complete: bool

    @property
    def completed(self) -> int:
        """The most new tokens of one of its responses if all have ended; 0 otherwise."""
        return max(self.drawn) if self.is_complete else 0


@dataclass(frozen=True, slots=True, eq=False)
class GoingGroups:
    """What a round has made of groups.

    table: the responses of those that go on, `CARRIED_SCHEMA` or `CARRIED_TURNS_SCHEMA`.
    groups: by prompt ordinal.
    """

    table: pa.Table
    groups: Mapping[int, GroupSlice]

    @classmethod
    def joined(cls, batches: Mapping[int, GoingGroups]) -> GoingGroups | None:
        """Returns what decode batches made of their groups, in the order of prompts; None for those that are drawn whole."""
        if not batches:
            return None
        groups = {ordinal: group for batch in batches.values() for ordinal, group in batch.groups.items()}
        return cls(pa.concat_tables([batch.table for batch in batches.values()]), dict(sorted(groups.items())))


def carried_digests(table: pa.Table) -> bytes:
    """Returns the sha256 (32 bytes) of what each group has so far, in order of prompt ordinal; empty for an empty table."""
    return group_digests(table) if table.num_rows else b""


def load_groups(run_folder: Path, shard: ShardRef, ordinals: Collection[int]) -> pa.Table:
    """Returns groups of a sealed shard as they go on from it, also those that are complete in it: without tools alone, since
    no tail goes with them.

    ordinals: of the groups' prompts; others of the shard are left out, since a later shard may have more of them. Raises as
        `load_carried`.
    """
    carried = load_carried(run_folder, shard)
    asked = pa.array(sorted(set(ordinals)), pa.int64())
    carried = carried.filter(pc.is_in(carried.column("prompt_ordinal"), value_set=asked))
    complete = set(ordinals) - set(carried.column("prompt_ordinal").to_pylist())
    if not complete:
        return carried
    if carried.schema.names != CARRIED_SCHEMA.names:
        raise DataError(
            f"{shard.folder}: prompts {sorted(complete)} are complete in it, so that their turns do not go on"
        )
    samples = load_table(run_folder, [shard])
    samples = samples.filter(
        pc.is_in(samples.column("prompt_ordinal"), value_set=pa.array(sorted(complete), pa.int64()))
    )
    samples = samples.select([SAMPLE_COLUMNS.get(name, name) for name in CARRIED_SCHEMA.names])
    return pa.concat_tables([carried, samples.rename_columns(CARRIED_SCHEMA.names).cast(CARRIED_SCHEMA)])


def load_carried(run_folder: Path, shard: ShardRef) -> pa.Table:
    """Returns the groups of a sealed shard that go on, in canonical order. Raises `DataError` naming a file that is damaged."""
    folder = run_folder / shard.folder
    return read_carried(folder, load_manifest(folder, SHARD_KIND, shard.manifest_sha256))


def read_carried(folder: Path, manifest: Manifest) -> pa.Table:
    """Returns the groups that go on of a shard with this manifest; an empty table if it has none."""
    if CARRIED_FILE not in manifest.files:
        return CARRIED_SCHEMA.empty_table()
    data = read_file(folder, CARRIED_FILE, manifest.files[CARRIED_FILE])
    with parsing(folder / CARRIED_FILE):
        table = pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
    schema = CARRIED_TURNS_SCHEMA if "turns" in table.schema.names else CARRIED_SCHEMA
    if table.schema.names != schema.names:
        raise DataError(f"{folder / CARRIED_FILE}: has columns {table.schema.names}, not {schema.names}")
    return sort_samples(table.cast(schema).combine_chunks())
