"""Ranks that read shares learn the bits that they learn from whole reads: methods, layouts, restarts, and what is counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.train.groups import Job, run_ranks
from tests.engines.train.layouts import LAYOUTS, Layout
from tests.engines.train.layouts import spec_of as sharded_spec
from tests.engines.train.rank_threads import on_ranks
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
from yatt_core.engines.train.base import batch_reader
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.torch.engine import TorchTrainEngine
from yatt_core.experience.batch import SAMPLES_FILE
from yatt_core.experience.prepared import PreparedColumns, read_prepared
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import (
    READ_BYTES,
    RECEIVED_BYTES,
    Admission,
    BatchTask,
    PrepareReceipt,
    UpdateReceipt,
)
from yatt_core.spec.run import RunSpec

RANKS = 4
NAMES = ("fsdp2-2", "megatron-tp2-pp1-dp2-qwen2")
SHARDED = [param for param in LAYOUTS if param.id in NAMES]
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
        if engine.policy.teachers is not None:
            engine.policy.teachers.of(1)
    return engine


@dataclass(frozen=True)
class Learned:
    """Each rank's update, and the prepared columns with their files by name."""

    updates: list[UpdateReceipt]
    prepared: PreparedColumns
    files: dict[str, bytes]


def learned(
    spec: RunSpec,
    model: Path,
    task: BatchTask,
    folder: Path,
    *,
    whole: bool = False,
    saved: Path | None = None,
    save: Path | None = None,
) -> Learned:
    """Returns what all ranks have learned from a task.

    whole: whether every rank reads everything.
    saved: the checkpoint of the iteration before.
    save: where the ranks save this one.
    """
    receipts: list[PrepareReceipt] = []
    ranks = spec.trainer.engine.ranks

    def run(rank: int, address: str) -> UpdateReceipt:
        engine = started(spec, folder, model, rank, ranks, address)
        if whole:
            engine.workload.batches = WholeReader(spec, engine.policy.context)
        if saved is not None:
            engine.restore(saved, task.key.iteration - 1)
        receipt = engine.prepare(task)
        if receipt is not None:
            receipts.append(receipt)
        engine.policy.world.barrier()
        update = engine.learn(task, receipts[0])
        if save is not None:
            save.mkdir(exist_ok=True)
            engine.freeze_state()(save)
        return update

    found = on_ranks(ranks, run)
    updates = [one for one in found if isinstance(one, UpdateReceipt)]
    assert len(updates) == ranks, found
    place = receipts[0].folder
    digests = receipts[0].files
    files = {name: (folder / place / name).read_bytes() for name in digests}
    return Learned(updates, read_prepared(folder, place, digests), files)


def both_learned(
    spec: RunSpec, model: Path, task: BatchTask, folder: Path, saved: Path | None = None
) -> tuple[Learned, Learned]:
    """Returns what ranks learn that read shares, and what ranks learn that read everything."""
    own = learned(spec, model, task, folder, saved=saved)
    return own, learned(spec, model, replace(task, term=2), folder, whole=True, saved=saved)


def assert_same(own: Learned, whole: Learned) -> None:
    assert own.files == whole.files
    for mine, theirs in zip(own.updates, whole.updates, strict=True):
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
    read = size_of(tmp_path, task) + sum(map(len, own.files.values()))
    assert sum(update.timing[READ_BYTES] for update in own.updates) == read, "each file is read once"


@pytest.mark.parametrize("name", ["divergence in the reward", "critic", "likely tokens of itself"])
def test_four_ranks_prepare_the_columns_that_one_prepares(tmp_path: Path, model_folder: Path, name: str) -> None:
    """Ranks need, or compute, values of samples that are not their own; after an update these are not 0."""
    method = METHODS[name]
    saved = tmp_path / "saved"
    single, several = (spec_of(ranks, method) for ranks in (1, RANKS))
    learned(single, model_folder, method.make_task(tmp_path, 1), tmp_path, save=saved)
    task = method.make_task(tmp_path, 2)
    one = learned(single, model_folder, task, tmp_path, saved=saved).prepared
    four = learned(several, model_folder, replace(task, term=2), tmp_path, saved=saved).prepared
    for column in fields(PreparedColumns):
        mine = getattr(four, column.name)
        expected = getattr(one, column.name)
        assert (mine is None) == (expected is None)
        if expected is not None:
            np.testing.assert_allclose(mine, expected, atol=1e-5, rtol=0, err_msg=column.name)


def test_another_number_of_ranks_resumes_with_the_bits_of_whole_reads(tmp_path: Path, model_folder: Path) -> None:
    four, two = (spec_of(ranks, METHODS["several steps"]) for ranks in (4, 2))
    saved = tmp_path / "saved"
    learned(four, model_folder, random_task(tmp_path, 1), tmp_path, save=saved)
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
        engine.policy.world.barrier()
        update = engine.learn(task, receipts[0])
        return update.fingerprint, update.metrics

    def killed(rank: int, address: str) -> tuple[Any, ...]:
        update = started(spec, tmp_path, model_folder, rank, 2, address).learn(task, receipts[0])
        return update.fingerprint, update.metrics

    def forgetful(rank: int, address: str) -> tuple[Any, ...]:
        engine = started(spec, tmp_path, model_folder, rank, 2, address)
        engine.prepare(replace(task, term=2))
        if rank == 1:
            engine.workload.batches.drop()
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
    assert engine.workload.batches._kept is None
    prepared = prepare(engine, replace(task, term=2))
    size = size_of(tmp_path, task) + sum((tmp_path / prepared.folder / name).stat().st_size for name in prepared.files)
    assert engine.learn(task, prepared).timing[READ_BYTES] == size
