"""A disk that is full while a run publishes: the run is paused with the reason, and resumes to the same bits."""

from __future__ import annotations

import pytest

from flows.run.results import RunResults
from tests.flows.tools import Driver, same_result
from tests.recovery.conftest import Bed

SMALL = ("virtual.yaml", "iterations=3", "checkpoints.every=2", "evaluation.every=0")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory, bed: Bed) -> RunResults:
    driver = Driver(tmp_path_factory.mktemp("quiet"), bed.nursery)
    run = driver.create(*SMALL)
    driver.drive(run)
    return driver.results(run)


@pytest.mark.verify
@pytest.mark.parametrize("place", ["experience/b000/i000002", "checkpoints"])
def test_the_run_pauses_and_existing_data_stays(driver: Driver, bed: Bed, quiet: RunResults, place: str) -> None:
    run = driver.create(*SMALL)
    driver.drive_until_killed(run, "collect:2")
    full = bed.failpoints / "full"
    full.write_text(f"{driver.home.run_folder(run)}/{place}")
    try:
        said = driver.drive(run, expect=4)
    finally:
        full.unlink()
    assert "No space left on device" in said and f"yatt resume {run}" in said
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "paused"
        assert [row.iteration for row in ledger.records.checkpoints(run)] == [0]
    driver.drive(run)
    assert same_result(driver.results(run), quiet)
