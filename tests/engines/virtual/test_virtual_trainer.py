"""The virtual trainer: its weights depend on everything that it learned from, and on nothing else."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.experience.tables import experience
from yatt_core.engines.virtual.clock import ScaledClock
from yatt_core.engines.virtual.trainer import STATE_FILE, VirtualTrainEngine
from yatt_core.errors import ConfigurationError, DataError, InfrastructureError
from yatt_core.experience.prepared import read_prepared
from yatt_core.experience.shard_log import ShardLog
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask, ShardRef
from yatt_core.spec import RunSpec, parse_spec

TREE = {
    "name": "virtual",
    "data": {"sources": [{"kind": "reasoning_gym", "task": "spell_backward"}]},
    "rewards": {"parts": [{"name": "exact", "function": "exact_match"}]},
    "rollout": {"engine": {"kind": "virtual"}},
    "trainer": {"engine": {"kind": "virtual", "fixed_seconds": 0.5, "seconds_per_token": 0.01, "clock_factor": 4}},
}


def spec_of(**changes: object) -> RunSpec:
    return parse_spec({**TREE, **changes}, "test")


def engine_of(folder: Path, rank: int = 0, slept: list[float] | None = None, **changes: object) -> VirtualTrainEngine:
    clock = ScaledClock(4, [].append if slept is None else slept.append)
    engine = VirtualTrainEngine(spec_of(**changes), RankContext(folder, folder, "", 0), clock)
    engine.connect(rank, 2, "tcp://127.0.0.1:1")
    engine.initialise()
    return engine


def sealed(folder: Path, iteration: int, table: pa.Table, shard: int = 0, term: int = 1) -> ShardRef:
    key = WorkKey("run", 0, iteration, "collect", 0, shard)
    receipt = ShardLog(folder, key, term).seal(table, {})
    return ShardRef(receipt.folder, receipt.manifest_sha256)


def task_of(iteration: int, *shards: ShardRef, term: int = 1) -> BatchTask:
    return BatchTask(WorkKey("run", 0, iteration, "learn"), term, shards)


def learn(engine: TrainEngine, task: BatchTask):
    return engine.learn(task, engine.prepare(task))


def state_of(engine: TrainEngine) -> bytes:
    return dict(engine.stream_weights())["state"].tobytes()


def test_a_loop_of_iterations_gives_receipts_and_versions(tmp_path):
    slept = []
    engine = engine_of(tmp_path, slept=slept)
    assert engine.version == 0
    receipt = engine.sft()
    assert engine.version == 0 and receipt.steps > 0 and len(receipt.weights_digest) == 64
    states = [state_of(engine)]
    for iteration in (1, 2):
        table = experience(first=4 * iteration)
        update = learn(engine, task_of(iteration, sealed(tmp_path, iteration, table)))
        counts = table["loss_mask"].combine_chunks().flatten()
        assert engine.version == update.version == iteration
        assert update.metrics["tokens"] == counts.true_count < len(counts)
        assert slept[-1] == pytest.approx((0.5 + 0.01 * len(counts)) / 4)
        assert all(np.isfinite(value) for value in update.metrics.values())
        assert set(update.fingerprint) == {"loss", "grad_norm", "weights_digest"}
        states.append(state_of(engine))
    assert len(set(states)) == 3
    assert (
        dict(engine.stream_weights())["state"].shape == (32,)
        and dict(engine.stream_weights())["state"].dtype == np.uint8
    )


def test_equal_experience_gives_equal_weights_whatever_its_shards_and_term(tmp_path):
    table = experience(prompts=4)
    whole = engine_of(tmp_path / "a")
    first = learn(whole, task_of(1, sealed(tmp_path / "a", 1, table)))
    parts = engine_of(tmp_path / "b")
    shards = [sealed(tmp_path / "b", 1, table.slice(6 * shard, 6), shard, 7) for shard in (1, 0)]
    second = learn(parts, task_of(1, *shards, term=7))
    assert state_of(whole) == state_of(parts)
    assert first.fingerprint == second.fingerprint and first.metrics == second.metrics


@pytest.mark.parametrize("change", ["token", "log_prob", "reward", "lost"])
def test_changed_experience_gives_other_weights(tmp_path, change):
    table = experience(prompts=4)
    rows = table.to_pylist()
    if change == "token":
        rows[5]["response_tokens"][0] += 1
    elif change == "log_prob":
        rows[5]["log_probs_sampler"][0] = float(
            np.nextafter(np.float32(rows[5]["log_probs_sampler"][0]), np.float32(0))
        )
    elif change == "reward":
        rows[5]["reward"] += 1e-9
    else:
        del rows[-1]
    one = engine_of(tmp_path / "a")
    other = engine_of(tmp_path / "b")
    learn(one, task_of(1, sealed(tmp_path / "a", 1, table)))
    learn(other, task_of(1, sealed(tmp_path / "b", 1, pa.Table.from_pylist(rows, schema=table.schema))))
    assert state_of(one) != state_of(other)


def test_prepared_columns_affect_the_weights(tmp_path):
    states = set()
    for normalise in ("group_std", "group_mean"):
        engine = engine_of(tmp_path / normalise, algorithm={"advantage": {"kind": normalise}})
        learn(engine, task_of(1, sealed(tmp_path / normalise, 1, experience())))
        states.add(state_of(engine))
    assert len(states) == 2


def test_prepare_writes_normalised_advantages_once(tmp_path):
    task = task_of(1, sealed(tmp_path, 1, experience()))
    receipt = engine_of(tmp_path).prepare(task)
    assert engine_of(tmp_path, rank=1).prepare(task) is None
    columns = read_prepared(tmp_path, receipt.folder, receipt.files)
    groups = columns.advantages.reshape(4, 3)
    assert np.allclose(groups.mean(1), 0) and np.abs(groups).max() > 0.5
    permuted = engine_of(tmp_path / "b", algorithm={"permute_advantages": True})
    other = permuted.prepare(task_of(1, sealed(tmp_path / "b", 1, experience())))
    shuffled = read_prepared(tmp_path / "b", other.folder, other.files).advantages
    assert (shuffled != columns.advantages).any()
    assert (np.sort(shuffled) == np.sort(columns.advantages)).all()


def test_all_ranks_hold_the_same_weights(tmp_path):
    ranks = [engine_of(tmp_path, rank) for rank in (0, 1)]
    task = task_of(1, sealed(tmp_path, 1, experience()))
    prepared = ranks[0].prepare(task)
    assert ranks[0].learn(task, prepared).fingerprint == ranks[1].learn(task, prepared).fingerprint


def test_learn_is_idempotent_and_refuses_to_skip(tmp_path):
    slept = []
    engine = engine_of(tmp_path, slept=slept)
    task = task_of(1, sealed(tmp_path, 1, experience()))
    prepared = engine.prepare(task)
    receipt = engine.learn(task, prepared)
    state = state_of(engine)
    naps = len(slept)
    assert engine.learn(task, prepared) is receipt
    assert (state_of(engine), len(slept)) == (state, naps)
    with pytest.raises(InfrastructureError, match=r"version 1;.* run/b0/i3/learn/w0/s0,.* version 2$"):
        engine.learn(task_of(3, *task.shards), prepared)
    with pytest.raises(InfrastructureError, match=r"version 1;.* version 0$"):
        engine.prepare(task)


def test_a_restored_trainer_continues_as_if_undisturbed(tmp_path):
    engine = engine_of(tmp_path)
    other = engine_of(tmp_path)
    tasks = [task_of(i, sealed(tmp_path, i, experience(first=4 * i))) for i in (1, 2)]
    learn(engine, tasks[0])
    write = engine.freeze_state()
    expected = learn(engine, tasks[1])
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    write(checkpoint)
    with pytest.raises(DataError, match=r"version 1\b.* version 2$"):
        other.restore(checkpoint, 2)
    other.restore(checkpoint, 1)
    with pytest.raises(InfrastructureError, match=r"version 1;.* version 0$"):
        other.learn(tasks[0], engine_of(tmp_path).prepare(tasks[0]))
    assert learn(other, tasks[1]).fingerprint == expected.fingerprint


def test_a_file_that_is_not_a_state_is_refused(tmp_path):
    engine = engine_of(tmp_path)
    for contents in (None, b"garbage"):
        if contents is not None:
            (tmp_path / STATE_FILE).write_bytes(contents)
        with pytest.raises(DataError, match=STATE_FILE):
            engine.restore(tmp_path, 1)


def test_before_the_start_there_are_no_weights(tmp_path):
    engine = VirtualTrainEngine(spec_of(), RankContext(tmp_path, tmp_path, "", 0))
    assert engine.version == -1
    with pytest.raises(InfrastructureError, match="initialise or restore"):
        list(engine.stream_weights())


def test_the_runs_seed_determines_the_first_weights(tmp_path):
    states = [state_of(engine_of(tmp_path, seed=seed)) for seed in (0, 0, 1)]
    assert states[0] == states[1] != states[2]


def test_a_spec_of_another_trainer_is_refused(tmp_path):
    tree = {**TREE, "rollout": {}, "trainer": {}}
    with pytest.raises(ConfigurationError, match="torch"):
        VirtualTrainEngine(parse_spec(tree, "test"), RankContext(tmp_path, tmp_path, "", 0))


def test_shards_that_are_taken_as_they_come_give_the_weights_of_all_at_once_and_take_their_time_then(tmp_path):
    slept = {"at once": [], "streamed": []}
    engines = {name: engine_of(tmp_path, slept=naps, asynchrony={"streamed": True}) for name, naps in slept.items()}
    shards = [sealed(tmp_path, 1, experience(first=4 * shard), shard) for shard in range(3)]
    engines["streamed"].accumulate(task_of(1, *shards[:2]))
    engines["streamed"].accumulate(task_of(1, *shards[:1]))
    before = sum(slept["streamed"])
    for engine in engines.values():
        learn(engine, task_of(1, *shards))
    assert state_of(engines["at once"]) == state_of(engines["streamed"])
    assert 0.0 < before < sum(slept["streamed"]) == pytest.approx(sum(slept["at once"]))
    states = {state_of(engines["at once"])}
    for other in (shards[::-1], shards[:2]):
        engine = engine_of(tmp_path, asynchrony={"streamed": True})
        engine.accumulate(task_of(1, *shards[:2]))
        learn(engine, task_of(1, *other))
        states.add(state_of(engine))
    assert len(states) == 3, "the order of the shards, and each of them, shows in the weights"
