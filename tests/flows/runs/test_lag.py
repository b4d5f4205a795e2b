"""A lag: iterations are collected while the trainer learns, under weights that the commits determine, never the clock."""

from __future__ import annotations

import pandas as pd
import pytest

from flows.run.control_state import ControlState, InFlight
from tests.flows.tools import Driver, same_result
from tests.recovery.test_damage import flip, folder_of

pytestmark = pytest.mark.timeout(600)
LAG = ("virtual.yaml", "asynchrony.lag=1", "iterations=5", "evaluation.every=0")


def versions_of(driver: Driver, run: str, iteration: int) -> set[int]:
    """Returns the versions of the weights that an iteration's samples were drawn under."""
    folder = driver.home.run_folder(run) / f"experience/b000/i{iteration:06d}"
    return set(pd.concat(pd.read_parquet(file) for file in folder.glob("*/samples.parquet"))["weight_version"])


def state_of(driver: Driver, run: str, iteration: int) -> ControlState:
    with driver.ledger() as ledger:
        commit = ledger.commits.at(run, iteration)
    assert commit is not None
    return ControlState.from_json(commit.state)


def test_each_iteration_is_sampled_under_the_weights_before_the_update_that_it_overlaps(driver: Driver) -> None:
    run = driver.create(*LAG, "checkpoints.keep=9", "retention.experience=all")
    driver.drive(run)
    assert [versions_of(driver, run, iteration) for iteration in range(1, 6)] == [{0}, {0}, {1}, {2}, {3}]
    states = [state_of(driver, run, iteration) for iteration in range(1, 6)]
    assert [state.sampled_under for state in states] == [0, 0, 1, 2, 3]
    following = [(2, 0), (3, 1), (4, 2), (5, 3)]
    assert [state.in_flight for state in states] == [*((InFlight(*each),) for each in following), ()]
    with driver.ledger() as ledger:
        assert [value for _, value in ledger.metrics.history(run, "staleness/max")] == [0, 1, 1, 1, 1]
        learns, ahead = (
            [row for i in range(1, 6) for row in ledger.phases.attempts(run, 0, i) if row.phase == phase]
            for phase in ("learn", "begin_ahead")
        )
    began = {row.iteration: row.ended_at for row in ahead}
    assert all(began[row.iteration + 1] <= row.dispatched_at for row in learns[:-1]), "controllers work while it learns"


@pytest.mark.verify
def test_damage_to_what_waits_for_its_turn_is_made_again_under_the_weights_of_then(driver: Driver) -> None:
    """Under weights that are older than those of the last commit, so that the trainer passes them on its way there."""
    spec = (*LAG, "asynchrony.lag=2", "iterations=6", "checkpoints.every=2")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec)
    driver.drive_until_killed(struck, "learn:4")
    assert state_of(driver, struck, 3).in_flight == (InFlight(4, 1), InFlight(5, 2))
    folder = driver.home.run_folder(struck)
    flip(folder / folder_of(driver, struck, 4, 1) / "samples.parquet")
    flip(folder / folder_of(driver, struck, 5, 2) / "samples.parquet")
    output = driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet)), output
    with driver.ledger() as ledger:
        made = {
            (link.body["iteration"], link.body["shard"]) for link in ledger.events.of_kind(struck, "shard_regenerated")
        }
    assert made == {(4, 1), (5, 2)}


@pytest.mark.verify
@pytest.mark.parametrize("lag", [1, 3])
def test_on_real_engines_it_ends_with_the_same_bits_wherever_it_is_killed(driver: Driver, lag: int) -> None:
    """Its actors are lost half-way, so that other engines and ranks continue, on other controllers and instances."""
    spec = (
        "torch.yaml",
        f"asynchrony.lag={lag}",
        "iterations=6",
        "algorithm.importance_correction={kind: truncate, cap: 2.0}",
    )
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec, "controllers.count=3", "rollout.engine.instances=2")
    for place in ("collect:1", f"begin_ahead:{1 + lag}", "prepare:2", "learn:2"):
        driver.drive_until_killed(struck, place)
    driver.end_actors(struck)
    for place in (f"collect_ahead:{3 + lag}", "sync:4", "learn:5"):
        driver.drive_until_killed(struck, place)
    driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))


@pytest.mark.verify
@pytest.mark.parametrize("spec", ["judged.yaml", "tools.yaml"])
def test_judges_and_tools_work_beside_the_trainer(driver: Driver, spec: str) -> None:
    runs = [driver.create(spec, "asynchrony.lag=1", *more) for more in ((), ("controllers.count=2",))]
    driver.drive(runs[0])
    driver.drive_until_killed(runs[1], "collect_ahead:2")
    driver.drive(runs[1])
    assert same_result(*(driver.results(run) for run in runs))
