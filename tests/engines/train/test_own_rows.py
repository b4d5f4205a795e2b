"""What ranks read: each file once, rows once, and nothing of others' samples; what fails on one of them fails on all."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.engines.train.rank_threads import in_groups
from tests.engines.train.support import (
    make_spec,
    random_rows,
    random_task,
    write_shards,
)
from yatt_core.engines.train.base import own_rows
from yatt_core.engines.train.base.learned_batch import load_learned_batch
from yatt_core.engines.train.base.own_rows import BytesRead, load_own_batch, load_own_columns
from yatt_core.engines.train.base.preparation import read_columns
from yatt_core.engines.train.model.forward import assemble
from yatt_core.engines.train.ranks import time_limits
from yatt_core.engines.train.ranks.collective import Collective, ReplicaCollective
from yatt_core.engines.train.steps.plan import PlanShape
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.errors import AwayError, DataError, InfrastructureError, StorageFullError, YattError
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND, ExperienceBatch
from yatt_core.experience.outline import ABSENT
from yatt_core.experience.prepared import PreparedColumns, write_prepared
from yatt_core.manifests import MANIFEST, entry_of_bytes, publish_manifest
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import (
    Admission,
    BatchTask,
    PrepareReceipt,
    ShardRef,
)
from yatt_core.wire.ragged import offsets_of, ragged_positions

RANKS = 4
SHAPE = PlanShape(4, 60, epochs=1, mini_batches=1)
ONE_STEP = make_spec()
PLANS, OF_TWO = (Plans(ONE_STEP, replace(SHAPE, ranks=ranks)) for ranks in (RANKS, 2))
LIMIT = 1.2


def context_of(folder: Path) -> RankContext:
    return RankContext(folder, folder / "inputs", str(folder / "model"), 0)


def rich_task(folder: Path, shards: int) -> BatchTask:
    """Returns a task with all optional columns of tokens."""
    rows = random_rows(1)
    for row in rows:
        tokens = row["response_tokens"]
        row["support_sizes"] = [2 - token % 2 for token in tokens]
        row["support_tokens"] = [one for token in tokens for one in ([token] if token % 2 else [token, token + 30])]
        row["teacher_prompt_tokens"] = [*row["prompt_tokens"], row["sample"]]
        row["token_rewards"] = [token / 7 for token in tokens]
        row["media"] = "" if row["prompt_ordinal"] % 2 else f"address-{row['prompt_ordinal']}"
    return write_shards(folder, 1, rows, shards)


def rows_held(batch: ExperienceBatch, samples: np.ndarray[Any, Any]) -> list[bytes]:
    """Returns the bits of all that belongs to some samples' tokens."""
    assert batch.support is not None
    assert batch.teacher_prompt_tokens is not None and batch.teacher_prompt_offsets is not None
    at = ragged_positions(batch.response_offsets, samples)
    support = batch.support.at(at)
    found = [
        batch.prompt_tokens[ragged_positions(batch.prompt_offsets, samples)],
        batch.teacher_prompt_tokens[ragged_positions(batch.teacher_prompt_offsets, samples)],
        *(values[at] for values in (batch.response_tokens, batch.log_probs_sampler)),
        support.tokens,
        support.sizes,
    ]
    return [array.tobytes() for array in found]


@pytest.mark.parametrize("shards", [1, 2, 5])
@pytest.mark.parametrize(
    "admission", [None, Admission((0, 1, 2, 4), (3,)), Admission((0, 2, 5), (), 1)], ids=["all", "padded", "ends"]
)
def test_a_rank_holds_its_own_samples_and_knows_the_outline_of_all(
    tmp_path: Path, shards: int, admission: Admission | None
) -> None:
    spec = make_spec(rollout={"top_k": 6}, algorithm={"sampler_support": "replay"})
    plans = Plans(spec, SHAPE)
    task = replace(rich_task(tmp_path, shards), admission=admission)
    whole, _ = load_learned_batch(spec, context_of(tmp_path), task)
    found = in_groups(RANKS, lambda group: load_own_batch(plans, context_of(tmp_path), task, group))
    expected = plans.samples_of_parts(whole, task.key)
    assert sorted(np.concatenate(expected).tolist()) == list(range(len(whole))), "one step: each sample has one rank"
    for rank, one in enumerate(found):
        assert isinstance(one, tuple)
        batch, parts, _ = one
        assert [part.tolist() for part in parts] == [part.tolist() for part in expected]
        assert batch.held is not None and np.flatnonzero(batch.held).tolist() == expected[rank].tolist()
        assert rows_held(batch, expected[rank]) == rows_held(whole, expected[rank])
        others = ragged_positions(batch.response_offsets, np.flatnonzero(~batch.held))
        assert (batch.response_tokens[others] == ABSENT).all() and np.isnan(batch.log_probs_sampler[others]).all()
        for name in ("ordinals", "samples", "prompt_offsets", "response_offsets", "loss_mask", "rewards", "correct"):
            assert getattr(batch, name).tobytes() == getattr(whole, name).tobytes(), name
        assert batch.reward_parts["exact"].tobytes() == whole.reward_parts["exact"].tobytes()
        assert batch.token_rewards is not None and whole.token_rewards is not None
        assert batch.token_rewards.tobytes() == whole.token_rewards.tobytes()
        assert (batch.media, batch.padding) == (whole.media, whole.padding)


