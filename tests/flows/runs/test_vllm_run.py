"""A whole run with rollout on vLLM: its log-probabilities agree with the trainer's.

A run that is killed and loses its actors ends with the same bits.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from examples.shapes import write_shapes
from flows.phases.attempts import SYNCED
from flows.placement.seats import last_seats
from tests.flows.tools import Driver, audit_of_live_weights, same_result
from tests.needs import NEEDS_VLLM
from tests.services import ROOT
from yatt_core.engine_environments import VLLM, find_environment

pytestmark = [NEEDS_VLLM, pytest.mark.verify]
ENGINE = "rollout.engine={kind: vllm, instances: 1, dtype: float32, max_num_seqs: 32}"
CHANGES = (ENGINE, "model.hidden_size=64", "model.key_value_heads=1", "model.intermediate_size=96")
"""Heads of the smallest size that vLLM supports on a CPU, and a key/value head shared by two of them."""


@pytest.mark.timeout(900)
def test_it_is_exact_and_samples_what_the_trainer_learns_from(
    driver: Driver, service_environment: Mapping[str, str]
) -> None:
    whole = driver.create("torch.yaml", *CHANGES)
    driver.drive(whole)
    with driver.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(whole, "train_rollout_logprob_diff_max")]
    assert len(gaps) == 4 and 0 < max(gaps) < 1e-4, "at every iteration, so that no weights are stale"
    # Its engine is sent changes alone, unless it has just started.
    run = driver.create("torch.yaml", *CHANGES, "trainer.sync=delta")
    driver.drive_until_killed(run, "collect:2")
    code, audit = audit_of_live_weights(driver, run, service_environment)
    assert code == 0 and audit["version"] == 1 and audit["trainer"] == audit["committed"]
    assert audit["engines"][0]["compared"] > 0, "vLLM's parameters were read"
    driver.end_actors(run)
    driver.drive_until_killed(run, "sync:3")
    driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(whole))
    with driver.ledger() as ledger:
        attempts = [each for iteration in range(1, 5) for each in ledger.phases.attempts(run, 0, iteration)]
    receipts = [each.receipt or {} for each in attempts if each.phase == "sync"]
    assert True in [engine["delta"] for receipt in receipts for engine in receipt.get(SYNCED, ())]


@pytest.mark.timeout(900)
def test_an_engine_over_two_devices_generates_for_a_whole_run(driver: Driver) -> None:
    wide = ("model.hidden_size=128", "model.heads=4", "model.key_value_heads=2", "model.intermediate_size=96")
    run = driver.create("torch.yaml", ENGINE.replace("instances: 1", "instances: 1, tensor_parallel_size: 2"), *wide)
    driver.drive(run)
    with driver.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(run, "train_rollout_logprob_diff_max")]
        seats = {seat.actor: seat.device for seat in last_seats(ledger, run) or ()}
    assert len(gaps) == 4 and 0 < max(gaps) < 1e-4, "both workers have the weights of every iteration"
    assert seats["rollout-0"] == "core0, core1"


@pytest.mark.timeout(900)
def test_it_samples_from_prompts_with_images(driver: Driver, tmp_path: Path) -> None:
    write_shapes(tmp_path, 120, 12)
    data = (f"data.sources.0.path={tmp_path}/train.jsonl", f"data.sources.0.held_out_path={tmp_path}/held-out.jsonl")
    run = driver.create("pictures.yaml", *CHANGES, *data)
    driver.drive(run)
    with driver.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(run, "train_rollout_logprob_diff_max")]
    assert len(gaps) == 3 and 0 < max(gaps) < 1e-4, "the trainer sees the images that the sampler saw"


@pytest.mark.timeout(900)
def test_the_workflow_and_vllm_are_each_in_an_environment_of_their_own(driver: Driver) -> None:
    """The spec that is shipped, killed while it collects and while it syncs."""
    found = find_environment(VLLM, None)
    assert found.folder != Path(sys.prefix) and found.version.startswith("0.32.")
    assert not list(found.folder.glob("lib/python3*/site-packages/prefect"))
    spec = str(ROOT / "configs" / "vllm.yaml")
    changes = ("iterations=4", "data.prompts_per_iteration=16")
    whole = driver.create(spec, *changes)
    driver.drive(whole)
    run = driver.create(spec, *changes)
    for moment in ("collect:2", "sync:3"):
        driver.drive_until_killed(run, moment)
        driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(whole))
