"""A short run of configs/vllm-megatron.yaml: killed in collect, learn and sync, it ends with the same bits.

The trainer's log-probabilities agree with the sampler's.
"""

from __future__ import annotations

import pytest

from tests.flows.tools import Driver, same_result
from tests.needs import NEEDS_MEGATRON, NEEDS_VLLM
from tests.services import ROOT

pytestmark = [NEEDS_VLLM, NEEDS_MEGATRON, pytest.mark.verify]
CONFIG = str(ROOT / "configs" / "vllm-megatron.yaml")
SHORT = (
    "iterations=4",
    "sft.max_steps=20",
    "data.prompts_per_iteration=16",
    "data.held_out=20",
    "checkpoints.every=3",
)


@pytest.mark.timeout(900)
def test_killed_in_collect_learn_and_sync_it_ends_with_the_same_bits(driver: Driver) -> None:
    whole = driver.create(CONFIG, *SHORT)
    driver.drive(whole)
    with driver.ledger() as ledger:
        gaps = [value for _, value in ledger.metrics.history(whole, "train_rollout_logprob_diff_max")]
    assert len(gaps) == 4 and 0 < max(gaps) <= 1e-4, "at every iteration, so that no weights are stale"
    run = driver.create(CONFIG, *SHORT)
    driver.drive_until_killed(run, "collect:2")
    driver.drive_until_killed(run, "learn:3")
    driver.end_actors(run)
    driver.drive_until_killed(run, "sync:4")
    driver.end_actors(run)
    driver.drive(run)
    failed = {(a.iteration, a.phase) for i in range(5) for a in driver.attempts(run, i) if a.state == "FAILED"}
    assert failed == {(2, "collect"), (3, "learn"), (4, "sync")}, "all kills hit the intended phase"
    assert same_result(driver.results(run), driver.results(whole))