def test_the_tokens_of_another_rank_are_refused(tmp_path: Path) -> None:
    task = random_task(tmp_path, 1)
    found = in_groups(2, lambda group: load_own_batch(OF_TWO, context_of(tmp_path), task, group))
    assert isinstance(found[0], tuple)
    batch, parts, _ = found[0]
    assemble(batch, parts[0])
    with pytest.raises(InfrastructureError, match=rf"\bsample {parts[1][0]} .*another rank"):
        assemble(batch, np.append(parts[0], parts[1][0]))


def test_four_ranks_read_little_more_than_their_shares(tmp_path: Path) -> None:
    """The responses are long, as those of real runs are."""
    noise = np.random.default_rng(0)
    rows = random_rows(1, prompts=16, samples=8)
    for row in rows:
        length = int(noise.integers(200, 300))
        row["response_tokens"] = noise.integers(0, 24, length).tolist()
        row["log_probs_sampler"] = noise.normal(-2.5, 0.3, length).tolist()
        row["loss_mask"] = [True] * length
    task = write_shards(tmp_path, 1, rows, shards=16)
    plans = Plans(ONE_STEP, replace(SHAPE, budget=4000))
    found = in_groups(RANKS, lambda group: load_own_batch(plans, context_of(tmp_path), task, group)[2])
    reads = [one for one in found if isinstance(one, BytesRead)]
    assert len(reads) == RANKS
    size = sum((tmp_path / shard.folder / SAMPLES_FILE).stat().st_size for shard in task.shards)
    assert sum(one.files for one in reads) == size, "each file is read once"
    assert max(one.files for one in reads) * RANKS / size <= LIMIT
    single = Plans(ONE_STEP, replace(plans.shape, ranks=1))
    alone = in_groups(1, lambda group: load_own_batch(single, context_of(tmp_path), task, group))
    assert isinstance(alone[0], tuple)
    assert max(one.received for one in reads) * RANKS / alone[0][2].received <= LIMIT


