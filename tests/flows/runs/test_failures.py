"""Failures within a run: each is reported, recorded by class and charged to a budget; no finished work is lost."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from flows.branching.branches import revise
from flows.branching.safe_point import RevisionOptions
from flows.run.results import RunResults
from tests.faults import hang_at
from tests.flows.tools import SECONDS, Driver, same_result
from tests.recovery.nursery import Nursery
from tests.recovery.parts import kill, living_actors

SLOW = "rollout.engine.base_seconds=0.05"
MESSAGES = {
    "raise": "ValueError: no such verifier",
    "hang": "took longer than 0.5 s",
    "nan": "nan",
    "die": "its process ended with exit code 9",
}


def create_with_switch(driver: Driver, switch: Path) -> str:
    return driver.create(
        "virtual.yaml",
        "iterations=2",
        "rewards.parts.0.function=tests.flows.reward_functions:broken",
        f"rewards.parts.0.options={{switch: {switch}}}",
        "rewards.parts.0.timeout_seconds=0.5",
        "recovery.budgets.infrastructure=2",
    )


@pytest.mark.parametrize(
    "fault", ["raise", *(pytest.param(fault, marks=pytest.mark.verify) for fault in ("hang", "nan", "die"))]
)
def test_a_reward_that_misbehaves_ends_the_session_and_loses_nothing(
    driver: Driver, tmp_path: Path, fault: str
) -> None:
    switch = tmp_path / "switch"
    run = create_with_switch(driver, switch)
    switch.write_text(fault)
    said = driver.drive(run, expect=1)
    assert MESSAGES[fault] in said and "Traceback" not in said
    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        assert row.state == "failed" and MESSAGES[fault] in row.state_reason
        charged = ledger.phases.charged(run, 0, 0, "evaluate")
    assert charged == {"data": 1}

    switch.unlink()
    driver.drive(run)
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "completed"


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, nursery: Nursery) -> RunResults:
    """Returns the results of an undisturbed run, which do not depend on the speed of its engines."""
    driver = Driver(tmp_path_factory.mktemp("quiet"), nursery)
    run = driver.create("virtual.yaml")
    driver.drive(run)
    return driver.results(run)


@pytest.mark.verify
def test_responses_survive_a_reward_that_fails(driver: Driver, tmp_path: Path) -> None:
    """Generation is expensive: after the reward is repaired, the same responses are scored, not generated again."""
    switch = tmp_path / "switch"
    run = create_with_switch(driver, switch)
    process = driver.start(run)
    wait_for_commit(driver, run, 0)
    switch.write_text("raise")
    assert process.wait(SECONDS) == 1, process.output
    chunks = {path: path.stat().st_mtime_ns for path in driver.home.run_folder(run).rglob("*.responses.arrow")}
    assert chunks, "the failed iteration's responses are durable"
    switch.unlink()
    driver.drive(run)
    assert driver.results(run).iteration == 2


BREAKS = """
from pathlib import Path
def score(prompt, response):
    if Path({switch!r}).exists():
        raise ValueError("no such verifier")
    return len(response) % 7 / 7
