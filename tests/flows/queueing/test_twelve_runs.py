"""Twelve runs of four priorities over two pools, through real flows, under a scheduler that is killed ten times."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping

import pytest

from db.ledger import Ledger
from db.write.queueing import Submission
from flows.queueing.limits import violations
from flows.queueing.pools_file import pools_file, read_pools
from tests.flows.queueing.simulated import stretch_of
from tests.flows.tools import Driver
from tests.services import ROOT

POOLS = """
pools:
  main: {devices: 4, quotas: {code: 2}, price: {currency: EUR, per_device_hour: 2.0}}
  spot: {devices: 2, spot: true}
devices_per_owner: 4
protected_minutes: 0
"""
KILLS = 10
SEEDS = 4
CHANGES = ("queue_started", "queue_stopping", "queue_released")
"""Kinds of links of the audit chain after which the scheduler is killed."""
OVERRIDES = ("iterations=8", "evaluation.every=8")


def start_scheduler(driver: Driver, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    surroundings = {**os.environ, **environment, "YATT_HOME": str(driver.folder)}
    with (driver.folder / "scheduler.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ops.queueing.scheduler"], env=surroundings, stderr=log, cwd=ROOT
        )


def submit(driver: Driver, ledger: Ledger, number: int, priority: int) -> str:
    run = driver.create("virtual.yaml", f"seed={number % SEEDS}", *OVERRIDES)
    pools = ("spot", "main") if number % 3 == 0 else ("main",)
    owner = ("ada", "ben", "cleo")[number % 3]
    project = ("chat", "code")[number % 2]
    ledger.submissions.submit(run, Submission(pools, owner, project, priority, 2), owner)
    return run


@pytest.mark.verify
def test_twelve_runs_end_with_the_digests_of_undisturbed_ones(
    driver: Driver, service_environment: Mapping[str, str]
) -> None:
    undisturbed = [driver.create("virtual.yaml", f"seed={seed}", *OVERRIDES) for seed in range(SEEDS)]
    for run in undisturbed:
        driver.drive(run)
    expected = [driver.results(run).weights_digest for run in undisturbed]
    assert len(set(expected)) == SEEDS
    pools_file(driver.home).write_text(POOLS)
    with driver.ledger() as ledger:
        runs = [submit(driver, ledger, number, number % 2) for number in range(6)]
        scheduler = start_scheduler(driver, service_environment)
        kills = 0
        seen = 0
        try:
            while any(entry.run in runs for entry in ledger.queue.rows().open) or len(runs) < 12:
                if len(runs) < 12 and any(ledger.runs.find(run).iteration >= 2 for run in runs):
                    runs += [submit(driver, ledger, number, 2 + number % 2) for number in range(6, 12)]
                changes = sum(len(ledger.events.of_kind(run, kind)) for run in runs for kind in CHANGES)
                if changes > seen and kills < KILLS:
                    scheduler.send_signal(signal.SIGKILL)
                    scheduler.wait()
                    kills = kills + 1
                    seen = changes
                    scheduler = start_scheduler(driver, service_environment)
                assert scheduler.poll() is None, (driver.folder / "scheduler.log").read_text()
                time.sleep(0.2)
        finally:
            scheduler.terminate()
            scheduler.wait()
        assert kills == KILLS
        assert {row.run: row.outcome for row in ledger.queue.ended(20)} == dict.fromkeys(runs, "completed")
        stretches = ledger.queue.allocations()
        assert list(violations(read_pools(driver.home), [stretch_of(row) for row in stretches])) == []
        assert any(row.outcome == "preempted" for row in stretches)
    assert [driver.results(run).weights_digest for run in runs] == [expected[number % SEEDS] for number in range(12)]