def test_ranks_of_one_replica_hold_the_same_samples(tmp_path: Path) -> None:
    task = random_task(tmp_path, 1)

    def held(group: Collective) -> list[int]:
        replica = ReplicaCollective(group, group.rank // 2, 2, speaks=group.rank % 2 == 1)
        batch, _, _ = load_own_batch(OF_TWO, context_of(tmp_path), task, replica)
        assert batch.held is not None
        return np.flatnonzero(batch.held).tolist()

    first, second, third, fourth = in_groups(RANKS, held)
    assert first == second and third == fourth
    assert isinstance(first, list) and isinstance(third, list)
    assert sorted(first + third) == list(range(24))


@pytest.mark.parametrize("name", [SAMPLES_FILE, MANIFEST])
def test_every_rank_raises_the_error_of_the_one_that_reads_a_damaged_file(tmp_path: Path, name: str) -> None:
    task = write_shards(tmp_path, 1, random_rows(1), shards=3)
    damaged = tmp_path / task.shards[1].folder / name
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    found = in_groups(RANKS, lambda group: load_own_batch(PLANS, context_of(tmp_path), task, group))
    assert all(isinstance(one, DataError) and str(damaged) in str(one) for one in found)
    assert len({str(one) for one in found}) == 1


FAILING = [
    "load_learning_table",
    "outline_of",
    "learned_batch",
    "places_in",
    "rows_of",
    "with_rows",
    "read_prepared_table",
    "_facts",
    "_widths",
    "_spread",
]


@pytest.mark.parametrize("name", FAILING)
def test_whatever_fails_on_one_rank_fails_on_all(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_limits, "BASE_SECONDS", 60.0)
    task = random_task(tmp_path, 1)
    whole, _ = load_learned_batch(ONE_STEP, context_of(tmp_path), task)
    prepared = prepared_of(tmp_path, task, [columns_of(whole, np.arange(24)[rank::2]) for rank in range(2)])
    real = getattr(own_rows, name)
    rank = threading.local()

    def failing(*given: Any, **options: Any) -> Any:
        if rank.number:
            raise pa.ArrowInvalid("damaged")
        return real(*given, **options)

    monkeypatch.setattr(own_rows, name, failing)

    def read(group: Collective) -> None:
        rank.number = group.rank
        batch, parts, _ = load_own_batch(OF_TWO, context_of(tmp_path), task, group)
        load_own_columns(ONE_STEP, context_of(tmp_path), batch, parts, prepared, group)

    assert [(type(one), str(one)) for one in in_groups(2, read)] == [(DataError, "Arrow: damaged")] * 2


@pytest.mark.parametrize(
    "failure", [AwayError("store is away: no answer"), StorageFullError("full"), DataError("damaged")], ids=repr
)
def test_every_rank_raises_the_error_of_the_one_that_cannot_fetch(
    tmp_path: Path, failure: YattError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time_limits, "BASE_SECONDS", 60.0)
    task = write_shards(tmp_path, 1, random_rows(1), shards=6)
    fetched: list[ShardRef] = []

    def read(group: Collective) -> None:
        def fetch(shards: Sequence[ShardRef]) -> None:
            if group.rank == 1:
                raise failure
            fetched.extend(shards)

        load_own_batch(PLANS, replace(context_of(tmp_path), fetch=fetch), task, group)

    for one in in_groups(RANKS, read):
        assert (type(one), str(one)) == (type(failure), str(failure))
    assert sorted(shard.folder for shard in fetched) == [task.shards[at].folder for at in (0, 2, 3, 4)]


def test_a_file_of_other_contents_than_it_should_have_is_refused_by_every_rank(tmp_path: Path) -> None:
    """Its digest is right, so that only Arrow notices."""
    task = random_task(tmp_path, 1)
    damaged = tmp_path / task.shards[1].folder
    data = b"no columns"
    (damaged / SAMPLES_FILE).write_bytes(data)
    digest = publish_manifest(damaged, SHARD_KIND, {}, {SAMPLES_FILE: entry_of_bytes(data)})
    task = replace(task, shards=(task.shards[0], ShardRef(task.shards[1].folder, digest)))
    found = in_groups(2, lambda group: load_own_batch(OF_TWO, context_of(tmp_path), task, group))
    assert all(isinstance(one, DataError) and str(damaged / SAMPLES_FILE) in str(one) for one in found), found


def test_a_batch_without_shards_is_refused(tmp_path: Path) -> None:
    task = replace(random_task(tmp_path, 1), shards=())
    found = in_groups(2, lambda group: load_own_batch(OF_TWO, context_of(tmp_path), task, group))
    assert all(isinstance(one, DataError) and "at least one shard" in str(one) for one in found)


def columns_of(batch: ExperienceBatch, samples: np.ndarray[Any, Any]) -> PreparedColumns:
    """Returns columns that tell every token and every sample apart."""
    at = ragged_positions(batch.response_offsets, samples)
    return PreparedColumns(
        ordinals=batch.ordinals[samples],
        samples=batch.samples[samples],
        advantages=samples + 0.5,
        response_offsets=offsets_of(batch.response_lengths[samples]),
        log_probs_old=(at + 0.25).astype(np.float32),
        teacher_tokens=np.stack([at, at + 1], axis=1).astype(np.int32),
        teacher_log_probs=np.stack([-at, -at - 1, -at - 2], axis=1).astype(np.float32),
    )


def prepared_of(folder: Path, task: BatchTask, by_rank: list[PreparedColumns]) -> PrepareReceipt:
    return PrepareReceipt(task.key, *write_prepared(folder, task.key, 1, by_rank), {}, {})


@pytest.mark.parametrize("files", [1, 3, 4])
def test_a_rank_has_the_columns_of_its_own_samples(tmp_path: Path, files: int) -> None:
    task = random_task(tmp_path, 1)
    whole, _ = load_learned_batch(ONE_STEP, context_of(tmp_path), task)
    deal = [np.arange(len(whole))[number::files] for number in range(files)]
    prepared = prepared_of(tmp_path, task, [columns_of(whole, samples) for samples in deal])
    expected, size = read_columns(ONE_STEP, tmp_path, whole, prepared)

    def read(group: Collective) -> tuple[np.ndarray[Any, Any], PreparedColumns, BytesRead]:
        batch, parts, _ = load_own_batch(PLANS, context_of(tmp_path), task, group)
        return parts[group.rank], *load_own_columns(ONE_STEP, context_of(tmp_path), batch, parts, prepared, group)

    total = 0
    for one in in_groups(RANKS, read):
        assert isinstance(one, tuple)
        own, columns, bytes_read = one
        total += bytes_read.files
        at = ragged_positions(whole.response_offsets, own)
        others = np.setdiff1d(np.arange(len(whole.response_tokens)), at)
        assert columns.advantages[own].tobytes() == expected.advantages[own].tobytes()
        for name, absent in (("log_probs_old", np.nan), ("teacher_tokens", ABSENT), ("teacher_log_probs", np.nan)):
            mine = getattr(columns, name)
            all_ranks = getattr(expected, name)
            assert mine.dtype == all_ranks.dtype and mine[at].tobytes() == all_ranks[at].tobytes(), name
            np.testing.assert_array_equal(mine[others], np.full_like(mine[others], absent))
        assert columns.log_probs_ref is None and columns.values is None
    assert total == size, "each file is read once"


def test_columns_that_all_ranks_need_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(algorithm={"entropy": {"kind": "clip_cov"}})
    plans = Plans(spec, SHAPE)
    task = random_task(tmp_path, 1)
    whole, _ = load_learned_batch(spec, context_of(tmp_path), task)
    prepared = prepared_of(tmp_path, task, [columns_of(whole, np.arange(24)[rank::4]) for rank in range(RANKS)])
    real = own_rows.encode_table
    encoded = list[int]()
    rank = threading.local()

    def counted(table: pa.Table, compress: bool = False) -> bytes:
        if rank.reads_columns:
            encoded.append(rank.number)
        return real(table, compress)

    monkeypatch.setattr(own_rows, "encode_table", counted)

    def read(group: Collective) -> PreparedColumns:
        rank.number = group.rank
        rank.reads_columns = False
        batch, parts, _ = load_own_batch(plans, context_of(tmp_path), task, group)
        rank.reads_columns = True
        return load_own_columns(spec, context_of(tmp_path), batch, parts, prepared, group)[0]

    expected, _ = read_columns(spec, tmp_path, whole, prepared)
    for one in in_groups(RANKS, read):
        assert isinstance(one, PreparedColumns) and one.log_probs_old is not None and expected.log_probs_old is not None
        assert one.log_probs_old.tobytes() == expected.log_probs_old.tobytes()
        assert one.advantages.tobytes() == expected.advantages.tobytes()
    assert sorted(encoded) == list(range(RANKS))


def test_columns_that_do_not_fit_the_experience_are_refused_by_every_rank(tmp_path: Path) -> None:
    task = random_task(tmp_path, 1)
    whole, _ = load_learned_batch(ONE_STEP, context_of(tmp_path), task)
    good = [columns_of(whole, np.arange(24)[number::4]) for number in range(4)]
    longer = columns_of(whole, np.arange(24)[1::4])
    ends = [*good[1].response_offsets[:1], *(longer.response_offsets[1:-1] - 1), longer.response_offsets[-1]]
    cases = {
        "do not match the experience": [
            [*good[:3], columns_of(whole, np.arange(24)[7::4])],
            [*good, columns_of(whole, np.array([3]))],
            [*good[:3], replace(good[3], ordinals=good[3].ordinals + 100)],
            [good[0], replace(longer, response_offsets=np.array(ends)), *good[2:]],
        ],
        "different columns": [[*good[:3], replace(good[3], log_probs_old=None)]],
    }
    for message, several in cases.items():
        for number, by_rank in enumerate(several):
            prepared = prepared_of(tmp_path / f"{message}-{number}", task, by_rank)

            def read(group: Collective, prepared: PrepareReceipt = prepared, at: str = f"{message}-{number}") -> None:
                batch, parts, _ = load_own_batch(PLANS, context_of(tmp_path), task, group)
                load_own_columns(ONE_STEP, context_of(tmp_path / at), batch, parts, prepared, group)

            found = in_groups(RANKS, read)
            assert all(isinstance(one, DataError) and message in str(one) for one in found), (message, number, found)
