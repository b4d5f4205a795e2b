"""Which part of an iteration's experience is used for learning: admitted groups, kept samples, masked padding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.experience.tables import experience
from yatt_core.errors import DataError
from yatt_core.experience.admission import (
    admitted_batch,
    admitted_rows,
    admitted_table,
    best_and_worst,
    load_admitted_batch,
)
from yatt_core.experience.batch import batch_of_table, load_table
from yatt_core.experience.shard_log import ShardLog, adopt, read_group_facts
from yatt_core.experience.table import group_facts, sums_of
from yatt_core.keys import WorkKey
from yatt_core.protocols.receipts import Admission, BatchTask, GroupFacts, ShardRef

KEY = WorkKey("run", 0, 1, "learn")


@pytest.fixture
def task(tmp_path):
    """Returns a task with two waves of two groups each."""
    shards = []
    for wave in (1, 0):
        log = ShardLog(tmp_path, WorkKey("run", 0, 1, "collect", wave, 0), 1)
        receipt = log.seal(experience(first=2 * wave, prompts=2), {})
        shards.append(ShardRef(receipt.folder, receipt.manifest_sha256))
    return BatchTask(KEY, 1, tuple(shards))


def test_a_batch_has_the_admitted_groups_and_masked_padding_in_prompt_order(tmp_path, task):
    everything = load_admitted_batch(tmp_path, task)
    assert everything.ordinals.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3] and everything.learned.all()
    batch = load_admitted_batch(tmp_path, dataclasses.replace(task, admission=Admission((1, 3), (0,))))
    assert batch.ordinals.tolist() == [0, 0, 0, 1, 1, 1, 3, 3, 3]
    assert batch.learned.tolist() == [False] * 3 + [True] * 6
    assert not batch.loss_mask[: batch.response_offsets[3]].any(), "the padding's tokens are masked"
    kept = everything.take(np.array([3, 4, 5, 9, 10, 11]))
    assert (batch.loss_mask[batch.response_offsets[3] :] == kept.loss_mask).all()
    assert batch.take(np.array([0, 8])).learned.tolist() == [False, True]
    table = admitted_table(load_table(tmp_path, task.shards), Admission((1, 3), (0,)))
    assert table["prompt_ordinal"].to_pylist() == batch.ordinals.tolist()


def test_a_missing_group_is_reported(tmp_path, task):
    with pytest.raises(DataError, match=r"ordinals \[7\]"):
        load_admitted_batch(tmp_path, dataclasses.replace(task, admission=Admission((1, 7))))


def test_the_best_and_worst_are_kept_and_the_earlier_of_equals():
    assert best_and_worst(np.array([0.5, 1.0, 0.0, 1.0, 0.0, 1.0]), 2).tolist() == [1, 2, 3, 4]
    assert best_and_worst(np.zeros(6), 1).tolist() == [0, 1]
    ordinals = np.array([4, 4, 4, 6, 6, 6])
    rewards = np.array([0.0, 0.5, 1.0, 1.0, 0.5, 0.0])
    scored = np.ones(6, dtype=bool)
    assert admitted_rows(ordinals, rewards, scored, Admission((4, 6), keep=1)).tolist() == [0, 2, 3, 5]
    scored[2] = False
    assert admitted_rows(ordinals, rewards, scored, Admission((4, 6), keep=1)).tolist() == [0, 1, 3, 5]


def unscored(table, rows):
    """Returns the table with the column of missing scores, in which these rows lack one."""
    causes = ["judge/cut" if row in rows else None for row in range(table.num_rows)]
    return table.append_column("unscored", pa.array(causes, pa.string()))


@given(st.sets(st.integers(0, 11)))
def test_a_sample_without_a_score_is_as_if_it_had_never_been(rows):
    whole = experience(prompts=4)
    learned = [row for row in range(whole.num_rows) if row not in rows]
    masked = unscored(whole, rows)
    groups = tuple(sorted({row // 3 for row in learned}))
    batch = admitted_batch(batch_of_table(masked), Admission(groups) if groups else None)
    bare = batch_of_table(whole.take(pa.array(learned, pa.int64())))
    assert (batch.ordinals.tolist(), batch.samples.tolist()) == (bare.ordinals.tolist(), bare.samples.tolist())
    assert batch.rewards.tolist() == bare.rewards.tolist()
    assert batch.response_tokens.tolist() == bare.response_tokens.tolist()
    found = admitted_table(masked, Admission(groups) if groups else None)
    assert found["sample"].to_pylist() == bare.samples.tolist()
    facts = group_facts(masked)
    for group, least, most, count in zip(range(4), facts.reward_min, facts.reward_max, facts.scored, strict=True):
        rewards = [whole["reward"][row].as_py() for row in learned if row // 3 == group]
        assert (least, most, count) == (min(rewards, default=0.0), max(rewards, default=0.0), len(rewards))
    sums = sums_of(masked)
    assert sums["scored"] == len(learned) and sums["unscored"] == len(rows)
    assert sums["reward"] == pytest.approx(sum(whole["reward"][row].as_py() for row in learned))
    assert sums.get("unscored/judge/cut", 0.0) == len(rows)
    assert sums["reward_errors"] == sum(whole["reward_error"][row].as_py() is not None for row in learned)


def test_padding_keeps_its_samples_without_a_score():
    masked = unscored(experience(prompts=2), {0, 1, 4})
    batch = admitted_batch(batch_of_table(masked), Admission((1,), (0,)))
    assert (batch.ordinals.tolist(), batch.samples.tolist()) == ([0, 0, 0, 1, 1], [0, 1, 2, 0, 2])
    assert batch.learned.tolist() == [False] * 3 + [True] * 2


@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=2, max_size=12), st.data())
def test_kept_samples_include_the_extremes(rewards, data):
    values = np.array(rewards)
    keep = data.draw(st.integers(1, len(values) // 2))
    kept = best_and_worst(values, keep)
    assert len(set(kept.tolist())) == 2 * keep and kept.tolist() == sorted(kept.tolist())
    assert sorted(values[kept].tolist()) == sorted(rewards)[:keep] + sorted(rewards)[-keep:]


def test_group_facts_are_the_same_in_receipt_and_manifest(tmp_path):
    table = experience(first=5, prompts=3)
    facts = group_facts(table)
    rewards = table["reward"].to_pylist()
    tokens = [len(row) for row in table["response_tokens"].to_pylist()]
    groups = [slice(i, i + 3) for i in (0, 3, 6)]
    right = table["correct"].to_pylist()
    by_hand = [(min(rewards[i]), max(rewards[i]), sum(tokens[i]), sum(right[i])) for i in groups]
    assert facts == GroupFacts(*zip(*by_hand, strict=True))
    key = WorkKey("run", 0, 1, "collect", 2, 1)
    receipt = ShardLog(tmp_path, key, 1).seal(table, {})
    assert receipt.groups == facts
    assert adopt(tmp_path, key).groups == facts
    assert read_group_facts(tmp_path, receipt) == facts
    with pytest.raises(DataError):
        read_group_facts(tmp_path, dataclasses.replace(receipt, manifest_sha256="0" * 64))
