"""What ranks read: each file once, rows once, and nothing of others' samples; the bits are those of a whole read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import LAYOUTS, Layout
from tests.engines.train.layouts import spec_of as sharded_spec
from tests.engines.train.rank_threads import in_groups, on_ranks
from tests.engines.train.support import (
    make_model_folder,
    make_spec,
    prepare,
    random_rows,
    random_task,
    write_shards,
)
from tests.engines.train.test_teachers import TEMPLATE, shown_task
from tests.engines.train.whole_reads import WholeReader
from yatt_core.engines.train.base import batch_reader, own_rows
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.learned_batch import load_learned_batch
from yatt_core.engines.train.base.own_rows import BytesRead, load_own_batch, load_own_columns
from yatt_core.engines.train.base.preparation import read_columns
from yatt_core.engines.train.model.forward import assemble
from yatt_core.engines.train.ranks import time_limits
from yatt_core.engines.train.ranks.collective import Collective, ReplicaCollective
from yatt_core.engines.train.steps.plan import PlanShape
from yatt_core.engines.train.steps.plans import Plans
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.errors import AwayError, DataError, InfrastructureError, StorageFullError, YattError
from yatt_core.experience.batch import SAMPLES_FILE, SHARD_KIND, ExperienceBatch
from yatt_core.experience.outline import ABSENT
from yatt_core.experience.prepared import PreparedColumns, write_prepared
from yatt_core.manifests import MANIFEST, entry_of_bytes, publish_manifest
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import (
    READ_BYTES,
    RECEIVED_BYTES,
    Admission,
    BatchTask,
    PrepareReceipt,
    ShardRef,
    UpdateReceipt,
)
from yatt_core.spec.run import RunSpec
from yatt_core.wire.ragged import offsets_of, ragged_positions

RANKS = 4
SHAPE = PlanShape(4, 60, epochs=1, mini_batches=1)
ONE_STEP = make_spec()
PLANS, OF_TWO = (Plans(ONE_STEP, replace(SHAPE, ranks=ranks)) for ranks in (RANKS, 2))
LIMIT = 1.2
NAMES = ("fsdp2-2", "megatron-tp2-pp1-dp2-qwen2")
SHARDED = [param for param in LAYOUTS if param.id in NAMES]


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
    monkeypatch.setattr(time_limits, "BASE_SECONDS", 20.0)
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
def test_every_rank_raises_the_error_of_the_one_that_cannot_fetch(tmp_path: Path, failure: YattError) -> None:
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


LOADING = threading.Lock()
"""A model is built under settings of the process."""


@dataclass(frozen=True)
class Method:
    """What four ranks learn.

    algorithm, objective, engine: keys of the spec.
    taught: keys of the distillation by two teachers; None without them.
    make_task: seals an iteration's experience.
    """

    algorithm: Mapping[str, Any] = field(default_factory=dict)
    objective: Mapping[str, Any] | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    taught: Mapping[str, Any] | None = None
    make_task: Callable[[Path, int], BatchTask] = random_task


def admitted_task(folder: Path, iteration: int) -> BatchTask:
    """Returns a task of samples of two versions, one without a score, of which some groups and padding are admitted."""
    rows = random_rows(iteration)
    first = rows[0]["prompt_ordinal"]
    for row in rows:
        row["weight_version"] = iteration - 1 - row["sample"] % 2
        row["unscored"] = "judge" if (row["prompt_ordinal"], row["sample"]) == (first + 1, 2) else None
    admission = Admission(groups=(first + 1, first + 2, first + 4), padding=(first + 5,))
    return replace(write_shards(folder, iteration, rows), admission=admission)


SEVERAL: dict[str, Any] = {"mini_batches": 2, "epochs": 2, "kl": {"coefficient": 0.05}}
METHODS = {
    "one step": Method(),
    "several steps": Method(SEVERAL),
    "packed": Method(SEVERAL, engine={"packed": True}),
    "frozen tokens": Method({"entropy": {"kind": "clip_cov"}, "mini_batches": 2}),
    "divergence in the reward": Method({"kl": {"where": "reward", "coefficient": 0.5}}),
    "critic": Method(
        {
            "advantage": {"kind": "gae", "gamma": 0.9, "gae_lambda": 0.8},
            "critic": {"optimizer": {"learning_rate": 1e-2}},
            "kl": {"where": "reward", "coefficient": 0.5},
            "mini_batches": 2,
        }
    ),
    "teachers": Method({"mini_batches": 2}, taught={}),
    "likely tokens of teachers": Method({"mini_batches": 2}, taught={"top_k": 5}),
    "likely tokens of itself": Method(
        {"distillation": {"privileged": {"template": TEMPLATE}, "top_k": 5}, "mini_batches": 2}, make_task=shown_task
    ),
    "admitted groups": Method(
        {**SEVERAL, "importance_correction": {"kind": "truncate", "cap": 2.0}, "off_policy_mask": {"delta": 0.1}},
        make_task=admitted_task,
    ),
    "sampled pairs": Method(objective={"kind": "dpo", "beta": 0.2, "pairs": "sampled"}),
}


@pytest.fixture(scope="module")
def teachers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [make_model_folder(tmp_path_factory.mktemp("teachers") / f"{seed}", seed) for seed in (5, 6)]


def spec_of(ranks: int, method: Method, teachers: Sequence[Path] = ()) -> RunSpec:
    algorithm = dict(method.algorithm)
    if method.taught is not None:
        models = [{"model": {"kind": "folder", "path": str(folder)}} for folder in teachers]
        algorithm["distillation"] = {"teachers": models, **method.taught}
    parts = {"algorithm": algorithm} if method.objective is None else {"objective": dict(method.objective)}
    engine = {"kind": "torch", "ranks": ranks, "micro_batch_tokens": 60, **method.engine}
    return make_spec(**parts, trainer={"engine": engine, "optimizer": {"learning_rate": 1e-2}})


def started(spec: RunSpec, folder: Path, model: Path, rank: int, ranks: int, address: str) -> TorchTrainEngine:
    engine = TorchTrainEngine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.connect(rank, ranks, address)
    with LOADING:
        engine.initialise()
        if engine._teachers is not None:
            engine._teachers.of(1)
    return engine


Learned = tuple[list[UpdateReceipt], dict[str, bytes]]
"""Each rank's update, and the prepared files by name."""


