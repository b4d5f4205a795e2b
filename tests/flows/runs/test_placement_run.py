"""Rollout and judge on the same devices: one result for every placement, and for kills while roles change."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path

import pytest

from flows.placement.record import PlacementRecord
from flows.placement.replay import replay
from tests.flows.tools import SECONDS, Driver, same_result
from tests.recovery.parts import kill, living_actors
from yatt_core.placement.actions import ROLLOUT, SERVES

SLOW = (
    "rollout.engine.clock_factor=5", "rewards.parts.1.engine.clock_factor=5", "rollout.engine.switch_seconds=10",
    "rollout.engine.repartition_seconds=10",
)  # fmt: skip
"""Duration of a switch, long enough to observe one in progress."""


def test_devices_follow_the_load_and_the_ledger_records_why(driver: Driver) -> None:
    run = driver.create("judged.yaml")
    driver.drive(run)
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "completed"
        (first,), (last,) = (ledger.records.decisions(run, 0, iteration) for iteration in (1, 3))
        committed = ledger.commits.latest(run)
        keys = ledger.metrics.latest(run)
    assert first.decision["mode"] == "dynamic" and len(first.decision["start"]) == 4
    assert first.inputs["past"] == [] and [past["iteration"] for past in last.inputs["past"]] == [1, 2]
    assert last.prediction["collect"] > 0 and "instances judge" in last.reason
    assert committed is not None and committed.state["placement"] == last.decision["state"]
    for decision in (first, last):
        assert decision.outcome is not None and decision.outcome["collect_s"] > 0
        assert decision.outcome["actions"], "devices changed roles within the iteration"
    assert {"judge/tokens", "judge/prompt_tokens", "judge/device_seconds"} <= set(keys)
    check_record(driver, run)


def check_record(driver: Driver, run: str) -> None:
    """Checks that decisions are reproducible, and that recorded work covers the samples but not the evaluations."""
    with driver.ledger() as ledger:
        placements = list(PlacementRecord(ledger, driver.home, run).between(1, 3))
    assert [replay(placement).why for placement in placements] == [()] * 3
    for placement in placements:
        assert placement.work is not None
        telemetry = placement.work.telemetry
        decoded = sum(row.sequence_steps for row in telemetry.usage if row.role == ROLLOUT)
        assert decoded == sum(sample.response for wave in telemetry.waves for sample in wave.samples)
        assert any(line["do"] == SERVES for line in placement.work.actions), "the times of the new roles are recorded"


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_the_placement_does_not_change_the_result(driver: Driver) -> None:
    modes = (("placement.mode=dynamic",), ("placement.mode=colocate",), ("placement.mode=split", "placement.judges=1"))
    runs = [driver.create("judged.yaml", *mode, f"controllers.count={1 + n}") for n, mode in enumerate(modes)]
    for run in runs:
        driver.drive(run)
    results = [driver.results(run) for run in runs]
    assert all(same_result(results[0], other) for other in results[1:])


@pytest.mark.verify
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "moment",
    [("placement.mode=dynamic",), ("placement.mode=split", "placement.judges=2")],
    ids=["hand-over", "re-partition"],
)
def test_killed_while_roles_change(driver: Driver, moment: tuple[str, ...]) -> None:
    undisturbed = driver.create("judged.yaml", "placement.mode=colocate")
    driver.drive(undisturbed)

    struck = driver.create("judged.yaml", *moment, *SLOW)
    process = driver.start(struck)
    index = wait_for_a_switch(driver, struck)
    with driver.ledger() as ledger:
        (before,) = ledger.records.decisions(struck, 0, 1)
    process.signal(signal.SIGKILL)
    actors = living_actors(driver.home.run_folder(struck))
    for name in (f"rollout-{index}", "dispatcher-0"):
        kill(actors[name])
    assert process.wait(SECONDS) == -signal.SIGKILL, process.output
    driver.drive(struck)

    assert same_result(driver.results(struck), driver.results(undisturbed))
    with driver.ledger() as ledger:
        (after,) = ledger.records.decisions(struck, 0, 1)
    assert (after.decision, after.reason) == (before.decision, before.reason), (
        "the recorded placement is the one in force"
    )
    assert started_with(driver, struck) == before.decision["start"]


def wait_for_a_switch(driver: Driver, run: str) -> int:
    """Waits until an instance is switching roles, and returns its number."""
    log = driver.home.run_folder(run) / "logs" / "t0001.dispatcher-0.jsonl"
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        said = [json.loads(line)["message"] for line in log.read_text().splitlines()] if log.exists() else []
        begun = [int(match[1]) for text in said if (match := re.match(r"rollout-(\d+) is switching", text))]
        ended = [int(match[1]) for text in said if (match := re.match(r"rollout-(\d+) has switched", text))]
        if len(begun) > len(ended):
            return next(index for index in reversed(begun) if begun.count(index) > ended.count(index))
        time.sleep(0.01)
    raise AssertionError(f"{run}: no device was seen on its way to another role")


def started_with(driver: Driver, run: str) -> str:
    """Returns the roles with which iteration 1 started, from its recorded work."""
    path: Path = driver.home.run_folder(run) / "placement" / "b000" / "i000001.json"
    return str(json.loads(path.read_text())["telemetry"]["roles"])
