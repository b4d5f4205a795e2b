"""Complete runs on two tiers: killed during store requests, or robbed of their folder, they end with the same bits."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress

import pytest

from flows.reports.audit import verify_run
from tests.flows.tools import SECONDS, Driver, same_result
from tests.object_store.server import SECRET, S3Server
from yatt_core.storage.objects import ObjectStore
from yatt_core.storage.run_store import ObjectRunStore

STRIKES = (
    r"PUT .*/owner\.json",
    r"PUT .*/inputs/train\.parquet",
    r"PUT .*/checkpoints/b000-i000000\..*/manifest\.json",
    r"PUT .*/i000002/.*/samples\.parquet",
    r"PUT .*/i000003/.*/manifest\.json",
    r"PUT .*/checkpoints/b000-i000003\..*/state\.safetensors",
    r"DELETE .*/checkpoints/",
)
"""Requests at which all processes are killed, in the order in which a run sends them."""


@pytest.fixture
def quiet(driver: Driver) -> str:
    """Performs an undisturbed run on the local disk only."""
    run = driver.create("virtual.yaml", "name=quiet")
    driver.drive(run)
    return run


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_a_run_killed_at_requests_ends_with_the_same_bits(
    server: S3Server, url: str, driver: Driver, quiet: str
) -> None:
    run = driver.create("virtual.yaml", "name=struck", f"storage.url={url}")
    for pattern in STRIKES:
        process = driver.start(run)

        def strike(pid: int = process.pid) -> None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            driver.end_actors(run)

        server.strikes[:] = [(pattern, strike)]
        assert process.wait(SECONDS) == -signal.SIGKILL, f"{pattern}: {process.output}"
        driver.end_actors(run)
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(quiet))
    check_both_tiers(driver, run, url)
    logs = "".join(path.read_text() for path in driver.home.run_folder(run).glob("logs/*.jsonl"))
    assert SECRET not in logs


@pytest.mark.verify
@pytest.mark.timeout(900)
def test_a_run_without_its_folder_resumes_from_the_store(url: str, driver: Driver, quiet: str) -> None:
    run = driver.create("virtual.yaml", "name=moved", "checkpoints.every=3", f"storage.url={url}")
    driver.drive_until_killed(run, "collect:6")
    driver.end_actors(run)
    with driver.ledger() as ledger:
        before = {i: ledger.records.shards(run, 0, i) for i in range(1, 7)}
    assert all(before.values())
    shutil.rmtree(driver.home.run_folder(run))
    driver.drive(run)
    assert same_result(driver.results(run), driver.results(quiet))
    with driver.ledger() as ledger:
        for iteration, rows in before.items():
            after = ledger.records.shards(run, 0, iteration)
            assert all(row in after for row in rows), "a finished shard was made again"
        receipts = [a.receipt for a in ledger.phases.attempts(run, 0, 5) if a.phase == "recover" and a.state == "DONE"]
    assert [receipt["restored"] for receipt in receipts] == [3], (
        "must restore the newest checkpoint and replay two updates"
    )
    check_both_tiers(driver, run, url)


def check_both_tiers(driver: Driver, run: str, url: str) -> None:
    """Checks that everything in the ledger is complete on both tiers and that the store has nothing else."""
    folder = driver.home.run_folder(run)
    store = ObjectRunStore(ObjectStore(url), folder)
    with driver.ledger() as ledger:
        assert verify_run(ledger, run, folder, None).disagreement is None
        kept = {row.folder for row in ledger.records.own_checkpoints(run, "kept")}
        shards = {row.folder for i in range(1, 9) for row in ledger.records.shards(run, 0, i)}
    assert store.folders("checkpoints") == dict.fromkeys(sorted(kept), True)
    assert store.folders("experience", depth=3) == dict.fromkeys(sorted(shards), True)
