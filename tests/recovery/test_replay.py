"""Replay is checked: an update that comes out differently from what its commit recorded is said, and never built upon."""

from __future__ import annotations

import json
import sqlite3

from tests.flows.tools import Driver


def test_a_replay_that_differs_from_its_commit_ends_the_segment(driver: Driver) -> None:
    run = driver.create("virtual.yaml", "iterations=3", "snapshots.every=100", "evaluation.every=0")
    driver.drive_until_killed(run, "collect:3")
    driver.end_actors(run)
    with sqlite3.connect(driver.folder / "ledger.db") as connection:
        key = (run, 2)
        (text,) = connection.execute(
            "SELECT fingerprint FROM iteration WHERE run = ? AND iteration = ?", key
        ).fetchone()
        changed = json.dumps(json.loads(text) | {"loss": 7.0})
        connection.execute("UPDATE iteration SET fingerprint = ? WHERE run = ? AND iteration = ?", (changed, *key))
    connection.close()
    said = driver.drive(run, expect=1)
    assert "replaying update 2" in said and "7.0" in said
    with driver.ledger() as ledger:
        assert ledger.runs.find(run).state == "failed" and ledger.runs.find(run).iteration == 2
