"""Guards in whole runs: each is tripped by some run, and each request is carried out once, even if a driver dies."""

from __future__ import annotations

import pytest

from db.write.alarms import AlarmRow
from db.write.outbox import PEOPLE
from flows.run.results import RunResults
from tests.faults import hang_at, not_finite_at
from tests.flows.tools import Driver, same_result
from tests.http_sink import http_sink

PAUSING = "guards.custom=[{name: any_reward, metric: reward/mean, at_most: 0.0, window: 2, action: pause}]"


def alarms(driver: Driver, run: str) -> list[AlarmRow]:
    with driver.ledger() as ledger:
        assert ledger.events.verify(run) is None
        return ledger.alarms.of(run)


def state(driver: Driver, run: str) -> tuple[str, int]:
    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        return row.state, row.iteration


# Its parts: tests/flows/runs/test_guard_loop.py and tests/flows/driver/test_guards.py show what guards do,
# tests/ops/integrations/test_apprise_notifier.py that people hear of it and that their address is stored nowhere.
@pytest.mark.verify
def test_a_guard_pauses_a_run_and_notifies_people_and_a_resume_continues(driver: Driver) -> None:
    with http_sink() as sink:
        run = driver.create("virtual.yaml", PAUSING, "iterations=3", "evaluation.every=0", "guards.notify={}")
        driver.environment["YATT_NOTIFY"] = f"json://user:unspoken7@127.0.0.1:{sink.port}/path"
        said = driver.drive(run, expect=4)
        assert "guard any_reward: reward/mean was" in said
        assert state(driver, run) == ("paused", 2)
        (alarm,) = alarms(driver, run)
        assert (alarm.rule, alarm.iteration, alarm.action) == ("any_reward", 2, "pause")
        with driver.ledger() as ledger:
            assert ledger.records.checkpoints(run)[0].iteration == 2, "a pause leaves a checkpoint"
            points = ledger.metrics.history(run, "reward/mean")
            assert alarm.evidence["window"] == [list(point) for point in points]
            assert ledger.outbox.counts(run, lane=PEOPLE) == (0, 2)
        assert alarm.id in sink.taken and "the run is paused: guard any_reward" in sink.taken

        driver.drive(run)
        assert state(driver, run) == ("completed", 3)
        assert len(alarms(driver, run)) == 1, "reported values are not judged again"
    kept = (path.read_bytes() for path in driver.home.folder.rglob("*") if path.is_file())
    assert not any(b"unspoken7" in contents for contents in kept), "addresses are stored nowhere"


TRIPPING = {
    "entropy": "guards.entropy={window: 1, baseline: 2, fall: 0.99}",
    "gradient_norm": "guards.gradient_norm={window: 1, baseline: 2, rise: 1.01}",
    "throughput": "guards.throughput={window: 1, baseline: 2, fall: 0.999}",
    "truncation": "guards.truncation.window=3",
    "reward_against_length": "guards.reward_against_length={window: 1, growth: 1.0001, gain: 10}",
    "stalled_phase": "guards.stalled_phase.fraction=0.02",
}


@pytest.mark.verify
def test_a_run_that_trips_every_guard_of_virtual_engines(driver: Driver) -> None:
    """Most responses are cut at 8 tokens, update 4 is not finite, collect takes seconds; others trip by chance."""
    slow = ("rollout.max_new_tokens=8", "rollout.engine.base_seconds=2.5", "evaluation.every=0")
    run = driver.create("virtual.yaml", *TRIPPING.values(), *slow)
    not_finite_at(driver.home.run_folder(run), 4)
    driver.drive(run)
    found = alarms(driver, run)
    assert {alarm.rule for alarm in found} == {*TRIPPING, "non_finite"}
    assert {alarm.action for alarm in found} == {"alert"}
    assert state(driver, run) == ("completed", 8)
    by_rule = {alarm.rule: alarm for alarm in found}
    assert by_rule["non_finite"].iteration == 4
    assert by_rule["truncation"].evidence["observed"] > 0.5
    assert by_rule["stalled_phase"].evidence["phase"] in ("collect", "evaluate")


@pytest.mark.verify
def test_a_run_with_a_model_trips_the_guards_of_the_policy(driver: Driver) -> None:
    run = driver.create(
        "torch.yaml", "algorithm.kl={coefficient: 0.1}", "guards.kl={window: 1, at_most: 0.0}",
        "guards.train_rollout_logprob_diff={window: 1, at_most: 0.0}", "iterations=2",
    )  # fmt: skip
    driver.drive(run)
    assert {"kl", "train_rollout_logprob_diff"} <= {alarm.rule for alarm in alarms(driver, run)}


@pytest.mark.verify
def test_a_stalled_phase_is_interrupted_if_the_spec_says_so(driver: Driver) -> None:
    """An engine hangs in iteration 3."""
    run = driver.create(
        "virtual.yaml", "guards.stalled_phase={action: pause, fraction: 0.3}", "iterations=4",
        "recovery.phase_deadline_seconds=150.0",
    )  # fmt: skip
    hang_at(driver.home.run_folder(run), 2)
    said = driver.drive(run, expect=4)
    assert "guard stalled_phase: collect " in said
    assert state(driver, run) == ("paused", 2)
    (alarm,) = alarms(driver, run)
    assert (alarm.rule, alarm.iteration, alarm.evidence["phase"]) == ("stalled_phase", 3, "collect")
    driver.drive(run)
    assert state(driver, run) == ("completed", 4)


