"""The graph workloads of examples/workloads through real services: two ranks, killed while they learn, and from the queue."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from db.write.queueing import Submission
from flows.queueing.pools_file import pools_file
from flows.reports.audit import verify_run
from tests.flows.queueing.test_twelve_runs import start_scheduler
from tests.flows.tools import Driver

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
SPECS = "../../examples/workloads/specs"
SMALL = (
    "iterations=4", "checkpoints.every=2", "evaluation.every=2", "trainer.engine.ranks=2", "recovery.lease_seconds=5.0",
    "recovery.phase_deadline_seconds=60",
)  # fmt: skip
RING = {
    "generated": {"entities": 12, "relations": 8},
    "members": [{"model": "note", "width": 8, "smoothing": 0.1}, {"model": "deepwalk", "width": 8}],
    "batch": 32,
}
BLOCKS = {
    "generated": {"nodes": 120, "classes": 3, "within": 8, "across": 2},
    "sampling": {"batch": 40, "part": 16, "neighbours": 3},
    "width": 8,
}


@pytest.mark.parametrize(
    ("spec", "settings"),
    [("ring.yaml", RING), ("blocks.yaml", BLOCKS)],
)
def test_killed_while_it_learns_and_from_the_queue(
    spec: str, settings: dict[str, Any], driver: Driver, service_environment: Mapping[str, str]
) -> None:
    changes = (*SMALL, f"workload.settings={json.dumps(settings)}")
    undisturbed, struck, queued = (driver.create(f"{SPECS}/{spec}", *changes) for _ in range(3))
    driver.drive(undisturbed)
    driver.drive_until_killed(struck, "learn:3")
    driver.end_actors(struck)
    driver.drive(struck)
    pools_file(driver.home).write_text("pools:\n  main: {devices: 2}\n")
    with driver.ledger() as ledger:
        ledger.submissions.submit(queued, Submission(("main",), "ada", "graphs", 1, 2), "ada")
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
