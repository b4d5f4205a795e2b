"""The costs page, its CSV and the API: the same sums, with hostile names escaped and formulas disarmed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal

import pytest
from fastapi.testclient import TestClient

from db.ledger import Ledger
from flows.run.home import Home
from ops.dashboard.app import create_app
from tests.dashboard.conftest import ORIGIN
from tests.dashboard.pages import BROWSER, check_page
from tests.db.tools import SimulatedClock, holder
from tests.ops.seeding import toy_spec
from yatt_core.costs.billing import BILLING, BillingRecord, HeldDevices
from yatt_core.costs.prices import Tariff

FORMULA = "=HYPERLINK(1)"
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    home = Home(tmp_path_factory.mktemp("costs"))
    spec = toy_spec()
    clock = SimulatedClock()
    with Ledger.open(home.ledger, clock=clock) as ledger:
        for owner, price in ((FORMULA, "2"), (MARKUP, "3")):
            run = ledger.runs.create("toy", spec.model_dump(mode="json"), spec.digest, 4).id
            fence = ledger.leases.acquire(run, holder("driver"), 10)
            ledger.leases.start_session(fence, "", "")
            tariff = Tariff(Decimal(price), Decimal(700), Decimal(1), Decimal(400))
            record = BillingRecord(0, "math", owner, "EUR", {"H100": HeldDevices(8, tariff)})
            ledger.events.append(run, BILLING, record.body(), fence)
            clock.advance(3600)
            ledger.leases.end_session(fence, "ended")
            ledger.leases.release(fence)
    with TestClient(create_app(home), base_url=ORIGIN, headers=BROWSER) as client:
        yield client


def test_page_csv_and_api_have_the_same_sums(client: TestClient) -> None:
    api = client.get("/api/v1/costs?by=owner").json()
    assert {row["names"][0]: row["cost"] for row in api["rows"]} == {FORMULA: "16.000000", MARKUP: "24.000000"}
    assert [row["cost"] for row in api["totals"]] == ["40.000000"]
    page = client.get("/costs?by=owner")
    check_page(page.text)
    assert "24.00 EUR" in page.text and MARKUP not in page.text
    answer = client.get("/costs/costs.csv?by=owner")
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert {row["owner"] for row in rows} == {f"'{FORMULA}", MARKUP}, "a spreadsheet runs no formula"
    assert sum(Decimal(row["cost"]) for row in rows) == 40
    assert {row["cause"] for row in rows} <= {"training", "faults", "start", "idle"}


def test_a_later_day_has_no_costs_and_a_wrong_one_is_ignored(client: TestClient) -> None:
    assert "No device has been used yet" in client.get("/costs?since=2999-01-01").text
    assert "24.00 EUR" in client.get("/costs?since=soon").text
    assert client.get("/costs?by=colour").status_code == 422
