"""Replay is checked: an update that differs from what its commit recorded is reported and never built upon."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from flows.reports.lineage import lineage_of
from tests.flows.tools import Driver

Change = Callable[[dict[str, Any]], object]


def killed_in_collect_3(driver: Driver) -> str:
    """Returns a run that must replay updates 1 and 2 after checkpoint 0."""
    run = driver.create("virtual.yaml", "iterations=3", "checkpoints.every=100", "evaluation.every=0")
    driver.drive_until_killed(run, "collect:3")
    driver.end_actors(run)
    return run


def rewrite(driver: Driver, run: str, table: str, column: str, change: Change) -> None:
    """Changes what the ledger stores for iteration 2."""
    with sqlite3.connect(driver.folder / "ledger.db") as connection:
        where = "WHERE run = ? AND iteration = 2"
        (text,) = connection.execute(f"SELECT {column} FROM {table} {where}", (run,)).fetchone()
        document = json.loads(text)
        change(document)
        connection.execute(f"UPDATE {table} SET {column} = ? {where}", (json.dumps(document), run))
    connection.close()


@pytest.mark.verify
def test_a_replay_that_differs_from_its_commit_ends_the_session(driver: Driver) -> None:
    run = killed_in_collect_3(driver)
    rewrite(driver, run, "iteration", "fingerprint", lambda found: found.update(loss=7.0))
    said = driver.drive(run, expect=1)
    assert "replaying update 2" in said and "7.0" in said
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "failed" and ledger.runs.find(run).iteration == 2


@pytest.mark.verify
def test_replay_in_another_environment_is_refused_unless_accepted_and_then_marked(driver: Driver) -> None:
    run = killed_in_collect_3(driver)
    rewrite(driver, run, "control_state", "state", lambda state: state["environment"].update(torch="1.0"))
    said = driver.drive(run, expect=2)
    assert "DriftError" in said and "torch: 1.0 -> " in said and f"yatt resume {run} --accept-drift" in said
    with driver.ledger() as ledger:
        assert not lineage_of(ledger, driver.home, run).drift
    driver.drive(run, "--accept-drift")
    with driver.ledger() as ledger:
        assert (ledger.runs.find(run).state, ledger.runs.find(run).iteration) == ("completed", 3)
        (mark,) = lineage_of(ledger, driver.home, run).drift
    assert (mark["at"], mark["replayed"], mark["changes"]["torch"][0]) == (2, 2, "1.0")
