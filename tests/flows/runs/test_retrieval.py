"""The retriever of examples/workloads through real services: two ranks, killed in its cascade, and once through the queue."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

import pytest

from db.write.queueing import Submission
from flows.queueing.pools_file import pools_file
from flows.reports.audit import verify_run
from tests.flows.queueing.test_twelve_runs import start_scheduler
from tests.flows.tools import Driver

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
SPEC = "../../examples/workloads/specs/retrieval.yaml"
SETTINGS = {
    "documents": 60, "train_queries": 80, "dev_queries": 20, "test_queries": 20, "steps": 3, "batch": 8, "width": 16,
    "recall_at": 20, "method": "cascade", "first": 2, "cross": 2,
}  # fmt: skip
SMALL = (
    "iterations=6", "checkpoints.every=3", "evaluation.every=3", "trainer.engine.ranks=2", "recovery.lease_seconds=5.0",
    "recovery.phase_deadline_seconds=60", f"workload.settings={json.dumps(SETTINGS)}",
)  # fmt: skip


def test_killed_while_it_learns_and_from_the_queue(driver: Driver, service_environment: Mapping[str, str]) -> None:
    undisturbed, struck, queued = (driver.create(SPEC, *SMALL) for _ in range(3))
    driver.drive(undisturbed)
    driver.drive_until_killed(struck, "learn:4")
    driver.end_actors(struck)
    driver.drive(struck)
    pools_file(driver.home).write_text("pools:\n  main: {devices: 2}\n")
    with driver.ledger() as ledger:
        ledger.submissions.submit(queued, Submission(("main",), "ada", "retrieval", 1, 2), "ada")
        scheduler = start_scheduler(driver, service_environment)
        try:
            while any(entry.run == queued for entry in ledger.queue.rows().open):
                assert scheduler.poll() is None, (driver.folder / "scheduler.log").read_text()
                time.sleep(0.2)
        finally:
            scheduler.terminate()
            scheduler.wait()
        assert {row.run: row.outcome for row in ledger.queue.ended(5)} == {queued: "completed"}
        for run in (struck, queued):
            assert driver.results(run).weights_digest == driver.results(undisturbed).weights_digest
            report = verify_run(ledger, run, driver.home.run_folder(run), None)
            assert report.sound, report.disagreement
    assert driver.results(struck).metrics_digest == driver.results(undisturbed).metrics_digest
