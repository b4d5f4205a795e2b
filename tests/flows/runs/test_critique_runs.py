"""Runs with rewards of tokens: killed in collect and in learn, they end with the same bits; critiques and costs are kept."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.flows.tools import Driver, same_result

VIRTUAL = (
    "iterations=4",
    "checkpoints.every=20",
    "placement.mode=colocate",
    "rewards.critique="
    + json.dumps({"part": "helpful", "vote": "average", "steps": {"kind": "marker", "pattern": r"\b[0-9]*[02468]\b"}}),
    'rewards.parts.1.template="{prompt} {steps}"',
    "rewards.parts.1.parse={kind: wrong_steps}",
    "rewards.parts.1.weight=0",
)
"""Changes to tests/specs/judged.yaml."""
RULE = (
    "iterations=4",
    "checkpoints.every=3",
    "sft={demonstrations: 64, max_steps: 6, stop_accuracy: 1.0, probe_every: 3}",
    "data={sources: [{kind: reasoning_gym, task: running_sums, size: 600}], prompts_per_iteration: 12}",
    "data.held_out=12",
    "data.probe=8",
    "rollout.samples_per_prompt=4",
    "algorithm.mini_batches=2",
    "rollout.engine.instances=1",
    "trainer.engine.ranks=1",
    "controllers.count=1",
    "tracking.enabled=false",
)
"""Changes to configs/critique.yaml."""


@pytest.mark.verify
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("spec", "changes"), [("judged.yaml", VIRTUAL), ("../../configs/critique.yaml", RULE)], ids=["virtual", "torch"]
)
def test_rewards_of_tokens_survive_kills_and_other_numbers_of_controllers(
    driver: Driver, spec: str, changes: tuple[str, ...]
) -> None:
    undisturbed = driver.create(spec, *changes)
    driver.drive(undisturbed)
    run = driver.create(spec, *changes, "controllers.count=3")
    driver.drive_until_killed(run, "collect:2")
    driver.drive_until_killed(run, "learn:4")
    driver.end_actors(run)
    for folder in driver.home.run_folder(run).glob("experience/b000/*/prepared.*"):
        shutil.rmtree(folder)  # so that replay computes the advantages of tokens again
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(undisturbed))
    if spec == "judged.yaml":
        with driver.ledger() as ledger:
            cost = {
                name: dict(ledger.metrics.history(undisturbed, name))
                for name in ("judge/tokens", "judge/prompt_tokens", "judge/device_seconds", "reward/helpful")
            }
        assert all(len(points) == 4 and min(points.values()) > 0 for points in cost.values()), cost
