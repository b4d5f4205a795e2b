"""The successor of a killed driver attaches to its actors: they live on, work continues, nothing is generated twice."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest
import ray
from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_list

from tests.cluster.conftest import Head
from tests.cluster.run_actors import (
    RUN,
    DriverBeat,
    actors_of,
    actors_spec,
    batch_of,
    begin,
    driver_killed_at,
    driver_stopped_at,
    pid_of,
    pids,
    shard_tasks,
)
from tests.waiting import wait_until
from yatt_core.errors import FencedError, LostActorError
from yatt_core.experience.chunks import read_chunk, write_chunk
from yatt_core.experience.shard_log import find_sealed
from yatt_core.keys import shard_folder
from yatt_core.protocols.receipts import ShardReceipt, ShardTask
from yatt_core.run_actors.run_actors import RunActors

NAMESPACE = "actor_sets"
VERIFY = pytest.mark.verify
SLOW = "rollout.engine.base_seconds=0.02"


@pytest.mark.parametrize(
    "moment", [*(pytest.param(m, marks=VERIFY) for m in ("start", "load", "sft", "learn")), "collect"]
)
def test_the_next_driver_attaches_to_the_actors_of_a_killed_one(
    attached: Head, actor_sets: list[RunActors], tmp_path: Path, moment: str
) -> None:
    spec = actors_spec(SLOW)
    driver_killed_at(moment, attached, NAMESPACE, tmp_path, SLOW)
    before = {name: ray.get_actor(name)._actor_id for name in ray.util.list_named_actors()}
    # Ray drops an actor whose process was not yet up when the job that created it ended.
    assert len(before) == 7 or moment == "start"
    with DriverBeat(2):
        actor_sets.append(actors := actors_of(spec, tmp_path, 2))
        created = actors.start()
        assert len(created) == 7 - len(before)
        standing = actors.load(actors.materialise())
        assert standing.created == created
        after = {name: ray.get_actor(name)._actor_id for name in ray.util.list_named_actors()}
        assert {name: after[name] for name in before} == before
        version = {"start": -1, "load": -1, "sft": 0, "collect": 0, "learn": 1}[moment]
        assert standing.trainer_version == version
        assert (standing.trainer_key is not None) == (moment == "learn")
        assert standing.checkpoint_in_flight == (moment == "learn")
        if moment == "learn":
            receipt = actors.checkpoint_result(60.0)
            assert receipt is not None and (receipt.term, receipt.iteration) == (1, 1)
            assert standing.trainer_key == batch_of([], 1).key
            assert [receipt.version for receipt in actors.sync(1)] == [1, 1]
        if version <= 0:
            warm = actors.sft()
            assert actors.sft() == warm
            assert len(actors.sync(0)) == (0 if moment == "collect" else 2)
            tasks = shard_tasks(spec, 2)
            receipts = list(actors.begin_collecting(tasks).receipts())
            assert {receipt.term for receipt in receipts} == ({1} if moment == "collect" else {2})
            assert [len(find_sealed(tmp_path, task.key)) for task in tasks] == [1] * len(tasks)


def test_a_suspended_driver_holds_no_controller(
    attached: Head, actor_sets: list[RunActors], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yatt_core.run_actors.run_actors.LOOK_SECONDS", 1.0)
    monkeypatch.setattr("yatt_core.run_actors.streams.BLOCKED_LOOK_SECONDS", 1.0)
    spec = actors_spec(SLOW)
    with driver_stopped_at("collect", attached, NAMESPACE, tmp_path, SLOW), DriverBeat(2):
        actor_sets.append(actors := actors_of(spec, tmp_path, 2))
        actors.start()
        actors.load(actors.materialise())
        actors.sync(0)
        tasks = shard_tasks(spec, 2)
        # Until the deadline of ten minutes, the controllers' old calls, whose results nobody takes, would not end.
        assert len(list(actors.begin_collecting(tasks).receipts())) == len(tasks)
        assert all("an earlier driver, which is suspended" in failure.reason for failure in actors.failures)
        assert actors.failures, "at least one had begun a stream of results"
        assert [len(find_sealed(tmp_path, task.key)) for task in tasks] == [1] * len(tasks)


def test_calls_of_a_replaced_driver_are_refused(actor_sets: list[RunActors], tmp_path: Path) -> None:
    spec = actors_spec()
    actor_sets.append(old := actors_of(spec, tmp_path, 1))
    begin(old)
    with DriverBeat(2):
        actor_sets.append(new := actors_of(spec, tmp_path, 2))
        begin(new)
        with pytest.raises(FencedError, match="term 1 was replaced by 2"):
            list(old.begin_collecting(shard_tasks(spec, 1)).receipts())
        with pytest.raises(FencedError):
            old.sync(0)
        with pytest.raises(FencedError):
            old.sft()
        before = pids()
        old.deadline = 0.0
        with pytest.raises(FencedError):
            list(old.begin_collecting(shard_tasks(spec, 1)).receipts())
        with pytest.raises(FencedError):
            old.start()
        old.stop()
        assert len(list(new.begin_collecting(shard_tasks(spec, 2)).receipts())) == spec.data.prompts_per_iteration
        assert pids() == before, "a replaced driver must not end its successor's actors"


def test_cut_shards_are_not_started_and_controllers_are_free_again(actor_sets: list[RunActors], tmp_path: Path) -> None:
    """One engine, which takes about a quarter of a second for each of eight shards and works on two at a time."""
    spec = actors_spec("controllers.count=1", "rollout.engine.instances=1", "rollout.engine.base_seconds=0.1")
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    tasks = shard_tasks(spec, 1)
    receipts = actors.begin_collecting(tasks).receipts()
    first = next(receipts)
    actors.cut()
    early = [first, *receipts]
    assert len(early) < len(tasks)
    assert len(list(actors.begin_collecting(tasks).receipts())) == len(tasks), (
        "shards that were cut are made when requested again"
    )


def test_collection_and_evaluation_finish_with_what_is_there(actor_sets: list[RunActors], tmp_path: Path) -> None:
    """One engine, which takes about half a second for each decode batch of four answers."""
    slow = (
        "controllers.count=1",
        "rollout.engine.instances=1",
        "rollout.engine.base_seconds=0.1",
        "rollout.batch_samples=4",
        "data.held_out=16",
    )
    spec = actors_spec(*slow)
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    tasks = shard_tasks(spec, 1)
    made: list[ShardReceipt] = []
    for receipt in actors.begin_collecting(tasks).receipts(lambda: len(made) >= 2):
        made.append(receipt)
    assert 2 <= len(made) < len(tasks)
    actors.cut()
    held_out = spec.data.held_out
    some = actors.evaluate(RUN, 0, held_out, None, lambda answered: answered >= 4)
    assert 4 <= len(some.rows) == len(some.tasks) < some.total == held_out
    again = actors.evaluate(RUN, 0, held_out, some.rows)
    assert (again.rows, again.tasks) == (some.rows, some.tasks), "the same tasks have the same answers"
    whole = actors.evaluate(RUN, 0, held_out)
    assert whole.rows == tuple(range(held_out))
    assert tuple(whole.tasks[row] for row in some.rows) == some.tasks


def test_new_controllers_are_told_of_engines_whose_class_ray_has_forgotten(
    actor_sets: list[RunActors], tmp_path: Path
) -> None:
    spec = actors_spec("controllers.count=1")
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    for key in _internal_kv_list(f"ActorClass:{ray.get_runtime_context().get_job_id()}:", namespace="fun"):
        _internal_kv_del(key, namespace="fun")
    os.kill(pid_of("controller-0"), signal.SIGKILL)
    wait_until(lambda: not any(name.startswith("controller") for name in ray.util.list_named_actors()))
    with DriverBeat(2):
        actor_sets.append(after := actors_of(spec, tmp_path, 2))
        begin(after)
        tasks = shard_tasks(spec, 2)
        assert len(list(after.begin_collecting(tasks).receipts())) == len(tasks)


@VERIFY
def test_a_rank_that_waits_for_an_uncalled_rank_is_replaced(actor_sets: list[RunActors], tmp_path: Path) -> None:
    """The driver died after calling one rank and before calling the other."""
    spec = actors_spec("trainer.engine.fixed_seconds=1000000")
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    actors.start()
    actors.load(actors.materialise())
    actors._ranks[0].sft.remote(1)
    with DriverBeat(2):
        actor_sets.append(after := actors_of(spec, tmp_path, 2))
        assert after.start() == ("trainer-0", "trainer-1")
        assert after.load(after.materialise()).trainer_version == -1


@VERIFY
def test_work_continues_if_only_the_engines_know_the_new_driver(actor_sets: list[RunActors], tmp_path: Path) -> None:
    spec = actors_spec(SLOW)
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    receipts = actors.begin_collecting(shard_tasks(spec, 1)).receipts()
    first = next(receipts)
    with DriverBeat(2):
        actor_sets.append(after := actors_of(spec, tmp_path, 2))
        begin(after)
        assert len([first, *receipts]) == spec.data.prompts_per_iteration


def test_another_controller_resumes_a_lost_controllers_shards_from_their_chunks(
    actor_sets: list[RunActors], tmp_path: Path
) -> None:
    actor_sets.append(actors := started_actors(tmp_path))
    tasks = two_shards()
    with ThreadPoolExecutor(1) as elsewhere:
        collecting = elsewhere.submit(list, actors.begin_collecting(tasks).receipts())
        kill_after_a_chunk(tmp_path, tasks[0], "controller-0")
        receipts = sorted(collecting.result(60), key=lambda receipt: receipt.key)
    assert receipts[1].folder == str(shard_folder(tasks[1].key, 1))
    assert receipts[0].folder == str(shard_folder(tasks[0].key, 1, writer=1))
    check_resumed(tmp_path, receipts[0])
    assert [failure.actor for failure in actors.failures] == ["controller-0"]
    assert actors.outgrown() and actors.failures[0].node
    wait_until(lambda: not any(name.startswith("controller-0") for name in pids()))
    assert actors.start() == ("controller-0",)
    assert not actors.outgrown()


@VERIFY
def test_new_controllers_resume_from_the_chunks_if_all_were_lost(actor_sets: list[RunActors], tmp_path: Path) -> None:
    actor_sets.append(actors := started_actors(tmp_path))
    tasks = two_shards()
    with ThreadPoolExecutor(1) as elsewhere:
        collecting = elsewhere.submit(list, actors.begin_collecting(tasks).receipts())
        kill_after_a_chunk(tmp_path, tasks[0], "controller-0", "controller-1")
        with pytest.raises(LostActorError, match="controller"):
            collecting.result(60)
    wait_until(lambda: not any(name.startswith("controller") for name in pids()))
    assert actors.start() == ("controller-0", "controller-1")
    actors.load(actors.materialise())
    receipts = sorted(actors.begin_collecting(tasks).receipts(), key=lambda receipt: receipt.key)
    # Writer 1 was the other controller, if it was asked to take over before it was known to be lost.
    assert receipts[0].folder in [str(shard_folder(tasks[0].key, 1, writer=writer)) for writer in (1, 2)]
    check_resumed(tmp_path, receipts[0])


CHUNKED = ("rollout.engine.base_seconds=0.2", "rollout.batch_samples=4")


def started_actors(folder: Path) -> RunActors:
    """Returns actors, one of whose two engines is stopped until a controller dies, so that no shard completes sooner."""
    actors = actors_of(actors_spec(*CHUNKED), folder, 1)
    begin(actors)
    os.kill(pid_of("rollout-1"), signal.SIGSTOP)
    return actors


def two_shards() -> list[ShardTask]:
    """Returns two tasks of four prompts each; each prompt is a separate decode batch."""
    tasks = shard_tasks(actors_spec(*CHUNKED), 1)
    prompts = [task.prompts[0] for task in tasks]
    return [replace(task, prompts=tuple(prompts[i::2])) for i, task in enumerate(tasks[:2])]


def kill_after_a_chunk(folder: Path, task: ShardTask, *controllers: str) -> None:
    """Kills controllers once a chunk of a shard is durable, and changes that chunk's contents."""
    lost = [pid_of(name) for name in controllers]
    begun = folder / shard_folder(task.key, 1)
    try:
        wait_until(lambda: list(begun.glob("*.responses.arrow")), 60)
        for pid in lost:
            os.kill(pid, signal.SIGSTOP)
        mark_responses(next(begun.glob("*.responses.arrow")))
        for pid in lost:
            os.kill(pid, signal.SIGKILL)
    finally:
        os.kill(pid_of("rollout-1"), signal.SIGCONT)


