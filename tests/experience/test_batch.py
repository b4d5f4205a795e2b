"""The batch that trainers read: canonical order, exact contents, every byte verified."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.experience.tables import SCORES, experience
from tests.matrix import examples
from yatt_core.errors import DataError
from yatt_core.experience.batch import batch_of_table, load_batch, load_table
from yatt_core.experience.shard_log import ShardLog
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import ShardRef

TABLE = experience(prompts=4, samples=3)
ROWS = TABLE.to_pylist()
BATCH = batch_of_table(TABLE)


@pytest.fixture
def shards(tmp_path):
    """Returns three shards; the second has the last and the first prompts, so that the loader must sort."""
    references = []
    for number, rows in enumerate(([3, 4, 5], [9, 10, 11, 0, 1, 2], [6, 7, 8])):
        log = ShardLog(tmp_path, WorkKey("run", 0, 1, "collect", 0, number), 1)
        receipt = log.seal(TABLE.take(rows), {})
        references.append(ShardRef(receipt.folder, receipt.manifest_sha256))
    return references


def assert_rows(batch, rows):
    assert len(batch) == len(rows)
    assert batch.ordinals.tolist() == [row["prompt_ordinal"] for row in rows]
    assert batch.samples.tolist() == [row["sample"] for row in rows]
    assert batch.rewards.tolist() == [row["reward"] for row in rows]
    assert batch.correct.tolist() == [row["correct"] for row in rows]
    assert batch.truncated.tolist() == [row["truncated"] for row in rows]
    assert batch.weight_versions.tolist() == [7] * len(rows)
    assert batch.reward_parts["exact"].tolist() == [row["reward/exact"] for row in rows]
    assert set(batch.reward_parts) == {"exact", "format"}
    for index, row in enumerate(rows):
        prompt = slice(*batch.prompt_offsets[index : index + 2])
        response = slice(*batch.response_offsets[index : index + 2])
        assert batch.prompt_tokens[prompt].tolist() == row["prompt_tokens"]
        assert batch.response_tokens[response].tolist() == row["response_tokens"]
        assert batch.log_probs_sampler[response].tolist() == row["log_probs_sampler"]
        assert batch.loss_mask[response].tolist() == row["loss_mask"]
    assert batch.lengths.tolist() == [len(row["prompt_tokens"]) + len(row["response_tokens"]) for row in rows]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 1, 0]])
def test_order_is_canonical_for_any_order_of_shards(tmp_path, shards, order):
    batch = load_batch(tmp_path, [shards[i] for i in order])
    assert_rows(batch, ROWS)
    assert batch.group_offsets.tolist() == [0, 3, 6, 9, 12]
    assert load_table(tmp_path, shards).to_pylist() == ROWS


def test_arrays_have_types_and_writable_buffers_for_torch(tmp_path, shards):
    batch = load_batch(tmp_path, shards)
    names = ("ordinals", "samples", "response_tokens", "log_probs_sampler", "loss_mask", "rewards", "correct")
    assert [getattr(batch, name).dtype.name for name in names] == [
        *("int64", "int32", "int32", "float32", "bool", "float64", "bool")
    ]
    arrays = [value for name in batch.__slots__ if isinstance(value := getattr(batch, name), np.ndarray)]
    assert all(array.flags.writeable for array in arrays)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 11), max_size=20))
def test_take_returns_the_requested_rows(indices):
    assert_rows(BATCH.take(np.array(indices, dtype=np.int64)), [ROWS[i] for i in indices])


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
@pytest.mark.parametrize("name", ["samples.parquet", "manifest.json"])
def test_a_damaged_file_is_named(tmp_path, shards, name, damage):
    path = tmp_path / shards[1].folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data if damage == "flip" else data[:-1])
    if damage == "remove":
        path.unlink()
    with pytest.raises(DataError, match=rf"{shards[1].folder}/{name}"):
        load_batch(tmp_path, shards)


def test_the_ledgers_digest_decides_which_manifest_is_right(tmp_path, shards):
    with pytest.raises(DataError, match=r"manifest\.json: sha256 is .* expected 000"):
        load_batch(tmp_path, [ShardRef(shards[0].folder, "0" * 64)])


def test_the_same_prompt_in_two_shards_is_refused(tmp_path, shards):
    with pytest.raises(DataError, match="sample 0 of prompt ordinal"):
        load_batch(tmp_path, [shards[0], shards[0]])


def test_no_shards_is_an_error(tmp_path):
    with pytest.raises(DataError, match=re.escape(str(tmp_path))):
        load_batch(tmp_path, [])


def test_sealing_refuses_samples_without_scores(tmp_path):
    with pytest.raises(DataError, match="missing columns"):
        ShardLog(tmp_path, WorkKey("run", 0, 1, "collect"), 1).seal(TABLE.drop_columns(list(SCORES)), {})
