"""Experience: the result columns of `collect`, one row per sample, and the values computed only from them.

Consumes Arrow tables with any order of rows, chunks or columns. Produces the canonical table (checked, and sorted by
prompt ordinal and sample), a digest per prompt, and additive statistics. All of it is a function of (spec,
data, seed, iteration): anything that depends on time, devices or attempts is telemetry and does not belong
here.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from yatt_core.errors import DataError
from yatt_core.prompts.tool_calls import KINDS
from yatt_core.protocols.receipts import LEAST_COMPARED, GroupFacts
from yatt_core.round_off import are_distinct
from yatt_core.wire.columns import fixed_column, ragged_column, text_column
from yatt_core.wire.ragged import Array, Int64
from yatt_core.wire.support import Support

Bool = npt.NDArray[np.bool_]
PART_PREFIX = "reward/"
TOKEN_REWARDS = "token_rewards"
TEACHER_PROMPT = "teacher_prompt_tokens"
SUPPORT_TOKENS = "support_tokens"
SUPPORT_SIZES = "support_sizes"
STRETCH_VERSIONS = "stretch_versions"
STRETCH_TOKENS = "stretch_tokens"
UNSCORED = "unscored"
TOOLS_UNAVAILABLE = "tools/unavailable"
"""Stands among the causes of a missing score for a tool whose service did not answer."""
UNREAD = "unread_judgements"
FINISH_STOP = "stop"
FINISH_LENGTH = "length"
FINISH_TURNS = "turns"
FINISH_TOOL = "tool"
DIGEST_HEADER = b"yatt.experience.1\0"

_COLUMNS: tuple[tuple[str, pa.DataType], ...] = (
    ("prompt_ordinal", pa.int64()),
    ("sample", pa.int32()),
    ("prompt_id", pa.string()),
    ("source", pa.int32()),
    ("prompt", pa.string()),
    ("prompt_tokens", pa.list_(pa.int32())),
    ("response", pa.string()),
    ("response_tokens", pa.list_(pa.int32())),
    ("log_probs_sampler", pa.list_(pa.float32())),
    ("loss_mask", pa.list_(pa.bool_())),
    ("finish", pa.string()),
    ("truncated", pa.bool_()),
    ("weight_version", pa.int32()),
    ("reward", pa.float64()),
    ("correct", pa.bool_()),
    ("reward_error", pa.string()),
)
_OPTIONAL: tuple[tuple[str, pa.DataType], ...] = (
    ("media", pa.string()),
    ("turns", pa.int32()),
    ("tool_error", pa.string()),
    (UNSCORED, pa.string()),
    (UNREAD, pa.string()),
    (TOKEN_REWARDS, pa.list_(pa.float32())),
    (TEACHER_PROMPT, pa.list_(pa.int32())),
    (SUPPORT_TOKENS, pa.list_(pa.int32())),
    (SUPPORT_SIZES, pa.list_(pa.int32())),
    (STRETCH_VERSIONS, pa.list_(pa.int32())),
    (STRETCH_TOKENS, pa.list_(pa.int32())),
)
"""media: content addresses of the prompt's images, separated by spaces. turns: the policy's answers in the response.
tool_error: why a tool's result is missing, else null.
unscored: the reward parts that leave the sample without a score, each as part/cause, separated by spaces; null if it has a
score. Its reward and correct are then 0 and false, and count nowhere. In runs whose rewards may be missing.
unread_judgements: the judgements without a score, each as part/cause, separated by spaces; null if there are none. In runs with
judges that write an answer.
token_rewards: the reward of each response token, with a critique.
teacher_prompt_tokens: what the policy sees as its own teacher, with self-distillation.
support_tokens: the tokens that the sampler had left at each position, one position after another; support_sizes: their number
at each position, 0 where nothing was sampled. Both if the update replays the support.
stretch_versions: the version of the weights that each slice of the response was drawn under; stretch_tokens: its tokens. Both
with slices; `weight_version` is then that of the first one.
"""
_NULLABLE = frozenset({"reward_error", "tool_error", UNSCORED, UNREAD})
_TOKEN_COLUMNS = ("response_tokens", "log_probs_sampler", "loss_mask")


def experience_schema(parts: Sequence[str], optional: Collection[str] = ()) -> pa.Schema:
    """Returns the schema of the result columns.

    `log_probs_sampler` and `loss_mask` have one entry per response token; `reward` is the weighted total.
    `reward_error` explains why a part was scored 0; it is null if none failed.

    parts: names of the reward parts, with a column `reward/<part>` each.
    optional: which of the optional columns are included; other names are ignored.
    """
    columns = [*_COLUMNS, *(column for column in _OPTIONAL if column[0] in optional)]
    fields = [pa.field(name, kind, nullable=name in _NULLABLE) for name, kind in columns]
    fields += [pa.field(PART_PREFIX + part, pa.float64(), nullable=False) for part in parts]
    return pa.schema(fields)


def parts_of(table: pa.Table) -> list[str]:
    """Returns the names of the reward parts in a table, sorted."""
    return sorted(name.removeprefix(PART_PREFIX) for name in table.column_names if name.startswith(PART_PREFIX))


def canonical_table(table: pa.Table) -> pa.Table:
    """Returns the samples with the schema's columns and types, sorted by (prompt ordinal, sample) and checked.

    Raises `DataError` for a missing or unknown column, a wrong type, a null, two rows for one sample, token
    columns of unequal length and rewards that are not finite.
    """
    schema = experience_schema(parts_of(table), table.column_names)
    missing = sorted(set(schema.names) - set(table.column_names))
    unknown = sorted(set(table.column_names) - set(schema.names))
    if missing or unknown:
        raise DataError(f"experience: missing columns {missing}, unknown columns {unknown}")
    try:
        table = table.select(schema.names).cast(schema).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise DataError(f"experience: a column has a wrong type or a null: {error}") from error
    table = sort_samples(table)
    _check_values(table)
    return table


def sort_samples(table: pa.Table) -> pa.Table:
    """Returns the rows in canonical order. Raises `DataError` if two rows belong to the same sample."""
    ordinals = fixed_column(table, "prompt_ordinal")
    samples = fixed_column(table, "sample")
    order = np.lexsort((samples, ordinals))
    twins = np.flatnonzero((np.diff(ordinals[order]) == 0) & (np.diff(samples[order]) == 0))
    if twins.size:
        row = order[twins[0]]
        raise DataError(f"experience: two rows for sample {samples[row]} of prompt ordinal {ordinals[row]}")
    return table if np.array_equal(order, np.arange(len(order))) else table.take(pa.array(order))


def group_offsets(ordinals: Int64) -> Int64:
    """Returns the index of each prompt's first row, followed by the number of rows: [prompts + 1]; ordinals sorted."""
    if not ordinals.size:
        return np.zeros(1, dtype=np.int64)
    starts = np.flatnonzero(np.diff(ordinals)) + 1
    return np.concatenate(([0], starts, [ordinals.size])).astype(np.int64)


