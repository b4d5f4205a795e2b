"""The central promise on real engines: after any kill, or with more controllers, the result has the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from mlflow.tracking import MlflowClient

from db.write.records import CheckpointRow
from flows.branching.branches import fork
from flows.driver.transport_record import TRANSPORT
from flows.reports.lineage import lineage_of
from flows.run.results import RunResults
from tests.engines.train.support import saved_tensors
from tests.faults import copy_is_held, hold_copies_of
from tests.flows.tools import Driver, audit_of_live_weights, same_result
from tests.needs import NEEDS_MEGATRON, NEEDS_PEFT
from tests.recovery.nursery import Nursery

pytestmark = pytest.mark.timeout(600)
METRICS = {
    "reward/mean", "reward/score", "accuracy", "entropy", "kl", "clip_fraction", "ratio_max", "ratio_min", "grad_norm",
    "train_rollout_logprob_diff_mean", "train_rollout_logprob_diff_max", "truncated_fraction",
    "length/response_mean", "length/prompt_mean",
    "tokens_per_second", "seconds/collect", "seconds/prepare", "seconds/learn", "seconds/sync", "loss", "learning_rate",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> tuple[Driver, str]:
    driver = Driver(tmp_path_factory.mktemp("undisturbed"), nursery)
    run = driver.create("torch.yaml")
    driver.drive(run)
    return driver, run


@pytest.fixture(scope="module")
def undisturbed(finished: tuple[Driver, str]) -> RunResults:
    driver, run = finished
    return driver.results(run)


def test_every_iteration_has_the_metrics_that_people_watch(finished: tuple[Driver, str]) -> None:
    driver, run = finished
    with driver.ledger() as ledger:
        histories = {key: ledger.metrics.history(run, key) for key in METRICS}
    for key, points in histories.items():
        assert [step for step, _ in points] == [1, 2, 3, 4], key
    gaps = [value for _, value in histories["train_rollout_logprob_diff_max"]]
    assert 0 < max(gaps) < 1e-4, "the trainer's float32 agrees with the sampler's"
    assert max(value for _, value in histories["ratio_max"]) > 1.0, "the second mini-batch is off-policy"
    assert max(value for _, value in histories["kl"]) > 0.0


def test_a_kept_checkpoint_evaluates_as_in_the_run(finished: tuple[Driver, str]) -> None:
    driver, run = finished
    command = [sys.executable, "-m", "ops.cli.main", "--home", str(driver.folder), "evaluate", run, "-o", "json"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert json.loads(said)["accuracy"] == driver.results(run).accuracy


def test_killed_in_collect_and_in_learn_it_ends_with_the_same_bits(undisturbed: RunResults, driver: Driver) -> None:
    run = driver.create("torch.yaml")
    driver.drive_until_killed(run, "collect:2")
    driver.drive_until_killed(run, "learn:3")
    driver.drive(run)

    failed = {(a.iteration, a.phase) for i in range(5) for a in driver.attempts(run, i) if a.state == "FAILED"}
    assert failed == {(2, "collect"), (3, "learn")}, "both kills hit the intended phase"
    assert same_result(driver.results(run), undisturbed)
    check_each_point_once(driver, run)
    check_nothing_generated_twice(driver, run)
    with driver.ledger() as ledger:
        found = lineage_of(ledger, driver.home, run)
    assert found.environment["rollout bits"] == "batch-invariant kernels" and not found.drift


NARROW = ("torch.yaml", "rollout.engine.dtype=bfloat16", "trainer.engine.dtype=bfloat16")


@pytest.mark.verify
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "trainer",
    [
        "kind: torch, ranks: 2",
        "kind: fsdp2, ranks: 2",
        pytest.param("kind: megatron, tensor_model_parallel_size: 2, data_parallel_size: 1", marks=NEEDS_MEGATRON),
    ],
)
def test_in_bfloat16_killed_in_every_phase_it_ends_with_the_same_bits(driver: Driver, trainer: str) -> None:
    """Its actors are lost half-way, so that other engines and ranks continue, on other controllers."""
    spec = (*NARROW, f"trainer.engine={{{trainer}, dtype: bfloat16}}", "checkpoints.every=2", "evaluation.every=1")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec, "controllers.count=3", "rollout.engine.instances=2")
    for place in ("sft:0", "commit_start:0", "place:1", "collect:1", "prepare:2", "learn:2", "checkpoint:2"):
        driver.drive_until_killed(struck, place)
    driver.end_actors(struck)
    for place in ("recover:1", "collect:3", "learn:3", "sync:4", "evaluate:4", "commit:4"):
        driver.drive_until_killed(struck, place)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))
    check_each_point_once(driver, struck)
    with driver.ledger() as ledger:
        environment = lineage_of(ledger, driver.home, struck).environment
    assert environment["rollout bits"] == "fixed decode batches"


@pytest.mark.verify
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_aligned_run_measures_no_gap_and_ends_with_the_same_bits(driver: Driver, dtype: str) -> None:
    spec = ("torch.yaml", "exact=aligned", *(f"{place}.engine.dtype={dtype}" for place in ("rollout", "trainer")))
    quiet = driver.create(*spec)
    driver.drive(quiet)
    with driver.ledger() as ledger:
        gaps = dict(ledger.metrics.history(quiet, "train_rollout_logprob_diff_max"))
    assert gaps == {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0}
    struck = driver.create(*spec)
    driver.drive_until_killed(struck, "collect:2")
    driver.end_actors(struck)
    driver.drive_until_killed(struck, "learn:3")
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))


@pytest.mark.verify
def test_weights_in_many_buckets_are_the_same_and_survive_a_kill_in_sync(
    undisturbed: RunResults, driver: Driver
) -> None:
    run = driver.create("torch.yaml", "trainer.sync_bucket_bytes=2048")
    driver.drive_until_killed(run, "sync:2")
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)
    with driver.ledger() as ledger:
        sizes, counts = (dict(ledger.metrics.history(run, f"sync/{what}")) for what in ("bytes", "buckets"))
    assert counts[4] > 4 and sizes[4] == sizes[3] > 2048 * (counts[4] / 2)


@pytest.mark.verify
def test_a_run_whose_weights_went_through_the_object_store_goes_on_directly(
    undisturbed: RunResults, driver: Driver
) -> None:
    """Runs of earlier versions have such a spec; a new one is refused before it is created."""
    run = driver.create("torch.yaml", "trainer.sync_transport=store")
    driver.drive_until_killed(run, "sync:2")
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)
    with driver.ledger() as ledger:
        assert [link.body for link in ledger.events.of_kind(run, TRANSPORT)] == [{"asked": "store", "used": "direct"}]
        assert ledger.events.verify(run) is None


@NEEDS_PEFT
@pytest.mark.verify
def test_adapters_that_are_killed_on_their_way_give_the_same_bits(driver: Driver) -> None:
    spec = ("torch.yaml", "trainer.lora={rank: 2, sync: adapter}", "trainer.sync_bucket_bytes=2048")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec)
    driver.drive_until_killed(struck, "sync:2")
    driver.end_actors(struck)
    driver.drive_until_killed(struck, "sync:3")
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))
    with driver.ledger() as ledger:
        sizes = dict(ledger.metrics.history(struck, "sync/bytes"))
    assert 0 < sizes[4] == dict(ledger.metrics.history(quiet, "sync/bytes"))[4]


def check_each_point_once(driver: Driver, run: str) -> None:
    with driver.ledger() as ledger:
        tracked = ledger.runs.find(run).mlflow_run_id
        histories = {key: ledger.metrics.history(run, key) for key in ledger.metrics.latest(run)}
    assert tracked
    client = MlflowClient(driver.home.tracking_uri)
    for key, points in histories.items():
        assert sorted((p.step, p.value) for p in client.get_metric_history(tracked, key)) == points, key


def check_nothing_generated_twice(driver: Driver, run: str) -> None:
    """Requires that shards sealed before a kill keep their term and have no second sealed folder."""
    folder = driver.home.run_folder(run) / "experience"
    for iteration in range(1, 5):
        shards = list((folder / f"b000/i{iteration:06d}").glob("w00-s*"))
        assert len(shards) == 6, "remains of killed attempts are swept"
        assert all((shard / "manifest.json").exists() for shard in shards)
    with driver.ledger() as ledger:
        terms = {shard.term for shard in ledger.records.shards(run, 0, 2)}
    assert len(terms) >= 1 and min(terms) == 1


@pytest.mark.verify
@pytest.mark.parametrize("lost", [False, True], ids=["actors live", "actors lost"])
def test_killed_while_a_checkpoint_is_copied_beside_a_sync_it_ends_with_the_same_bits(
    undisturbed: RunResults, driver: Driver, lost: bool
) -> None:
    run = driver.create("torch.yaml", "checkpoints.every=2")
    folder = driver.home.run_folder(run)
    hold = hold_copies_of(folder, 2)
    driver.drive_until_killed(run, "evaluate:2")
    synced = [attempt.state for attempt in driver.attempts(run, 2) if attempt.phase == "sync"]
    assert synced == ["DONE"] and copy_is_held(folder), "the weights were sent while they were copied"
    hold.unlink()
    if lost:
        driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)
    with driver.ledger() as ledger:
        assert [row.iteration for row in ledger.records.checkpoints(run)][:2] == [4, 2]


@pytest.mark.verify
def test_altered_weights_of_a_live_engine_are_named_and_replaced(
    undisturbed: RunResults, driver: Driver, service_environment: Mapping[str, str]
) -> None:
    """By an audit while the run's actors are alive, and then by the next session, before it continues."""
    run = driver.create("torch.yaml", "rollout.engine.instances=2")
    driver.drive_until_killed(run, "collect:2")
    code, sound = audit_of_live_weights(driver, run, service_environment)
    with driver.ledger() as ledger:
        commit = ledger.commits.at(run, 1)
    assert commit is not None and (code, sound["sound"], sound["version"]) == (0, True, 1)
    assert sound["trainer"] == sound["committed"] == commit.weights_digest is not None
    assert [engine["name"] for engine in sound["engines"]] == ["rollout-0", "rollout-1"]
    assert all(engine["compared"] > 0 and not engine["differing"] for engine in sound["engines"])
    alter = [sys.executable, "-c", ALTER, str(driver.home.ledger), run, str(driver.home.run_folder(run)), ALTERED]
    subprocess.run(alter, env={**os.environ, **service_environment}, timeout=120, check=True)
    code, found = audit_of_live_weights(driver, run, service_environment)
    assert (code, found["trainer"]) == (1, commit.weights_digest)
    assert [engine["differing"] for engine in found["engines"]] == [[], [ALTERED]]
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)


