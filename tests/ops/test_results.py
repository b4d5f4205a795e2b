"""A run's figures come from the ledger, and its digests differ if, and only if, its results differ."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import asdict
from pathlib import Path

import pytest

from db.core.holder import Holder, this_process
from db.ledger import Ledger
from db.write.metrics import Point
from flows.run.home import Home
from flows.run.results import metrics_digest, run_results, session_seconds
from tests.ops.seeding import commit_of, seed_run
from yatt_core.digests import chain_digest


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "runs")


def test_the_figures_of_a_run(home: Home) -> None:
    run = seed_run(home)
    with Ledger.open(home.ledger) as ledger:
        results = run_results(ledger, run)
        assert asdict(results) == {
            "run": "toy-1",
            "state": "stopped",
            "iteration": 2,
            "accuracy_sft": 0.25,
            "accuracy": 0.5,
            "seconds": 12.5,
            "sft_seconds": 3.5,
            "weights_digest": "weights 2",
            "experience_digest": chain_digest(["experience 1", "experience 2"]),
            "metrics_digest": metrics_digest(ledger.metrics.result_points(run)),
            "flow_bytes_per_sample": 100.0,
        }


def test_a_run_that_has_not_begun_has_no_figures(home: Home) -> None:
    home.folder.mkdir()
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.create("toy", {}, "digest", target_iterations=3).id
        results = run_results(ledger, run)
    assert (results.accuracy, results.accuracy_sft, results.weights_digest) == (None, None, None)
    assert (results.iteration, results.seconds, results.flow_bytes_per_sample) == (-1, 0, None)


def test_the_metrics_digest_covers_keys_steps_and_bits_of_result_points(home: Home) -> None:
    run = seed_run(home, committed=1)
    with Ledger.open(home.ledger) as ledger:
        found = run_results(ledger, run).metrics_digest
    expected = hashlib.sha256()
    for key, step, value in (
        ("entropy", 1, 2.0),
        ("evaluation/accuracy", 0, 0.25),
        ("evaluation/accuracy", 1, 0.375),
        ("reward/mean", 1, 0.1),
    ):
        expected.update(f"{key}|{step}|".encode() + struct.pack("<d", value))
    assert found == expected.hexdigest()
    assert metrics_digest([Point("a", 1, 0.1)]) != metrics_digest([Point("a", 1, 0.1 + 1e-17 * 2)])


def test_equal_results_give_equal_digests_however_often_a_driver_was_lost(home: Home, tmp_path: Path) -> None:
    undisturbed = seed_run(home, committed=3)
    disturbed_home = Home(tmp_path / "other")
    disturbed = seed_run(disturbed_home, committed=2, ends=False)
    with Ledger.open(disturbed_home.ledger) as ledger:
        fence = ledger.leases.acquire(disturbed, this_process("second"), 60, holder_is_gone=lambda _: True)
        ledger.commits.commit(fence, commit_of(3))
        after = run_results(ledger, disturbed)
    with Ledger.open(home.ledger) as ledger:
        before = run_results(ledger, undisturbed)
    assert after.metrics_digest == before.metrics_digest
    assert after.weights_digest == before.weights_digest
    assert after.experience_digest == before.experience_digest


def test_seconds_come_from_the_commands_or_the_ledger(home: Home) -> None:
    run = seed_run(home, committed=1)
    now = [1_900_000_000_000]
    with Ledger.open(home.ledger, clock=lambda: now[0]) as ledger:
        lost = ledger.leases.acquire(run, Holder("far", "boot", 1, 1, "lost"), 10)
        ledger.leases.start_session(lost, "", "session 2")
        now[0] += 7_000
        ledger.commits.commit(lost, commit_of(2))
        now[0] += 60_000
        third = ledger.leases.acquire(run, Holder("far", "boot", 2, 1, "third"), 10)
        ledger.leases.start_session(third, "", "session 3")
        now[0] += 4_000
        ledger.leases.end_session(third, "ended")
        seconds = session_seconds(ledger, ledger.overview.show(run))
        assert seconds == {1: 12.5, 2: 7.0, 3: 4.0}
        assert run_results(ledger, run).seconds == 23.5
