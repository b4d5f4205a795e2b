"""Dynamic sampling in real runs: the number of controllers, kills and damage between waves do not change the result."""

from __future__ import annotations

import pytest

from flows.branching.branches import fork
from tests.flows.tools import Driver, same_result
from tests.matrix import in_verify
from tests.recovery.test_damage import flip

REWARD = '{name: sparse, function: "tests.flows.reward_functions:sparse", options: {share: %s}}'
# The prompts determine which iterations have several waves.
PROMPTS = "data.sources=[{kind: reasoning_gym, task: spell_backward, size: 400}]"
SMALL = ("virtual.yaml", PROMPTS, "iterations=4", "checkpoints.every=100", "evaluation.every=0", "data.held_out=4")
TARGET = 8


def sparse(share: float) -> str:
    return f"rewards.parts=[{REWARD % share}]"


@pytest.mark.verify
@pytest.mark.timeout(400)
def test_controllers_kills_and_damage_between_waves_do_not_change_the_result(driver: Driver) -> None:
    wanted = (*SMALL, sparse(0.2), "dynamic_sampling.kind=valid_group")
    quiet = driver.create(*wanted)
    struck = driver.create(*wanted, "controllers.count=3")
    driver.drive(quiet)
    driver.drive_until_killed(struck, "settled:2:0")
    driver.drive_until_killed(struck, "collect:3:1")
    driver.end_actors(struck)
    with driver.ledger() as ledger:
        lost = ledger.records.shards(struck, 0, 2)[-1]
    assert lost.wave > 0
    flip(driver.home.run_folder(struck) / lost.folder / "samples.parquet")
    driver.drive(struck)
    assert same_result(driver.results(quiet), driver.results(struck))

    with driver.ledger() as ledger:
        for iteration in range(1, 5):
            waves = [ledger.records.waves(run, 0, iteration) for run in (quiet, struck)]
            assert waves[0] == waves[1], "plans and outcomes are functions of the spec"
            assert len(waves[0]) > 1 or iteration == 4, "otherwise there is nothing between waves"
            outcomes = [row.outcome for row in waves[0] if row.outcome]
            assert sum(len(outcome["admitted"]) for outcome in outcomes) + len(outcomes[-1]["padding"]) == TARGET
        failed = {a.iteration for i in (2, 3) for a in ledger.phases.attempts(struck, 0, i) if a.state == "FAILED"}
        assert failed == {2, 3}, "both kills hit the intended phase"
        (made,) = ledger.events.of_kind(struck, "shard_regenerated")
        assert (made.body["iteration"], made.body["wave"], made.body["shard"]) == (2, lost.wave, lost.shard)
        drawn = dict(ledger.metrics.history(quiet, "sampling/drawn_groups"))
        assert {int(step): count for step, count in drawn.items()} == {
            i: sum(row.plan["prompts"] for row in ledger.records.waves(quiet, 0, i)) for i in range(1, 5)
        }
        averages = [ledger.commits.at(quiet, i).state["sampling_average"] for i in range(1, 5)]
        assert averages == [ledger.records.waves(quiet, 0, i)[-1].outcome["average"] for i in range(1, 5)]
        assert averages[0] < averages[-1], "the average is kept across iterations"

    heir = fork(driver.home, quiet, 3).run
    driver.drive(heir)
    assert driver.results(heir).weights_digest == driver.results(quiet).weights_digest, "a fork replays the same waves"


FAILING = '{name: failing, function: "tests.flows.reward_functions:failing", options: {share: 0.4}, on_failure: mask}'


@pytest.mark.parametrize("killed", [True, *in_verify(False)])
def test_prompts_take_the_place_of_samples_without_a_score(driver: Driver, killed: bool) -> None:
    quiet_guards = ("guards.mostly_unscored.action=alert", f"rewards.parts=[{FAILING}]", "iterations=2")
    run = driver.create(*SMALL, *quiet_guards)
    if killed:
        driver.drive_until_killed(run, "settled:2:0")
    driver.drive(run)
    with driver.ledger() as ledger:
        for iteration in (1, 2):
            first, *others = ledger.records.waves(run, 0, iteration)
            assert (first.plan["prompts"], bool(others)) == (TARGET, True)
            scored = [wave.outcome["scored"] for wave in (first, *others) if wave.outcome]
            samples = TARGET * ledger.runs.revision(run).spec["rollout"]["samples_per_prompt"]
            assert scored[0] < 0.95 * samples and sum(scored) > 0.8 * samples
            assert others[0].plan["prompts"] == -((scored[0] - samples) // (samples // TARGET))
        waves = dict(ledger.metrics.history(run, "sampling/waves"))
        assert waves == {i: len(ledger.records.waves(run, 0, i)) for i in (1, 2)}
        attempts = [attempt.number for attempt in ledger.phases.attempts(run, 0, 2) if attempt.phase == "collect"]
        assert attempts == ([1, 2] if killed else [1])


def test_a_run_without_valid_groups_continues_with_a_recorded_warning(driver: Driver) -> None:
    best_and_worst = ("dynamic_sampling.kind=best_and_worst", "dynamic_sampling.keep=1", "dynamic_sampling.max_waves=2")
    run = driver.create(*SMALL, sparse(0.0), *best_and_worst, "iterations=2")
    driver.drive(run)
    assert driver.results(run).state == "completed"
    with driver.ledger() as ledger:
        warnings = ledger.events.of_kind(run, "sampling_short")
        assert [link.body["iteration"] for link in warnings] == [1, 2]
        assert "only 0 of 8 groups can be learnt from after 2 waves" in warnings[0].body["warning"]
        assert ledger.metrics.history(run, "sampling/padded_groups") == [(1, 8.0), (2, 8.0)]
        assert ledger.metrics.history(run, "sampling/filled_fraction") == [(1, 0.0), (2, 0.0)]
        assert ledger.events.verify(run) is None
    logs = "".join(path.read_text() for path in (driver.home.run_folder(run) / "logs").glob("*driver*.jsonl"))
    assert "masked groups fill the batch" in logs