ALTERED = "model.layers.0.mlp.down_proj.weight"
ALTER = """
import sys
from pathlib import Path
import ray
from db.ledger import Ledger
from flows.reports.live_weights import live_actors

def flip(actor, name):
    import torch
    actor._engine._tensors[name].view(torch.uint8)[0, 0] ^= 1

ledger, run, folder, name = sys.argv[1:]
with Ledger.open(ledger) as opened, live_actors(opened, run, Path(folder)) as (_, engines, _):
    ray.get(engines["rollout-1"].__ray_call__.remote(flip, name))
"""
"""Flips the lowest bit of a tensor of the second engine."""


@pytest.mark.verify
@pytest.mark.parametrize("controllers", [1, 4])
def test_the_number_of_controllers_does_not_change_the_result(
    undisturbed: RunResults, driver: Driver, controllers: int
) -> None:
    run = driver.create("torch.yaml", f"controllers.count={controllers}")
    driver.drive(run)
    assert same_result(driver.results(run), undisturbed)


@pytest.mark.verify
def test_another_number_of_ranks_continues_within_tolerance(finished: tuple[Driver, str]) -> None:
    """After checkpoint 3: the same samples, the same update except for rounding, and a mark in the lineage."""
    driver, run = finished
    made = fork(driver.home, run, 3, ["trainer.engine.ranks=1"]).run
    driver.drive(made)
    with driver.ledger() as ledger:
        assert ledger.commits.experience_digests(made) == ledger.commits.experience_digests(run)
        (mark,) = lineage_of(ledger, driver.home, made).drift
        weights = [weights_of(driver, ledger.records.checkpoints(name)[0]) for name in (run, made)]
    assert (mark["at"], mark["replayed"], mark["changes"]["layout"]) == (3, 0, ["torch x 2", "torch x 1"])
    assert any((weights[0][name] != weights[1][name]).any() for name in weights[0]), "or the tolerance proves nothing"
    for name, array in weights[0].items():
        np.testing.assert_allclose(weights[1][name], array, atol=1e-5, rtol=0, err_msg=name)