@pytest.mark.verify
def test_a_run_that_used_its_budget_is_not_driven_until_it_is_raised(driver: Driver) -> None:
    from flows.branching.branches import revise

    run = driver.create("virtual.yaml", "guards.budget={wall_hours: 0.0001}", "iterations=3")
    said = driver.drive(run, expect=4)
    assert "guard budget: " in said and f"yatt resume {run} --set guards.budget.wall_hours=HOURS" in said
    stood = state(driver, run)
    assert stood[0] == "paused" and stood[1] < 3
    said = driver.drive(run, expect=4)
    assert "guard budget" in said and state(driver, run) == stood
    bounds = [alarm.evidence["bound"] for alarm in alarms(driver, run) if alarm.rule == "budget"]
    assert bounds == ["wall_hours"], "one alarm per limit"
    revise(driver.home, run, ["guards.budget={device_hours: 1000.0}"])
    driver.drive(run)
    assert state(driver, run) == ("completed", 3)


STOPPING = "guards.custom=[{name: any_reward, metric: reward/mean, at_most: 0.0, window: 2, action: stop}]"


@pytest.mark.verify
def test_a_guards_request_is_carried_out_by_the_next_driver(driver: Driver) -> None:
    """The driver dies between the commit with the alarm and the stop."""
    run = driver.create("virtual.yaml", STOPPING, "iterations=3", "evaluation.every=0")
    driver.drive_until_killed(run, "committed:2")
    driver.drive(run)
    assert state(driver, run) == ("stopped", 2)
    driver.drive(run)
    assert state(driver, run) == ("completed", 3)
    assert len(alarms(driver, run)) == 1


ROLLING_BACK = "guards.custom=[{name: spike, metric: grad_norm, at_most: 1.4, window: 1, action: rollback}]"


def branches(driver: Driver, run: str) -> list[tuple[int, int | None, str]]:
    with driver.ledger() as ledger:
        rows = ledger.overview.branches(run)
        return [(row.number, row.parent_iteration, row.reason) for row in rows]


def rolled_back(driver: Driver, *moments: str) -> tuple[str, RunResults]:
    run = driver.create("virtual.yaml", ROLLING_BACK, "guards.rollback_limit=9", "iterations=6", "evaluation.every=0")
    for moment in moments:
        driver.drive_until_killed(run, moment)
        driver.end_actors(run)
    driver.drive(run)
    return run, driver.results(run)


@pytest.mark.verify
@pytest.mark.timeout(600)
def test_a_rollback_draws_other_prompts_and_comes_out_the_same_when_killed(driver: Driver) -> None:
    run, quiet = rolled_back(driver)
    assert state(driver, run) == ("completed", 6)
    (first, *_) = [alarm for alarm in alarms(driver, run) if alarm.rule == "spike"]
    number, at, reason = branches(driver, run)[1]
    assert (number, at) == (1, (first.first - 1) // 3 * 3) and reason.startswith("guard spike at iteration")
    with driver.ledger() as ledger:
        told = ledger.records.choices(run, 1, at + 1)["cursor"].body["cursor"]
        superseded = ledger.commits.at(run, first.iteration, 0)
        assert superseded is not None and superseded.state["cursor"] == told, "no prompt drawn so far is drawn again"
        values = dict(ledger.metrics.history(run, "grad_norm"))
        assert all(value <= 1.4 for value in values.values()), "nothing trips on the current branch"
    killed, results = rolled_back(driver, f"committed:{first.iteration}", f"committed:{at + 1}")
    assert same_result(quiet, results)
    assert branches(driver, killed) == branches(driver, run)
    assert [(a.branch, a.iteration) for a in alarms(driver, killed)] == [
        (a.branch, a.iteration) for a in alarms(driver, run)
    ]


@pytest.mark.verify
def test_rollbacks_that_do_not_help_end_in_a_pause(driver: Driver) -> None:
    always = "guards.custom=[{name: any, metric: reward/mean, at_most: 0.0, window: 1, action: rollback}]"
    run = driver.create("virtual.yaml", always, "guards.rollback_limit=2", "iterations=4", "evaluation.every=0")
    said = driver.drive(run, expect=4)
    assert "2 rollbacks to iteration 0 did not help" in said
    assert state(driver, run)[0] == "paused"
    assert [number for number, *_ in branches(driver, run)] == [0, 1, 2]
    assert [(alarm.action, alarm.branch) for alarm in alarms(driver, run)] == [
        ("rollback", 0), ("rollback", 1), ("rollback", 2), ("pause", 2),
    ]  # fmt: skip


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_the_quickstart_trips_no_guard(driver: Driver) -> None:
    run = driver.create("../../configs/quickstart.yaml")
    process = driver.start(run)
    assert process.wait(800) == 0, process.output
    assert alarms(driver, run) == []
