"""The exported metrics: every promised one, also for runs with dead drivers, and for a bounded number of runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families as parse
from sqlalchemy import text

from db.core.subjects import QUEUE, subject_of
from db.ledger import Ledger
from db.write.approvals import ApprovalRequest
from db.write.queueing import Submission
from db.write.scheduling import Grant
from db.write.waits import WaitRow
from flows.run.home import Home
from ops.metrics import collector, names
from tests.dashboard.conftest import client as client
from tests.dashboard.conftest import home as home
from tests.dashboard.conftest import seeded as seeded
from tests.db.tools import holder
from tests.metrics.exported import METRICS
from tests.ops.cli.test_branches import seed_checkpoint
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.costs.billing import BILLING, BillingRecord, HeldDevices
from yatt_core.costs.prices import Tariff
from yatt_core.guards.findings import Alarm, Finding
from yatt_core.spec import override_spec

KILLED = """
import os, signal, sys
from pathlib import Path
from db.core.holder import this_process
from db.ledger import Ledger
from tests.db.tools import commit_of
with Ledger.open(sys.argv[1]) as ledger:
    run = ledger.runs.find(sys.argv[2]).id
    fence = ledger.leases.acquire(run, this_process("driver"), 0.2)
    ledger.leases.start_session(fence, "", "session")
    ledger.runs.set_state(fence, "running")
    ledger.commits.commit(fence, commit_of(0))
    attempt = ledger.phases.plan(fence, 0, 1, "collect")
    ledger.phases.dispatch(fence, attempt)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def scraped(client: TestClient) -> dict[str, dict[tuple[str, ...], float]]:
    """Returns the values by metric name and label values, parsed as Prometheus does."""
    answer = client.get("/metrics")
    assert answer.status_code == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in parse(answer.text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_every_promised_metric_is_exported(client: TestClient, home: Home) -> None:
    seed_checkpoint(home, "toy-1", 2)
    run = seed_run(home, committed=1)
    due = override_spec(toy_spec(100), ["name=due", "guards.deadline.at=2099-01-01T00:00:00Z"], "test")
    seed_run(home, committed=8, spec=due, ends=False)
    with Ledger.open(home.ledger) as ledger:
        fence = ledger.leases.acquire(run, holder("another"), 600)
        ledger.waits.record(fence, WaitRow(run, "judge 'kind'", "status 503", 1000, 2000, 1))
        ledger.leases.start_session(fence, "", "session")
        failing = ledger.phases.plan(fence, 0, 2, "collect")
        ledger.phases.dispatch(fence, failing)
        ledger.phases.fail(fence, failing, "infrastructure", "lost")
        record = BillingRecord(
            0, "math", "ada", "EUR", {"H100": HeldDevices(8, Tariff(*map(Decimal, (9, 700, 1, 400))))}
        )
        ledger.events.append(run, BILLING, record.body(), fence)
        raised = Alarm("kl", "kl", "pause", Finding("too high", 1, {}))
        assert ledger.alarms.record(fence, raised.body(run, 0, 1)) and not ledger.alarms.record(
            fence, raised.body(run, 0, 1)
        )
        ledger.submissions.submit(run, Submission(("main",), "ada", "chat", 0, 2), "ada")
        scheduler = ledger.leases.take(subject_of(QUEUE), holder("scheduler"), 600)
        ledger.scheduling.allocate(scheduler, Grant(run, "main", (0, 1), 0, False), 1)
        ledger.submissions.report_outage("main", [3], 0.0, "cloud")
        ledger.approvals.ask(ApprovalRequest("letters-1", "gate", "pipeline", "promote?"))
        ledger.approvals.ask(ApprovalRequest("letters-1", "overdue", "pipeline", "promote?", seconds=0))
        with ledger._database.write() as connection:
            connection.execute(
                text("UPDATE metric_series SET key = 'seconds/iteration' WHERE key = 'tokens_per_second'")
            )
    found = scraped(client)
    assert {metric.exported for metric in METRICS} <= found.keys()
    for metric in METRICS:
        assert all(len(labels) == len(metric.labels) for labels in found[metric.exported]) or metric is names.BUILD
    assert (found["yatt_queue_held_devices"], found["yatt_queue_away_devices"]) == ({("main",): 2}, {("main",): 1})
    assert (found["yatt_queue_runs"]["running",], found["yatt_queue_scheduler_up"][()]) == (1, 1)
    assert found["yatt_approvals_open"] == {("pipeline",): 1} and found["yatt_approvals_longest_wait_seconds"][()] >= 0
    assert found["yatt_runs"]["running",] == 2 and found["yatt_runs"]["failed",] == 0
    assert found["yatt_run_iteration"]["toy-1",] == 2
    assert found["yatt_run_driven"] == {("toy-1",): 0, ("toy-2",): 1, (run,): 1, ("due-1",): 1}
    assert sum(value for labels, value in found["yatt_run_time_ratio"].items() if "toy-2" in labels) == pytest.approx(1)
    assert list(found["yatt_run_failed_attempts_total"].values()) == [1]
    assert found["yatt_run_alarms_total"] == {("pause", "kl", run): 1}, "labels by their names"
    assert found["yatt_run_cost"].keys() == {("EUR", "ada", "math", run)}
    held = found["yatt_run_device_seconds"]["ada", "math", run]
    assert found["yatt_run_cost"]["EUR", "ada", "math", run] == pytest.approx(held * 9 / 3600, abs=1e-6)
    assert found["yatt_run_carbon_grams"]["ada", "math", run] == pytest.approx(held * 0.28 / 3.6, rel=1e-3)
    assert found["yatt_run_left_seconds"]["toy-2",] == 2 * 512


def test_a_run_is_exported_after_its_driver_was_killed(client: TestClient, home: Home) -> None:
    spec = toy_spec()
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", spec.model_dump(mode="json"), spec.digest, 4).id
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, home.ledger, run]
    killed = subprocess.run(command, cwd=root, env=os.environ | {"PYTHONPATH": str(root)}, capture_output=True)
    assert killed.returncode == -9, killed.stderr.decode()
    while scraped(client)["yatt_run_driven"][run,]:
        time.sleep(0.05)
    found = scraped(client)
    assert found["yatt_run_driver_lost"][run,] == 1
    assert found["yatt_run_iteration"][run,] == 0
    assert found["yatt_run_state"][run, "running"] == 1
    assert found["yatt_run_last_commit_timestamp_seconds"][run,] > 1e9


def test_the_number_of_runs_with_their_own_series_is_bounded(
    client: TestClient, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "RUNS", 1)
    found = scraped(client)
    assert found["yatt_run_iteration"].keys() == {("toy-2",)}
    assert found["yatt_runs_left_out"][()] == 1
    assert sum(found["yatt_runs"].values()) == 2


def test_the_format_is_the_requested_one(client: TestClient) -> None:
    answer = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.text.endswith("# EOF\n")


def test_registering_reads_nothing() -> None:
    collector.registry_of(None)  # type: ignore[arg-type]
