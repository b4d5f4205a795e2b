"""Experience: what its digest does and does not depend on, its sums, and refused tables."""

from __future__ import annotations

import hashlib
import itertools
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.tables import PARTS, experience
from tests.matrix import examples
from yatt_core.digests import experience_digest_of_iteration
from yatt_core.errors import DataError
from yatt_core.experience.batch import batch_of_table
from yatt_core.experience.table import (
    canonical_table,
    experience_schema,
    group_digests,
    sums_of,
    without_placeholders,
)

TABLE = experience(first=5, prompts=4, samples=3)
FIXED = {"int64": "<i8", "int32": "<i4", "double": "<f8", "float": "<f4", "bool": "|b1"}


def digest_by_hand(rows: list[dict], schema: pa.Schema) -> bytes:
    """Computes the digest by the documented encoding, from plain Python values."""
    rows = sorted(rows, key=lambda row: row["sample"])
    encoded = b"yatt.experience.1\0" + struct.pack("<I", len(rows))
    for name in sorted(schema.names):
        kind = schema.field(name).type
        values = [row[name] for row in rows]
        encoded += struct.pack("<H", len(name.encode())) + name.encode()
        if pa.types.is_string(kind):
            contents = b"".join((value or "").encode() for value in values)
            lengths = [-1 if value is None else len(value.encode()) for value in values]
            encoded += b"s1" + struct.pack(f"<{len(rows)}q", *lengths)
        elif pa.types.is_list(kind):
            dtype = np.dtype(FIXED[str(kind.value_type)])
            contents = b"".join(np.array(value, dtype=dtype).tobytes() for value in values)
            tag = f"{dtype.kind}{dtype.itemsize}".encode()
            encoded += tag + struct.pack(f"<{len(rows)}q", *map(len, values))
        else:
            dtype = np.dtype(FIXED[str(kind)])
            contents = np.array(values, dtype=dtype).tobytes()
            encoded += f"{dtype.kind}{dtype.itemsize}".encode()
        encoded += struct.pack("<Q", len(contents)) + contents
    return hashlib.sha256(encoded).digest()


def test_digest_is_the_documented_encoding():
    rows = TABLE.to_pylist()
    by_hand = [digest_by_hand([row for row in rows if row["prompt_ordinal"] == o], TABLE.schema) for o in range(5, 9)]
    assert group_digests(TABLE) == b"".join(by_hand)


def test_optional_columns_are_kept_checked_and_digested():
    media = TABLE.append_column("media", pa.array(["ab cd"] * TABLE.num_rows))
    turns = media.append_column("turns", pa.array([2] * TABLE.num_rows, pa.int32()))
    whole = turns.append_column("tool_error", pa.array([None] * TABLE.num_rows, pa.string()))
    assert canonical_table(whole).schema == experience_schema(PARTS, ["tool_error", "turns", "media"])
    assert len({group_digests(table) for table in (TABLE, media, turns, whole)}) == 4
    with pytest.raises(DataError, match=r"unknown columns \['mood'\]"):
        canonical_table(whole.append_column("mood", pa.array([1] * TABLE.num_rows)))
    assert batch_of_table(canonical_table(whole)).media == (("ab", "cd"),) * TABLE.num_rows
    assert batch_of_table(TABLE).media == ()


def test_digest_is_pinned_because_ledgers_store_it():
    digest = experience_digest_of_iteration(group_digests(TABLE))
    assert digest == "5c7abe8b3c19d19ac76a443c827e1d29ef34cccb0195914cf7ce50bd09d14cf5"


@settings(max_examples=examples(60), deadline=None)
@given(st.permutations(range(12)), st.sets(st.integers(1, 11)), st.permutations(range(TABLE.num_columns)))
def test_digest_and_sums_are_independent_of_row_order_chunking_and_column_order(rows, cuts, columns):
    shuffled = TABLE.take(pa.array(rows)).select([TABLE.column_names[i] for i in columns])
    bounds = [0, *sorted(cuts), 12]
    # Slices of slices, so that every chunk has its own offset into its buffers.
    chunks = [shuffled.slice(low).slice(0, high - low) for low, high in itertools.pairwise(bounds)]
    chunked = pa.concat_tables(chunks)
    assert group_digests(chunked) == group_digests(TABLE)
    assert canonical_table(chunked).equals(canonical_table(TABLE))
    assert sums_of(canonical_table(chunked)) == sums_of(TABLE)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 3))
def test_iteration_digest_is_independent_of_how_prompts_are_spread_over_files(cut):
    spread = group_digests(TABLE.slice(0, 3 * cut)) + group_digests(TABLE.slice(3 * cut))
    assert spread == group_digests(TABLE)


def change(table: pa.Table, name: str, row: int, value: object) -> pa.Table:
    values = table.column(name).to_pylist()
    values[row] = value
    return table.set_column(table.column_names.index(name), table.field(name), pa.array(values, table.field(name).type))