def learned(
    spec: RunSpec, model: Path, task: BatchTask, folder: Path, *, whole: bool, saved: Path | None = None
) -> Learned:
    """Returns what all ranks have learned from a task.

    whole: whether every rank reads everything.
    saved: the checkpoint of the iteration before.
    """
    receipts: list[PrepareReceipt] = []
    ranks = spec.trainer.engine.ranks

    def run(rank: int, address: str) -> UpdateReceipt:
        engine = started(spec, folder, model, rank, ranks, address)
        if whole:
            engine._batches = WholeReader(spec, engine._context)
        if saved is not None:
            engine.restore(saved, task.key.iteration - 1)
        receipt = engine.prepare(task)
        if receipt is not None:
            receipts.append(receipt)
        engine._world.barrier()
        return engine.learn(task, receipts[0])

    found = on_ranks(ranks, run)
    updates = [one for one in found if isinstance(one, UpdateReceipt)]
    assert len(updates) == ranks, found
    files = {name: (folder / receipts[0].folder / name).read_bytes() for name in receipts[0].files}
    return updates, files


def both_learned(
    spec: RunSpec, model: Path, task: BatchTask, folder: Path, saved: Path | None = None
) -> tuple[Learned, Learned]:
    """Returns what ranks learn that read shares, and what ranks learn that read everything."""
    own = learned(spec, model, task, folder, whole=False, saved=saved)
    return own, learned(spec, model, replace(task, term=2), folder, whole=True, saved=saved)


def assert_same(own: Learned, whole: Learned) -> None:
    assert own[1] == whole[1]
    for mine, theirs in zip(own[0], whole[0], strict=True):
        assert (mine.fingerprint, mine.metrics) == (theirs.fingerprint, theirs.metrics)
        assert mine.timing[RECEIVED_BYTES] > 0.0 == theirs.timing[RECEIVED_BYTES]


def size_of(folder: Path, task: BatchTask) -> int:
    """Returns the bytes of a task's shards."""
    return sum((folder / shard.folder / SAMPLES_FILE).stat().st_size for shard in task.shards)


@pytest.mark.parametrize("name", METHODS)
def test_four_ranks_learn_the_bits_that_they_learn_from_whole_reads(
    tmp_path: Path, model_folder: Path, teachers: list[Path], name: str
) -> None:
    spec = spec_of(RANKS, METHODS[name], teachers)
    task = METHODS[name].make_task(tmp_path, 1)
    own, whole = both_learned(spec, model_folder, task, tmp_path)
    assert_same(own, whole)
    updates, files = own
    read = size_of(tmp_path, task) + sum(map(len, files.values()))
    assert sum(update.timing[READ_BYTES] for update in updates) == read, "each file is read once"


