"""`yatt costs` on the ledger of a simulated run: tables, JSON, CSV, and what is wrong with its options."""

from __future__ import annotations

import csv
import io
from decimal import Decimal

import pytest

from flows.run.home import Home
from ops.costs.words import amount
from tests.flows.simulated import Simulation
from tests.ops.conftest import Yatt

PRICES = "currency: EUR\ncarbon_g_per_kwh: 400\ndevices: [{device: H100, per_hour: 3.60, watts: 700}]\n"


@pytest.fixture
def runs(home: Home) -> list[str]:
    """Drives a run without prices, then one with them, whose project looks like a formula."""
    plain = Simulation.of(home.folder, "iterations=2")
    plain.drive()
    (home.folder / "prices.yaml").write_text(PRICES)
    priced = Simulation.of(home.folder, "iterations=2", "billing={project: math, owner: ada}")
    priced.drive()
    return [plain.run, priced.run]


def test_costs_add_up_in_every_format(yatt: Yatt, runs: list[str]) -> None:
    by_run = yatt("costs", "-o", "json").document
    assert [(row["names"], row["currency"]) for row in by_run["rows"]] == [([runs[1]], "EUR"), ([runs[0]], "")]
    assert (by_run["runs"], by_run["unpriced"]) == (2, [runs[0]])
    (priced,) = [row for row in by_run["rows"] if row["currency"]]
    parts = yatt("costs", "--by", "cause", "--by", "phase", "-o", "json").document["rows"]
    for figure in ("cost", "device_seconds", "energy_kwh", "carbon_kg"):
        whole = sum(Decimal(row[figure]) for row in by_run["totals"])
        assert whole == sum(Decimal(row[figure]) for row in by_run["rows"])
        assert sum(Decimal(row[figure]) for row in parts) == whole
    rows = list(csv.DictReader(io.StringIO(yatt("costs", "--by", "project", "--by", "owner", "-o", "csv").out)))
    assert {(row["project"], row["owner"]): row["cost"] for row in rows if row["currency"]} == {
        ("math", "ada"): priced["cost"]
    }
    text = yatt("costs")
    assert "EUR" in text.out and runs[1] in text.out and f"unknown: {runs[0]}" in text.err


def test_prices_apply_to_the_past_on_request(yatt: Yatt, runs: list[str]) -> None:
    filled = yatt("costs", "--fill-prices", "-o", "json").document
    assert filled["unpriced"] == [] and {row["currency"] for row in filled["rows"]} == {"EUR"}
    costs = {row["names"][0]: Decimal(row["cost"]) for row in filled["rows"]}
    recorded = yatt("costs", "-o", "json").document
    assert recorded["unpriced"] == [runs[0]], "nothing is recorded"
    assert {row["names"][0]: Decimal(row["cost"]) for row in recorded["rows"] if row["currency"]} == {
        runs[1]: costs[runs[1]]
    }
    assert costs[runs[0]] > 0
    assert "--fill-prices" in yatt("costs").err and "--fill-prices" not in yatt("costs", "--fill-prices").err


def test_prices_for_the_past_need_a_price_file(yatt: Yatt, home: Home) -> None:
    Simulation.of(home.folder, "iterations=1")
    answer = yatt("costs", "--fill-prices")
    assert answer.code == 2 and "there is no price file" in answer.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "0.00"),
        ("12345.678", "12,345.68"),
        ("0.5", "0.5"),
        ("0.00004167", "0.0000417"),
        ("4.167e-05", "0.0000417"),
    ],
)
def test_small_amounts_have_no_exponent(text: str, said: str) -> None:
    assert amount(text) == said


def test_only_some_runs_and_only_since_a_time(yatt: Yatt, runs: list[str]) -> None:
    assert [row["names"] for row in yatt("costs", runs[1], "-o", "json").document["rows"]] == [[runs[1]]]
    later = yatt("costs", "--since", "2999-01-01", "-o", "json").document
    assert later["rows"] == [] and yatt("costs", "--since", "2999-01-01").out == "no device has been used yet\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--since", "soon"), "--since soon: expected a date"),
        (("--by", "colour"), "colour"),
        (("no-such-run",), "no-such-run"),
    ],
)
def test_bad_input_is_refused(yatt: Yatt, runs: list[str], words: tuple[str, ...], said: str) -> None:
    done = yatt("costs", *words)
    assert said in done.err and done.code in (1, 2)


@pytest.mark.parametrize("text", ["currency: euro\n", "device: {}\n", "{"])
def test_a_mistake_in_the_price_file_is_told_instead_of_costs_without_a_price(
    yatt: Yatt, runs: list[str], home: Home, text: str
) -> None:
    (home.folder / "prices.yaml").write_text(text)
    done = yatt("costs")
    assert done.code == 2 and "prices.yaml" in done.err
