"""Rewards of tokens in training: normalised over a group's tokens, and learned from token by token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.train.support import (
    batch_of,
    make_engine,
    make_spec,
    prepare,
    random_rows,
    update,
    weights_of,
    write_shards,
)
from yatt_core.digests import weights_digest
from yatt_core.engines.virtual.trainer import VirtualTrainEngine
from yatt_core.errors import DataError
from yatt_core.experience.prepared import read_prepared
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import Admission, BatchTask
from yatt_core.spec.run import RunSpec

PARTS = [{"name": "exact", "function": "exact_match"}, {"name": "wrong", "function": "a.module:rule", "weight": 0}]


def critique_spec(ranks: int = 1, **algorithm: Any) -> RunSpec:
    return make_spec(
        rewards={"parts": PARTS, "critique": {"part": "wrong"}},
        algorithm=algorithm,
        trainer={"engine": {"kind": "torch", "ranks": ranks}, "optimizer": {"learning_rate": 1e-2, "epsilon": 1e-4}},
    )


def rewarded_task(folder: Path, iteration: int) -> BatchTask:
    """Returns a task whose tokens have rewards of their own: the outcome twice, less 1 at some tokens."""
    noise = np.random.default_rng(iteration)
    rows = random_rows(iteration)
    for row in rows:
        wrong = noise.random(len(row["response_tokens"])) < 0.3
        row["token_rewards"] = (2 * row["reward"] - wrong).tolist()
    return write_shards(folder, iteration, rows)


def test_advantages_are_the_rewards_normalised_over_the_tokens_of_a_group(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(critique_spec(), tmp_path, model_folder)
    task = rewarded_task(tmp_path, 1)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert batch.token_rewards is not None and columns.token_advantages is not None and columns.values is None
    owners = np.repeat(batch.ordinals, batch.response_lengths)
    for ordinal in np.unique(owners):
        own = (owners == ordinal) & batch.loss_mask
        rewards = batch.token_rewards[own].astype(np.float64)
        expected = (rewards - rewards.mean()) / (rewards.std(ddof=1) + 1e-4)
        np.testing.assert_allclose(columns.token_advantages[own], expected, atol=1e-6)
    assert not columns.token_advantages[~batch.loss_mask].any()
    first = slice(*batch.response_offsets[:2])
    mean = columns.token_advantages[first][batch.loss_mask[first]].mean()
    assert columns.advantages[0] == pytest.approx(mean, abs=1e-6)


def test_padding_has_no_part_in_the_advantages(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(critique_spec(), tmp_path, model_folder)
    task = rewarded_task(tmp_path, 1)
    whole = []
    columns = []
    for number, admission in enumerate((None, Admission((0, 1, 2, 4, 5), (3,)))):
        prepared = prepare(engine, replace(task, admission=admission, term=1 + number))
        columns.append(read_prepared(tmp_path, prepared.folder, prepared.files).token_advantages)
    whole, padded = columns
    assert whole is not None and padded is not None
    batch = batch_of(tmp_path, task)
    padding = np.repeat(batch.ordinals == 3, batch.response_lengths)
    assert not padded[padding].any() and whole[padding].any()
    np.testing.assert_array_equal(padded[~padding], whole[~padding])


def test_kl_in_the_reward_is_subtracted_token_by_token(tmp_path: Path, model_folder: Path) -> None:
    spec = critique_spec(advantage={"kind": "group_mean"}, kl={"where": "reward", "coefficient": 0.5})
    engine = make_engine(spec, tmp_path, model_folder)
    update(engine, rewarded_task(tmp_path, 1))
    task = rewarded_task(tmp_path, 2)
    batch = batch_of(tmp_path, task)
    prepared = prepare(engine, task)
    columns = read_prepared(tmp_path, prepared.folder, prepared.files)
    assert batch.token_rewards is not None and columns.token_advantages is not None and "kl" in prepared.metrics
    plain = np.repeat(batch.ordinals, batch.response_lengths) == batch.ordinals[0]
    own = batch.token_rewards[plain & batch.loss_mask]
    moved = columns.token_advantages[plain & batch.loss_mask] - (own - own.mean())
    assert np.abs(moved).max() > 1e-4 and abs(moved.mean()) < 1e-6


def test_an_update_learns_from_tokens_and_a_restored_trainer_repeats_it(tmp_path: Path, model_folder: Path) -> None:
    digests = []
    for name, spec in (("a", critique_spec()), ("b", critique_spec()), ("plain", make_spec())):
        engine = make_engine(spec, tmp_path / name, model_folder)
        for iteration in (1, 2):
            update(engine, rewarded_task(tmp_path / name, iteration))
        digests.append(weights_digest(weights_of(engine)))
    assert digests[0] == digests[1] != digests[2]


def test_experience_without_rewards_of_tokens_is_refused(tmp_path: Path, model_folder: Path) -> None:
    engine = make_engine(critique_spec(), tmp_path, model_folder)
    with pytest.raises(DataError, match=r"token_rewards.*rewards\.critique"):
        engine.prepare(write_shards(tmp_path, 1, random_rows(1)))


def test_the_weights_of_a_virtual_trainer_depend_on_the_rewards_of_tokens(tmp_path: Path) -> None:
    virtual = {"rollout": {"engine": {"kind": "virtual"}}, "trainer": {"engine": {"kind": "virtual", "ranks": 1}}}
    rewards = {"parts": PARTS, "critique": {"part": "wrong"}}
    spec = make_spec(rewards=rewards).model_dump(mode="json") | virtual
    digests = []
    for name in ("a", "b"):
        engine = VirtualTrainEngine(RunSpec.model_validate(spec), RankContext(tmp_path / name, tmp_path, "", 0))
        engine.initialise()
        rows = random_rows(1)
        for row in rows:
            row["token_rewards"] = [float(name == "b" and place == 0) for place in range(len(row["response_tokens"]))]
        task = write_shards(tmp_path / name, 1, rows)
        prepared = engine.prepare(task)
        assert prepared is not None
        columns = read_prepared(tmp_path / name, prepared.folder, prepared.files)
        assert columns.token_advantages is not None and columns.token_advantages.any() == (name == "b")
        engine.learn(task, prepared)
        digests.append(engine.weights_digest())
    assert digests[0] != digests[1]