def test_another_number_of_ranks_resumes_with_the_bits_of_whole_reads(tmp_path: Path, model_folder: Path) -> None:
    four, two = (spec_of(ranks, METHODS["several steps"]) for ranks in (4, 2))
    saved = tmp_path / "saved"
    saved.mkdir()
    first = random_task(tmp_path, 1)
    receipts: list[PrepareReceipt] = []

    def save(rank: int, address: str) -> None:
        engine = started(four, tmp_path, model_folder, rank, 4, address)
        receipt = engine.prepare(first)
        if receipt is not None:
            receipts.append(receipt)
        engine._world.barrier()
        engine.learn(first, receipts[0])
        engine.freeze_state()(saved)

    assert on_ranks(4, save) == [None] * 4
    assert_same(*both_learned(two, model_folder, random_task(tmp_path, 2), tmp_path, saved))


@pytest.mark.parametrize("layout", SHARDED)
def test_ranks_that_share_a_model_learn_the_bits_that_they_learn_from_whole_reads(
    tmp_path: Path, layout: Layout
) -> None:
    model = make_model_folder(tmp_path / "model")
    spec = sharded_spec(layout.engine, 1.0, SEVERAL)
    jobs = [Job(spec, model, (1, 2), reader=reader) for reader in (BatchReader, WholeReader)]
    for own, whole in run_ranks(layout.ranks, jobs, tmp_path):
        assert [one.fingerprint for one in own.receipts] == [one.fingerprint for one in whole.receipts]
        assert [one.metrics for one in own.receipts] == [one.metrics for one in whole.receipts]
        assert all(one.timing[RECEIVED_BYTES] > 0 for one in own.receipts)


def test_ranks_that_were_killed_after_prepare_learn_the_same(tmp_path: Path, model_folder: Path) -> None:
    """New ranks read everything again; one that alone has lost its batch gets its rows from the others."""
    task = random_task(tmp_path, 1)
    spec = spec_of(2, METHODS["several steps"])
    receipts: list[PrepareReceipt] = []

    def undisturbed(rank: int, address: str) -> tuple[Any, ...]:
        engine = started(spec, tmp_path, model_folder, rank, 2, address)
        receipt = engine.prepare(task)
        if receipt is not None:
            receipts.append(receipt)
        engine._world.barrier()
        update = engine.learn(task, receipts[0])
        return update.fingerprint, update.metrics

    def killed(rank: int, address: str) -> tuple[Any, ...]:
        update = started(spec, tmp_path, model_folder, rank, 2, address).learn(task, receipts[0])
        return update.fingerprint, update.metrics

    def forgetful(rank: int, address: str) -> tuple[Any, ...]:
        engine = started(spec, tmp_path, model_folder, rank, 2, address)
        engine.prepare(replace(task, term=2))
        if rank == 1:
            engine._batches.drop()
        update = engine.learn(task, receipts[0])
        return update.fingerprint, update.metrics

    expected = on_ranks(2, undisturbed)
    assert isinstance(expected[0], tuple), expected
    assert on_ranks(2, killed) == expected
    assert on_ranks(2, forgetful) == expected


def test_a_rank_that_is_alone_reads_all_and_receives_nothing(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_reader, "load_own_batch", None)
    engine = started(spec_of(1, Method()), tmp_path, model_folder, 0, 1, "")
    task = random_task(tmp_path, 1)
    prepared = prepare(engine, task)
    size = size_of(tmp_path, task) + sum((tmp_path / prepared.folder / name).stat().st_size for name in prepared.files)
    timing = engine.learn(task, prepared).timing
    assert (timing[READ_BYTES], timing[RECEIVED_BYTES]) == (size, 0)


@pytest.mark.parametrize("start", ["initialise", "restore"])
def test_what_was_read_before_a_new_start_is_forgotten(tmp_path: Path, model_folder: Path, start: str) -> None:
    engine = started(spec_of(1, Method()), tmp_path, model_folder, 0, 1, "")
    engine.freeze_state()(tmp_path)
    task = random_task(tmp_path, 1)
    prepare(engine, task)
    if start == "restore":
        engine.restore(tmp_path, 0)
    else:
        engine.initialise()
    assert engine._batches._kept is None
    prepared = prepare(engine, replace(task, term=2))
    size = size_of(tmp_path, task) + sum((tmp_path / prepared.folder / name).stat().st_size for name in prepared.files)
    assert engine.learn(task, prepared).timing[READ_BYTES] == size