"""


@pytest.mark.verify
def test_a_reward_file_that_raises_in_mid_run_is_corrected_by_one_command(driver: Driver, tmp_path: Path) -> None:
    """What the advice names goes on: the open iteration draws its samples again, and its audit chain says why."""
    switch = tmp_path / "switch"
    file = tmp_path / "reward.py"
    file.write_text(BREAKS.format(switch=str(switch)))
    reward = f"rewards.parts=[{{name: own, file: '{file}:score'}}]"
    run = driver.create("virtual.yaml", "iterations=3", "evaluation.every=0", reward)
    process = driver.start(run)
    wait_for_commit(driver, run, 0)
    switch.write_text("")
    assert process.wait(SECONDS) == 1, process.output
    with driver.ledger() as ledger:
        at = ledger.runs.find(run).iteration
    driver.drive(run, expect=1)  # the same code fails again
    file.write_text("def score(prompt, response):\n    return len(response) % 5 / 5\n")
    assert revise(driver.home, run, [], asked=RevisionOptions(new_code=True)) == 2
    driver.drive(run)
    with driver.ledger() as ledger:
        row = ledger.runs.find(run)
        assert (row.state, row.iteration) == ("completed", 3)
        (branch,) = ledger.events.of_kind(run, "branch")
        assert ledger.events.verify(run) is None
    assert branch.body["at"] == at and branch.body["reason"].startswith("--new-code ")


def wait_for_commit(driver: Driver, run: str, iteration: int) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        with driver.ledger() as ledger:
            if ledger.runs.find(run).iteration >= iteration:
                return
        time.sleep(0.02)
    raise AssertionError(f"{run} did not commit iteration {iteration}")


@pytest.mark.verify
def test_a_lost_engine_is_replaced_and_the_result_is_the_same(driver: Driver, quiet: RunResults) -> None:
    struck = driver.create("virtual.yaml", SLOW)
    process = driver.start(struck)
    wait_for_commit(driver, struck, 2)
    assert kill(living_actors(driver.home.run_folder(struck))["rollout-0"])
    assert process.wait(SECONDS) == 0, process.output
    with driver.ledger() as ledger:
        attempts = [a for i in range(9) for a in ledger.phases.attempts(struck, 0, i) if a.state == "FAILED"]
    assert [attempt.failure_class for attempt in attempts] == ["actor_lost"]
    assert "rollout-0" in str(attempts[0].reason)
    assert same_result(quiet, driver.results(struck))


@pytest.mark.verify  # tests/cluster/test_watchdog.py shows it of actors, tests/flows/phases/test_attempts.py that phases set it
def test_a_phase_that_hangs_hits_its_deadline(driver: Driver) -> None:
    run = driver.create(
        "virtual.yaml", "rollout.engine.base_seconds=600", "recovery.phase_deadline_seconds=5",
        "recovery.budgets.infrastructure=1",
    )  # fmt: skip
    said = driver.drive(run, expect=1)
    assert "evaluate" in said and " 5 s" in said


def test_a_second_driver_exits_with_code_3(driver: Driver) -> None:
    run = driver.create("virtual.yaml", SLOW, "iterations=1000", "recovery.lease_seconds=60")
    first = driver.start(run)
    wait_for_commit(driver, run, 0)
    assert "held by" in driver.drive(run, expect=3)
    first.signal(signal.SIGTERM)
    assert first.wait(SECONDS) == 0, first.output


@pytest.mark.verify
def test_stopped_and_resumed_it_ends_as_if_never_stopped(driver: Driver, quiet: RunResults) -> None:
    stopped = driver.create("virtual.yaml", SLOW)
    process = driver.start(stopped)
    wait_for_commit(driver, stopped, 1)
    process.signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0, process.output
    with driver.ledger() as ledger:
        row = ledger.runs.find(stopped)
        assert row.state == "stopped" and row.iteration < 8
        assert ledger.records.checkpoints(stopped)[0].iteration == row.iteration, (
            "a graceful stop ends with a checkpoint"
        )
    driver.drive(stopped)
    assert same_result(quiet, driver.results(stopped))


@pytest.mark.verify
def test_a_preemption_notice_ends_in_the_middle_of_an_iteration(driver: Driver, quiet: RunResults) -> None:
    """An engine hangs in iteration 6; within the grace period the run stops with a checkpoint of the last commit."""
    run = driver.create("virtual.yaml", "recovery.stop_grace_seconds=6")
    hang = hang_at(driver.home.run_folder(run), 5)
    process = driver.start(run)
    wait_for_commit(driver, run, 5)
    while hang.exists():
        time.sleep(0.02)
    process.signal(signal.SIGUSR1)
    assert process.wait(SECONDS) == 0, process.output
    with driver.ledger() as ledger:
        assert (ledger.runs.find(run).state, ledger.runs.find(run).iteration) == ("stopped", 5)
        assert ledger.records.checkpoints(run)[0].iteration == 5
    driver.drive(run)
    assert same_result(quiet, driver.results(run))


@pytest.mark.verify
def test_a_damaged_checkpoint_is_skipped_in_favour_of_an_older_one(driver: Driver, quiet: RunResults) -> None:
    struck = driver.create("virtual.yaml")
    driver.drive_until_killed(struck, "collect:8")
    driver.end_actors(struck)
    with driver.ledger() as ledger:
        newest = ledger.records.checkpoints(struck)[0]
    victim = next((driver.home.run_folder(struck) / newest.folder).glob("*.safetensors"))
    data = bytearray(victim.read_bytes())
    data[-1] ^= 1
    victim.write_bytes(data)
    driver.drive(struck)
    log = "".join(path.read_text() for path in (driver.home.run_folder(struck) / "logs").glob("*.driver.jsonl"))
    assert "skipping checkpoint" in log and victim.name in log
    assert same_result(quiet, driver.results(struck))
