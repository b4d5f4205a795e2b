"""Reward moments and coefficients are part of the run's state: kills, replay and other controllers do not change the bits."""

from __future__ import annotations

import shutil

import pytest

from flows.run.control_state import ControlState
from tests.flows.tools import Driver, same_result

PLAIN = ("iterations=4", "checkpoints.every=20", "algorithm.advantage.kind=group_mean")
SCALED = (*PLAIN, "algorithm.reward_scaling=running", "algorithm.entropy={kind: adaptive, target: 1.5}")


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_scaled_rewards_survive_a_kill_and_another_number_of_controllers(driver: Driver) -> None:
    undisturbed = driver.create("virtual.yaml", *SCALED)
    driver.drive(undisturbed)
    run = driver.create("virtual.yaml", *SCALED, "controllers.count=3")
    driver.drive_until_killed(run, "learn:4")
    driver.end_actors(run)
    for folder in driver.home.run_folder(run).glob("experience/b000/*/prepared.*"):
        shutil.rmtree(folder)  # so that replay scales again, with the moments of each previous commit
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(undisturbed))
    with driver.ledger() as ledger:
        scales = dict(ledger.metrics.history(run, "reward_scale"))
        commits = [ledger.commits.at(run, iteration) for iteration in range(5)]
    moments = [ControlState.from_json(commit.state).reward_moments for commit in commits if commit is not None]
    assert [value.count for value in moments] == [0, 32, 64, 96, 128]
    assert scales == {i: moments[i - 1].scale(1e-4) for i in range(1, 5)} and scales[1] == 1.0 != scales[2]

    entropies = [commit.state["coefficients"].get("entropy") for commit in commits if commit is not None]
    assert entropies[0] is None and len({value for value in entropies[1:] if value is not None}) > 1

    plain = driver.create("virtual.yaml", *PLAIN)
    driver.drive(plain)
    assert driver.results(plain).weights_digest != driver.results(run).weights_digest