def group_digests(table: pa.Table) -> bytes:
    """Returns the sha256 (32 bytes) of each prompt's samples, in order of prompt ordinal.

    Encoding of a prompt: header, number of rows (u32), then for each column, sorted by name: length of the name
    (u16), name, type (2 bytes); for strings and lists the rows' lengths (i64, -1 for null); length of the
    contents in bytes (u64), contents. All values are little-endian, rows sorted by sample, booleans one byte
    each.
    """
    table = sort_samples(table)
    encoders = [_encoder(table, name) for name in sorted(table.column_names)]
    bounds = group_offsets(fixed_column(table, "prompt_ordinal")).tolist()
    digests = []
    for start, stop in itertools.pairwise(bounds):
        rows = struct.pack("<I", stop - start)
        encoded = b"".join([part for encode in encoders for part in encode(start, stop)])
        digests.append(hashlib.sha256(DIGEST_HEADER + rows + encoded).digest())
    return b"".join(digests)


def is_scored(table: pa.Table) -> Bool:
    """Returns which samples of a table have a score, [N]."""
    if UNSCORED not in table.column_names:
        return np.ones(table.num_rows, dtype=np.bool_)
    return _is_null(table, UNSCORED)


def _is_null(table: pa.Table, name: str) -> Bool:
    return np.asarray(table.column(name).is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def without_placeholders(table: pa.Table) -> pa.Table:
    """Returns samples in which what was not scored is null: reward and correctness without a score, and the parts at fault.

    All parts are at fault if a tool got no answer, for the response is not whole. Columns may be missing.
    """
    if UNSCORED not in table.column_names:
        return table
    causes = [() if text is None else tuple(text.split()) for text in table.column(UNSCORED).to_pylist()]
    lacking = {
        "reward": [bool(each) for each in causes],
        "correct": [bool(each) for each in causes],
        **{PART_PREFIX + part: [_lacks_part(each, part) for each in causes] for part in parts_of(table)},
    }
    for name, is_lacking in lacking.items():
        if name in table.column_names and any(is_lacking):
            column = table.column(name)
            known = pc.if_else(pa.array(is_lacking, pa.bool_()), pa.scalar(None, column.type), column)
            table = table.set_column(table.column_names.index(name), pa.field(name, column.type), known)
    return table


def _lacks_part(causes: Sequence[str], part: str) -> bool:
    return any(cause == TOOLS_UNAVAILABLE or cause.rpartition("/")[0] == part for cause in causes)


def group_facts(table: pa.Table) -> GroupFacts:
    """Returns the facts about a canonical table's groups on which dynamic sampling and curricula base their decisions."""
    rewards = fixed_column(table, "reward")
    scored = is_scored(table)
    bounds = group_offsets(fixed_column(table, "prompt_ordinal"))
    tokens = np.diff(ragged_column(table, "response_tokens")[1][bounds])
    groups = [rewards[start:stop][scored[start:stop]].tolist() for start, stop in itertools.pairwise(bounds)]
    return GroupFacts(
        reward_min=tuple(min(group, default=0.0) for group in groups),
        reward_max=tuple(max(group, default=0.0) for group in groups),
        tokens=tuple(tokens.tolist()),
        correct=tuple(np.add.reduceat(fixed_column(table, "correct").astype(np.int64), bounds[:-1]).tolist()),
        scored=tuple(map(len, groups)) if UNSCORED in table.column_names else (),
    )


def sums_of(table: pa.Table) -> dict[str, float]:
    """Returns additive statistics of a canonical table; summed over all shards, they are the iteration's statistics.

    Token sums are over samples. `log_prob_sampler` is summed over the tokens that count (`loss_tokens`).
    Sums of rewards are over the samples that have a score, whose number is `scored`; of these, `reward_errors` counts those
    with a part that was scored 0 for a reason. `zero_spread_groups` counts prompts whose scored samples all got the same
    reward, out of the `compared_groups`, which lack no score or have at least two. `unscored` counts the
    other samples, `unread_judgements` the judgements without a score; `unscored/` and `unread_judgements/` also by part and
    cause. If responses have turns, there are
    also `turns`, the number of answered calls (`tool_calls`), and the number of samples with a failed call by the kind of
    the first failure (`tool_errors/KIND`).
    """
    rewards = fixed_column(table, "reward")
    bounds = group_offsets(fixed_column(table, "prompt_ordinal"))
    mask, _ = ragged_column(table, "loss_mask")
    log_probs, offsets = ragged_column(table, "log_probs_sampler")
    scored = is_scored(table)
    groups = [rewards[start:stop][scored[start:stop]] for start, stop in itertools.pairwise(bounds)]
    sizes = np.diff(bounds).tolist()
    compared = [group for group, size in zip(groups, sizes, strict=True) if len(group) >= min(size, LEAST_COMPARED)]
    sums = {
        "prompts": float(len(groups)),
        "samples": float(table.num_rows),
        "prompt_tokens": float(ragged_column(table, "prompt_tokens")[1][-1]),
        "response_tokens": float(offsets[-1]),
        "loss_tokens": float(np.count_nonzero(mask)),
        "truncated": float(np.count_nonzero(fixed_column(table, "truncated"))),
        "correct": float(np.count_nonzero(fixed_column(table, "correct"))),
        "reward_errors": float(np.count_nonzero(~_is_null(table, "reward_error") & scored)),
        "scored": float(np.count_nonzero(scored)),
        "compared_groups": float(len(compared)),
        "zero_spread_groups": float(sum(not are_distinct(group.min(), group.max()) for group in compared)),
        "reward": math.fsum(rewards[scored]),
        "reward_squared": math.fsum(rewards[scored] ** 2),
        "log_prob_sampler": _sum_by_group(log_probs, mask, offsets[bounds]),
    }
    if "turns" in table.column_names:
        sums |= _sums_of_tools(table)
    if SUPPORT_SIZES in table.column_names:
        sums["support_tokens"] = float(ragged_column(table, SUPPORT_TOKENS)[1][-1])
    for part in parts_of(table):
        sums[PART_PREFIX + part] = math.fsum(fixed_column(table, PART_PREFIX + part)[scored])
    for name in (UNSCORED, UNREAD):
        if name in table.column_names:
            causes = Counter(cause for text in table.column(name).to_pylist() if text for cause in text.split())
            sums[name] = float(causes.total() if name == UNREAD else np.count_nonzero(~scored))
            sums |= {f"{name}/{cause}": float(count) for cause, count in causes.items()}
    return sums


def _sums_of_tools(table: pa.Table) -> dict[str, float]:
    turns = fixed_column(table, "turns")
    errors = [text.partition(":")[0] for text in table.column("tool_error").to_pylist() if text is not None]
    by_kind = {f"tool_errors/{kind}": float(errors.count(kind)) for kind in KINDS}
    return {"turns": float(turns.sum()), "tool_calls": float((turns - 1).sum()), **by_kind}


def _sum_by_group(values: Array, mask: Array, bounds: Int64) -> float:
    """Returns the sum of the masked values, added up group by group.

    Uses running sums, which are the same on every machine, whatever its vector width.
    """
    totals = []
    for start, stop in itertools.pairwise(bounds):
        running = np.cumsum(values[start:stop][mask[start:stop]], dtype=np.float64)
        totals.append(float(running[-1]) if running.size else 0.0)
    return math.fsum(totals)


def _check_values(table: pa.Table) -> None:
    names = [*_TOKEN_COLUMNS, *(name for name in (TOKEN_REWARDS, SUPPORT_SIZES) if name in table.column_names)]
    lengths = {name: ragged_column(table, name)[1] for name in names}
    for name in names[1:]:
        differs = np.flatnonzero(np.diff(lengths[name]) != np.diff(lengths["response_tokens"]))
        if differs.size:
            raise DataError(f"experience: {name} and response_tokens differ in length at {_place(table, differs[0])}")
    _check_support(table)
    for name in ("reward", *(PART_PREFIX + part for part in parts_of(table))):
        infinite = np.flatnonzero(~np.isfinite(fixed_column(table, name)))
        if infinite.size:
            raise DataError(f"experience: {name} is not finite at {_place(table, infinite[0])}")


def support_column(table: pa.Table) -> Support | None:
    """Returns the support of each response token; None for a table without supports."""
    if SUPPORT_TOKENS not in table.column_names:
        return None
    return Support(ragged_column(table, SUPPORT_TOKENS)[0], ragged_column(table, SUPPORT_SIZES)[0])


def _check_support(table: pa.Table) -> None:
    """Raises `DataError` for supports that do not fit their sizes, or that lack the sampled token."""
    if (support := support_column(table)) is None:
        return
    tokens, offsets = ragged_column(table, "response_tokens")
    differs = np.flatnonzero(ragged_column(table, SUPPORT_TOKENS)[1] != support.offsets[offsets])
    if differs.size:
        raise DataError(f"experience: {SUPPORT_TOKENS} does not fit {SUPPORT_SIZES} at {_place(table, differs[0] - 1)}")
    lacking = np.flatnonzero(ragged_column(table, "loss_mask")[0] & ~support.contains(tokens))
    if lacking.size:
        row = int(np.searchsorted(offsets, lacking[0], side="right")) - 1
        raise DataError(f"experience: {SUPPORT_TOKENS} lacks the sampled token at {_place(table, row)}")


def _place(table: pa.Table, row: int) -> str:
    ordinals = fixed_column(table, "prompt_ordinal")
    samples = fixed_column(table, "sample")
    return f"prompt ordinal {ordinals[row]}, sample {samples[row]}"


def _encoder(table: pa.Table, name: str) -> Callable[[int, int], tuple[bytes, ...]]:
    """Returns a function that encodes a column's rows from start to stop."""
    kind = table.schema.field(name).type
    lengths: npt.NDArray[np.int64] | None = None
    offsets: Int64 = np.arange(table.num_rows + 1)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        values, offsets, lengths = text_column(table, name)
        tag = b"s1"
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        values, offsets = ragged_column(table, name)
        lengths = np.diff(offsets)
        tag = b""
    else:
        values = fixed_column(table, name)
        tag = b""
    if values.dtype.kind not in "biuf":
        raise DataError(f"experience: column {name!r} of type {kind} has no canonical encoding")
    tag = tag or f"{values.dtype.kind}{values.dtype.itemsize}".encode()
    label = name.encode()
    head = struct.pack("<H", len(label)) + label + tag
    contents = _little_endian(values)
    sizes = b"" if lengths is None else _little_endian(lengths)
    bounds = (offsets * values.dtype.itemsize).tolist()

    def encode(start: int, stop: int) -> tuple[bytes, ...]:
        low = bounds[start]
        high = bounds[stop]
        return head, sizes[8 * start : 8 * stop], struct.pack("<Q", high - low), contents[low:high]

    return encode


def _little_endian(values: Array) -> bytes:
    return values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
