"""Runs of the workloads in examples/workloads through real services: killed in every phase, at random moments, and queued.

Takes a driver and what is written of a run; each function asserts that the digests are those of an undisturbed run.
"""

from __future__ import annotations

import json
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.write.queueing import Submission
from flows.branching.branches import fork
from flows.queueing.pools_file import pools_file
from flows.reports.audit import verify_run
from tests.flows.queueing.test_twelve_runs import start_scheduler
from tests.flows.tools import SECONDS, Driver

SPECS = "../../examples/workloads/specs"
SMALL = (
    "iterations=4", "checkpoints.every=2", "evaluation.every=2", "trainer.engine.ranks=2", "recovery.lease_seconds=5.0",
    "recovery.phase_deadline_seconds=60",
)  # fmt: skip
EVERY_PHASE = (
    "start:0", "evaluate:0", "commit_start:0", "prepare:1", "learn:2", "checkpoint:2", "commit:3", "recover:2", "learn:4",
    "evaluate:4",
)  # fmt: skip
STRIKES = 6
"""How many drivers are killed at random moments."""
CORPUS = {
    "documents": 60, "train_queries": 80, "dev_queries": 20, "test_queries": 20, "steps": 3, "batch": 8, "width": 16,
    "vector_width": 16, "token_width": 8, "recall_at": 20,
}  # fmt: skip


@dataclass(frozen=True)
class Training:
    """A spec in `examples/workloads/specs`, and small settings for it."""

    spec: str
    settings: Mapping[str, Any]

    def create(self, driver: Driver, *changes: str) -> str:
        return driver.create(f"{SPECS}/{self.spec}", *SMALL, f"workload.settings={json.dumps(self.settings)}", *changes)


RETRIEVAL = Training("retrieval.yaml", {**CORPUS, "method": "cascade", "first": 1, "cross": 1})
MINED = Training("retrieval_mined.yaml", {**CORPUS, "method": "self", "siblings": 1, "mined": 1, "mine_every": 2})
RING = Training(
    "ring.yaml",
    {
        "generated": {"entities": 12, "relations": 8},
        "members": [{"model": "note", "width": 8, "smoothing": 0.1}, {"model": "deepwalk", "width": 8}],
        "statistics": {"ht": 0.1},
        "batch": 32,
    },
)
GRAPH = {"generated": {"nodes": 120, "classes": 3, "within": 8, "across": 2}, "width": 8}
BLOCKS = Training("blocks.yaml", GRAPH)
SAMPLED = Training("blocks.yaml", {**GRAPH, "sampling": {"batch": 40, "part": 16, "neighbours": 3}})
TRAININGS = {"retrieval": RETRIEVAL, "mined": MINED, "ring": RING, "blocks": BLOCKS, "sampled": SAMPLED}


def require_same(driver: Driver, run: str, undisturbed: str) -> None:
    """Asserts that two runs have the same digests, and that the first one's audit is sound."""
    found = driver.results(run)
    expected = driver.results(undisturbed)
    assert found.weights_digest == expected.weights_digest is not None
    assert found.metrics_digest == expected.metrics_digest is not None
    with driver.ledger() as ledger:
        report = verify_run(ledger, run, driver.home.run_folder(run), None)
    assert report.sound, report.disagreement


def killed_in(driver: Driver, run: str, moments: Sequence[str]) -> None:
    """Drives a run to its end by drivers that are killed at these moments; every other one takes its ranks along."""
    for number, moment in enumerate(moments):
        driver.drive_until_killed(run, moment)
        if number % 2:
            driver.end_actors(run)
    driver.end_actors(run)
    driver.drive(run)


def killed_at_random(driver: Driver, run: str, longest: float, seed: int) -> None:
    """Drives a run to its end by drivers of which the first ones are killed at random moments, with their ranks or without.

    longest: seconds within which a driver is killed.
    """
    choose = random.Random(seed)
    for _ in range(STRIKES):
        process = driver.start(run)
        until = time.monotonic() + choose.uniform(0, longest)
        while process.ended() is None and time.monotonic() < until:
            time.sleep(0.02)
        if process.ended() is None:
            process.signal(signal.SIGKILL)
        status = process.wait(SECONDS)
        assert status in (-signal.SIGKILL, 0), process.output
        if status == 0:
            return
        if choose.random() < 0.5:
            driver.end_actors(run)
    driver.drive(run)


def through_the_queue(driver: Driver, run: str, environment: Mapping[str, str]) -> None:
    """Has a run driven by the scheduler."""
    pools_file(driver.home).write_text("pools:\n  main: {devices: 2}\n")
    with driver.ledger() as ledger:
        ledger.submissions.submit(run, Submission(("main",), "ada", "workloads", 1, 2), "ada")
        scheduler = start_scheduler(driver, environment)
        try:
            while any(entry.run == run for entry in ledger.queue.rows().open):
                assert scheduler.poll() is None, (driver.folder / "scheduler.log").read_text()
                time.sleep(0.2)
        finally:
            scheduler.terminate()
            scheduler.wait()
        assert {row.run: row.outcome for row in ledger.queue.ended(5)} == {run: "completed"}


def on_one_rank(driver: Driver, run: str) -> str:
    """Returns a fork that goes on from iteration 2 of a run of two ranks with one."""
    return fork(driver.home, run, 2, ["trainer.engine.ranks=1"]).run