@pytest.mark.parametrize("name", [name for name in TABLE.column_names if name not in ("prompt_ordinal", "sample")])
def test_every_column_affects_the_digest(name):
    old = TABLE.column(name).to_pylist()[0]
    new = {str: "other", bool: not old, type(None): "", int: 99, float: 0.5}.get(type(old))
    if isinstance(old, list):
        new = [not old[0] if isinstance(old[0], bool) else old[0] + 1, *old[1:]]
    assert new != old
    changed = group_digests(change(TABLE, name, 0, new))
    assert changed[:32] != group_digests(TABLE)[:32]
    assert changed[32:] == group_digests(TABLE)[32:]


def test_moving_values_between_rows_or_columns_changes_the_digest():
    one = change(change(TABLE, "response", 0, "ab"), "response", 1, "c")
    other = change(change(TABLE, "response", 0, "a"), "response", 1, "bc")
    assert group_digests(one) != group_digests(other)


def test_a_missing_reward_error_is_not_an_empty_one():
    assert group_digests(change(TABLE, "reward_error", 0, "")) != group_digests(change(TABLE, "reward_error", 0, None))


def test_a_single_group_has_the_same_digest():
    assert group_digests(TABLE.slice(3, 3)) == group_digests(TABLE)[32:64]


def test_sums_against_plain_arithmetic():
    rows = TABLE.to_pylist()
    sums = sums_of(TABLE)
    assert sums["prompts"] == 4
    assert sums["samples"] == 12
    assert sums["response_tokens"] == sum(len(row["response_tokens"]) for row in rows)
    assert sums["prompt_tokens"] == sum(len(row["prompt_tokens"]) for row in rows)
    assert sums["loss_tokens"] == sum(sum(row["loss_mask"]) for row in rows)
    assert sums["reward"] == pytest.approx(sum(row["reward"] for row in rows))
    assert sums["reward_squared"] == pytest.approx(sum(row["reward"] ** 2 for row in rows))
    assert sums["reward/exact"] == sums["correct"] == sum(row["correct"] for row in rows)
    assert sums["truncated"] == sum(row["truncated"] for row in rows)
    assert sums["reward_errors"] == sum(row["reward_error"] is not None for row in rows)
    masked = [p for row in rows for p, m in zip(row["log_probs_sampler"], row["loss_mask"], strict=True) if m]
    assert sums["log_prob_sampler"] == pytest.approx(sum(masked))
    groups = [{row["reward"] for row in rows if row["prompt_ordinal"] == o} for o in range(5, 9)]
    assert sums["zero_spread_groups"] == sum(len(group) == 1 for group in groups)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t: t.drop_columns(["finish"]), r"missing columns \['finish'\]"),
        (lambda t: t.append_column("seconds", pa.array([0.1] * 12)), r"unknown columns \['seconds'\]"),
        (lambda t: pa.concat_tables([t, t.slice(4, 1)]), "sample 1 of prompt ordinal 6"),
        (
            lambda t: change(t, "loss_mask", 4, [True] * 40),
            "loss_mask and response_tokens .* prompt ordinal 6",
        ),
        (
            lambda t: change(t, "reward/exact", 2, float("nan")),
            "reward/exact .* prompt ordinal 5, sample 2",
        ),
        (lambda t: t.set_column(0, "prompt_ordinal", pa.array(["x"] * 12)), "wrong type or a null"),
        (lambda t: t.set_column(13, "reward", pa.array([None] * 12, pa.float64())), "wrong type or a null|no value"),
    ],
)
def test_refusals_name_column_and_sample(damage, message):
    with pytest.raises(DataError, match=message):
        canonical_table(damage(TABLE))


def test_lists_with_a_null_entry_are_refused():
    with pytest.raises(DataError):
        canonical_table(change(TABLE, "log_probs_sampler", 0, [None] * len(TABLE.column("response_tokens")[0])))


def test_schema_has_a_column_for_each_part():
    assert [name for name in experience_schema(PARTS).names if name.startswith("reward/")] == [
        "reward/exact",
        "reward/format",
    ]


def test_what_was_not_scored_is_null_and_everything_else_stays():
    assert without_placeholders(TABLE) is TABLE, "in runs whose rewards are never missing nothing is"
    first, second = PARTS
    causes = [f"{first}/raised", f"{first}/raised {second}/value", "tools/unavailable", *[None] * (TABLE.num_rows - 3)]
    rows = without_placeholders(TABLE.append_column("unscored", pa.array(causes, pa.string()))).to_pylist()
    names = ("reward", "correct", f"reward/{first}", f"reward/{second}")
    assert [[row[name] is None for name in names] for row in rows[:4]] == [
        [True, True, True, False],
        [True, True, True, True],
        [True, True, True, True],
        [False, False, False, False],
    ]
    lacking = {name for row in rows for name in row if row[name] is None and name not in ("unscored", "reward_error")}
    assert lacking == set(names)
    assert [row["reward"] for row in rows[3:]] == TABLE["reward"].to_pylist()[3:]
