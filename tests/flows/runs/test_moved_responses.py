"""Responses of real engines that go on in other instances: neither that nor kills meanwhile change a bit of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flows.placement.record import PlacementRecord
from flows.placement.replay import replay
from tests.flows.tools import Driver, same_result
from tests.judges.test_reward_model import make_folder
from yatt_core.placement.actions import ROLLOUT

CHANGES = (
    "iterations=3",
    "data.prompts_per_iteration=8",
    "data.logical_shards=4",
    "rollout.min_new_tokens=24",
    "rollout.max_new_tokens=44",
    "evaluation.every=0",
    "trainer.engine.ranks=1",
)
CONTINUOUS = "rollout.engine={kind: torch, instances: 3, continuous: true, max_num_seqs: 12}"
MOVING = ("placement.mode=tests.flows.movers:Mover", "placement.control_seconds=0.02")


def judged_by(folder: Path) -> str:
    """Returns the change that has a reward model on the devices."""
    likes = {
        "name": "likes", "kind": "reward_model", "model": {"kind": "folder", "path": str(folder)}, "template": "{response}",
    }  # fmt: skip
    return f"rewards.parts={json.dumps([{'name': 'score', 'function': 'reasoning_gym'}, likes])}"


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_moved_responses_change_no_bit_whatever_is_killed(driver: Driver, tmp_path: Path) -> None:
    judged = judged_by(make_folder(tmp_path / "model", positions=1024))
    planned = driver.create("torch.yaml", *CHANGES, judged, "rollout.engine.instances=1")
    driver.drive(planned)

    moved = driver.create("torch.yaml", *CHANGES, judged, CONTINUOUS, *MOVING, "controllers.count=2")
    driver.drive_until_killed(moved, "collect:2")
    driver.end_actors(moved)
    driver.drive(moved)

    assert same_result(driver.results(moved), driver.results(planned))
    with driver.ledger() as ledger:
        placements = list(PlacementRecord(ledger, driver.home, moved).between(1, 3))
    assert [replay(placement).why for placement in placements] == [()] * 3
    works = [placement.work for placement in placements if placement.work is not None]
    assert any(line["do"] in ("take", "handover") for work in works for line in work.actions)
    read = sum(row.prompt_tokens for work in works for row in work.telemetry.usage if row.role == ROLLOUT)
    asked = sum(
        sample.prompt for work in works for wave in work.telemetry.waves for sample in wave.samples if sample.first
    )
    assert read > asked, "no response was read again by another instance"