def weights_of(driver: Driver, checkpoint: CheckpointRow) -> dict[str, Any]:
    return saved_tensors(driver.home.run_folder(checkpoint.run) / checkpoint.folder)


@pytest.mark.verify
def test_waves_of_real_samples_have_the_same_bits_however_they_are_made(driver: Driver) -> None:
    wanted = ("torch.yaml", "dynamic_sampling={kind: best_and_worst, keep: 1}", "checkpoints.every=100")
    quiet = driver.create(*wanted, "controllers.count=1")
    struck = driver.create(*wanted, "controllers.count=4")
    driver.drive(quiet)
    driver.drive_until_killed(struck, "settled:2:0")
    driver.drive_until_killed(struck, "learn:4")
    driver.end_actors(struck)
    driver.drive(struck)
    assert same_result(driver.results(quiet), driver.results(struck))
    with driver.ledger() as ledger:
        assert max(len(ledger.records.waves(quiet, 0, iteration)) for iteration in range(1, 5)) > 1


@pytest.mark.verify
def test_another_seed_gives_another_result(undisturbed: RunResults, driver: Driver) -> None:
    """Digests do change, so the equalities above mean something."""
    run = driver.create("torch.yaml", "seed=1", "iterations=1")
    driver.drive(run)
    other = driver.results(run)
    assert other.weights_digest != undisturbed.weights_digest
    assert other.experience_digest != undisturbed.experience_digest
