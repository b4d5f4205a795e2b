"""Streamed learning on real actors: the trainer learns while engines generate, and clock, kills and numbers change no bit."""

from __future__ import annotations

import pytest

from tests.flows.strikes import killed_once, slowed_at_random
from tests.flows.tools import Driver, same_result

pytestmark = pytest.mark.timeout(600)
STREAMED = "asynchrony.streamed=true"


def hidden(driver: Driver, run: str) -> list[float]:
    """Returns the seconds of the trainer's work that each iteration has hidden."""
    with driver.ledger() as ledger:
        return [value for _, value in ledger.metrics.history(run, "seconds/hidden")]


def test_a_replay_that_takes_all_shards_at_once_equals_the_update_that_took_them_as_they_came(driver: Driver) -> None:
    """A replay whose update differed from the commit's would end with an error."""
    run = driver.create("virtual.yaml", STREAMED, "iterations=3", "evaluation.every=0", "controllers.count=2")
    driver.drive_until_killed(run, "learn:3")
    driver.end_actors(run)
    output = driver.drive(run)
    assert driver.results(run).weights_digest, output
    with driver.ledger() as ledger:
        (recovered,) = [row for row in ledger.phases.attempts(run, 0, 2) if row.phase == "recover"]
        assert recovered.receipt["replayed"] == 2
    assert len(hidden(driver, run)) == 3 and sum(hidden(driver, run)) > 0.0


@pytest.mark.verify
def test_on_real_engines_it_ends_with_the_same_bits_wherever_and_whatever_is_killed(driver: Driver) -> None:
    """With 1, 2 and 4 controllers, with 1, 2 and 3 instances, and with instances that are slowed at random."""
    spec = ("torch.yaml", STREAMED, "algorithm.mini_batches=1", "iterations=5")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec, "controllers.count=2", "rollout.engine.instances=3")
    for place in ("collect:1", "prepare:1", "learn:2", "collect:3"):
        driver.drive_until_killed(struck, place)
    driver.end_actors(struck)
    for place in ("collect:3", "sync:4", "collect:5"):
        driver.drive_until_killed(struck, place)
    driver.drive(struck)
    slowed = driver.create(*spec, "controllers.count=4", "rollout.engine.instances=2")
    with slowed_at_random(driver.home.run_folder(slowed), seed=7):
        driver.drive(slowed)
    assert same_result(driver.results(struck), driver.results(quiet))
    assert same_result(driver.results(slowed), driver.results(quiet))
    assert sum(hidden(driver, quiet)) > 0.0


@pytest.mark.verify
@pytest.mark.parametrize("actor", ["trainer-0", "rollout-0", "controller-1"])
def test_an_actor_that_is_killed_while_shards_arrive_changes_no_bit(driver: Driver, actor: str) -> None:
    spec = ("torch.yaml", STREAMED, "algorithm.mini_batches=1", "trainer.engine.ranks=2", "controllers.count=2")
    quiet = driver.create(*spec)
    driver.drive(quiet)
    struck = driver.create(*spec)
    with killed_once(driver.home.run_folder(struck), actor, "i000002"):
        driver.drive(struck)
    assert same_result(driver.results(struck), driver.results(quiet))


@pytest.mark.verify
@pytest.mark.parametrize("spec", ["judged.yaml", "tools.yaml"])
def test_judges_and_tools_work_beside_the_trainer(driver: Driver, spec: str) -> None:
    settings = (STREAMED, "algorithm.mini_batches=1")
    runs = [driver.create(spec, *settings, *more) for more in ((), ("controllers.count=2",))]
    driver.drive(runs[0])
    driver.drive_until_killed(runs[1], "collect:2")
    driver.drive(runs[1])
    assert same_result(*(driver.results(run) for run in runs))
