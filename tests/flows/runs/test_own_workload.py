"""A workload of one's own through real services: two ranks, killed while they learn, and once through the queue."""

from __future__ import annotations

import time
from collections.abc import Mapping

import pytest
from mlflow.tracking import MlflowClient

from db.write.queueing import Submission
from flows.queueing.pools_file import pools_file
from flows.reports.audit import verify_run
from tests.flows.queueing.test_twelve_runs import start_scheduler
from tests.flows.tools import Driver

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
SPEC = "../../configs/word_vectors.yaml"
SMALL = (
    "iterations=6", "checkpoints.every=3", "evaluation.every=3", "recovery.lease_seconds=5.0",
    "recovery.phase_deadline_seconds=60",
)  # fmt: skip
PHASES = {"start", "recover", "sft", "prepare", "learn", "evaluate", "checkpoint", "commit", "commit_start"}


def test_a_kill_while_its_ranks_learn_changes_no_bit(driver: Driver) -> None:
    undisturbed, run = (driver.create(SPEC, *SMALL) for _ in range(2))
    driver.drive(undisturbed)
    driver.drive_until_killed(run, "learn:5")
    driver.end_actors(run)
    driver.drive(run)
    for key in ("weights_digest", "metrics_digest"):
        assert getattr(driver.results(run), key) == getattr(driver.results(undisturbed), key)
    with driver.ledger() as ledger:
        phases = {row.phase for iteration in range(7) for row in ledger.phases.attempts(run, 0, iteration)}
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
    assert report.sound, report.disagreement
    assert phases == PHASES, "nothing is placed, collected or sent to engines"


def test_a_run_from_the_queue_is_the_same_and_mlflow_has_its_metrics(
    driver: Driver, service_environment: Mapping[str, str]
) -> None:
    undisturbed, run = (driver.create(SPEC, *SMALL) for _ in range(2))
    driver.drive(undisturbed)
    pools_file(driver.home).write_text("pools:\n  main: {devices: 2}\n")
    with driver.ledger() as ledger:
        ledger.submissions.submit(run, Submission(("main",), "ada", "vectors", 1, 2), "ada")
        scheduler = start_scheduler(driver, service_environment)
        try:
            while any(entry.run == run for entry in ledger.queue.rows().open):
                assert scheduler.poll() is None, (driver.folder / "scheduler.log").read_text()
                time.sleep(0.2)
        finally:
            scheduler.terminate()
            scheduler.wait()
        assert {row.run: row.outcome for row in ledger.queue.ended(5)} == {run: "completed"}
        tracked = ledger.runs.find(undisturbed).mlflow_run_id
    assert driver.results(run).weights_digest == driver.results(undisturbed).weights_digest
    assert tracked
    client = MlflowClient(driver.home.tracking_uri)
    history = client.get_metric_history(tracked, "evaluation/accuracy")
    assert [point.step for point in history] == [0, 3, 6]
    assert "workload word_vectors.py:WordVectors" in client.get_run(tracked).data.tags["mlflow.note.content"]
