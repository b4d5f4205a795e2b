"""Runs with a lag whose trainer lends its devices: they generate only while it waits, and no bit depends on it."""

from __future__ import annotations

import pytest

from flows.placement.explain import explain
from flows.placement.record import PlacementRecord
from flows.placement.replay import compare_all, replay
from tests.flows.tools import Driver, same_result
from yatt_core.placement.actions import TRAINING

LAG = ("asynchrony.lag=1", "iterations=5", "trainer.engine.ranks=1", "evaluation.every=0")


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_lending_changes_no_bit_and_is_decided_by_what_was_measured(driver: Driver) -> None:
    shared = driver.create("judged.yaml", *LAG)
    driver.drive(shared)
    lent = driver.create("judged.yaml", *LAG, "placement.trainer=lent")
    driver.drive_until_killed(lent, "learn:3")
    driver.end_actors(lent)
    driver.drive(lent)
    assert same_result(driver.results(lent), driver.results(shared))
    with driver.ledger() as ledger:
        decisions = [ledger.records.decisions(lent, 0, iteration)[-1] for iteration in range(1, 6)]
        placements = list(PlacementRecord(ledger, driver.home, lent).between(1, 5))
    assert decisions[0].decision["lent"] == [0], "nothing was measured yet"
    measured = [decision.inputs["lending"]["measured"] for decision in decisions]
    assert any(found is not None and found["idle_s"] > 0 for found in measured)
    assert [replay(placement).why for placement in placements] == [()] * 5
    explained = [explain(placement) for placement in placements]
    assert all(found.trainer.startswith("on the devices of instances 0, which") for found in explained)
    assert any(use.role == TRAINING and use.device_s > 0 for found in explained for use in found.roles)
    compared = compare_all(lent, "colocate", placements)
    assert compared.iterations == 5 and all(row.recorded_s and row.other_s for row in compared.rows)


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_torch_engines_share_what_is_in_progress_with_a_lent_device(driver: Driver) -> None:
    changes = (
        "asynchrony.lag=1",
        "iterations=4",
        "evaluation.every=0",
        "rollout.max_new_tokens=40",
        "rollout.min_new_tokens=20",
    )
    planned = driver.create("torch.yaml", *changes)
    driver.drive(planned)
    engine = "rollout.engine={kind: torch, instances: 3, continuous: true, max_num_seqs: 32}"
    lent = driver.create("torch.yaml", *changes, engine, "placement.trainer=lent", "placement.control_seconds=0.02")
    driver.drive(lent)
    assert same_result(driver.results(lent), driver.results(planned))
