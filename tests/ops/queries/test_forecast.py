"""The forecast beside the deadline in `yatt show`, on the run's page, in the API and in Prometheus's metrics."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text

from db.ledger import Ledger
from flows.run.home import Home
from ops.dashboard.app import create_app
from tests.ops.conftest import Yatt
from tests.ops.seeding import seed_run, toy_spec
from yatt_core.spec import override_spec

PACE = 512.0
"""Seconds of an iteration of the seeded run."""


def seeded(home: Home, hours: float, ends: bool) -> str:
    at = (datetime.now(UTC) + timedelta(hours=hours)).isoformat()
    spec = override_spec(toy_spec(100), [f"guards.deadline.at={at}"], "test")
    run: str = seed_run(home, committed=8, spec=spec, ends=ends)
    with Ledger.open(home.ledger) as ledger, ledger._database.write() as connection:
        connection.execute(text("UPDATE metric_series SET key = 'seconds/iteration' WHERE key = 'tokens_per_second'"))
    return run


@pytest.mark.parametrize(("hours", "late"), [(12.0, True), (15.0, False)])
def test_a_driven_run_says_when_it_ends(yatt: Yatt, home: Home, hours: float, late: bool) -> None:
    run = seeded(home, hours, ends=False)
    shown = yatt("show", run).out
    assert "at this rate iteration 100 on " in shown and ", the deadline is " in shown
    facts = yatt("show", run, "-o", "json").document["forecast"]
    left = (facts["expected_at"] - datetime.now(UTC).timestamp() * 1000) / 1000
    assert left == pytest.approx(92 * PACE, abs=60)
    with TestClient(create_app(home), base_url="http://127.0.0.1:8686") as client:
        view = client.get(f"/api/v1/runs/{run}").json()["forecast"]
        assert view["deadline_at"] == facts["deadline_at"] and (view["expected_at"] > view["deadline_at"]) is late
        page = client.get(f"/runs/{run}").text
        assert view["text"][:30] in page and ("</span> late</span>" in page) is late
        metrics = client.get("/metrics").text
        assert f'yatt_run_deadline_timestamp_seconds{{run="{run}"}}' in metrics
        assert f'yatt_run_expected_end_timestamp_seconds{{run="{run}"}}' in metrics


def test_a_run_that_nobody_drives_says_what_if(yatt: Yatt, home: Home) -> None:
    run = seeded(home, 12.0, ends=True)
    assert "if it went on now: at this rate iteration 100 on " in yatt("show", run).out
    assert "at this rate" not in yatt("show", seed_run(home)).out, "too few iterations for a rate"