def check_resumed(folder: Path, receipt: ShardReceipt) -> None:
    """Checks that the durable chunk was reused, not generated again."""
    responses = pd.read_parquet(folder / receipt.folder / "samples.parquet")["response"].tolist()
    assert responses.count("marked") == 4 and len(responses) == 16


def mark_responses(path: Path) -> None:
    """Replaces a chunk's responses, as if other ones had been sampled."""
    chunk = read_chunk(path)
    assert chunk is not None
    place = chunk.table.column_names.index("response")
    field = chunk.table.schema.field(place)
    marked = chunk.table.set_column(place, field, pa.array(["marked"] * chunk.table.num_rows))
    write_chunk(path, marked, chunk.labels)


@pytest.mark.parametrize("lost", ["rollout-1", *(pytest.param(m, marks=VERIFY) for m in ("dispatcher-0", "trainer-1"))])
def test_lost_actors_are_replaced_and_the_rest_is_kept(actor_sets: list[RunActors], tmp_path: Path, lost: str) -> None:
    spec = actors_spec(SLOW)
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    before = pids()
    os.kill(pid_of(lost), signal.SIGKILL)
    tasks = shard_tasks(spec, 1)
    with pytest.raises(LostActorError, match="dispatcher" if lost == "dispatcher-0" else lost):
        list(actors.begin_collecting(tasks).receipts()) if lost != "trainer-1" else actors.skip(batch_of([], 1))
    wait_until(lambda: before[lost_name(before, lost)] not in pids().values())
    created = actors.start()
    assert set(created) == ({"trainer-0", "trainer-1"} if lost == "trainer-1" else {lost})
    assert [failure.actor for failure in actors.failures] == [lost]
    assert actors.failures[0].node
    standing = actors.load(actors.materialise())
    assert standing.trainer_version == (-1 if lost == "trainer-1" else 0)
    assert standing.engine_versions == ((0, -1) if lost == "rollout-1" else (0, 0))
    if lost == "trainer-1":
        actors.sft()
    assert [receipt.instance for receipt in actors.sync(0)] == ([1] if lost == "rollout-1" else [])
    assert len(list(actors.begin_collecting(tasks).receipts())) == len(tasks)
    assert all(len(find_sealed(tmp_path, task.key)) == 1 for task in tasks)


def lost_name(registered: dict[str, int], name: str) -> str:
    return next(full for full in registered if full.startswith(name))


@VERIFY
def test_another_spec_or_branch_gets_its_own_actors(actor_sets: list[RunActors], tmp_path: Path) -> None:
    actor_sets.append(actors := actors_of(actors_spec(), tmp_path, 1))
    actors.start()
    names = set(ray.util.list_named_actors())
    actor_sets.append(other := actors_of(actors_spec("seed=5"), tmp_path, 2))
    assert len(other.start()) == 7
    wait_until(lambda: not names & set(ray.util.list_named_actors()))


@VERIFY
def test_a_skipped_update_is_applied_once(actor_sets: list[RunActors], tmp_path: Path) -> None:
    spec = actors_spec()
    actor_sets.append(actors := actors_of(spec, tmp_path, 1))
    begin(actors)
    task = batch_of([], 1)
    receipt = actors.skip(task)
    assert receipt.version == 1 and receipt.fingerprint["skipped"] == 1.0 and receipt.fingerprint["weights_digest"]
    assert actors.skip(task) == receipt
    assert RUN in str(receipt.key)
