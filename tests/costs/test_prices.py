"""The price file: which price applies when, and what is wrong with a file."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pytest

from yatt_core.costs.prices import UNKNOWN, PriceFile, Tariff, milliseconds, read_prices, tariffs
from yatt_core.errors import ConfigurationError

FILE = """
currency: EUR
pue: 1.25
carbon_g_per_kwh: 350
devices:
  - {device: H100, per_hour: 2.10, spot_per_hour: 0.7, watts: 700}
  - {device: h100, per_hour: 1.95, watts: 700, valid_from: 2026-12-01}
  - {device: H100, per_hour: 1.5, valid_from: 2026-12-24T12:00:00+01:00, valid_until: 2026-12-27}
  - {device: "*", per_hour: 0.1}
budgets:
  - {scope: project, name: math, cost: 5000}
"""


def at(*parts: int) -> int:
    return milliseconds(datetime(*parts, tzinfo=UTC))  # type: ignore[misc]


@pytest.fixture
def prices(tmp_path: Path) -> PriceFile:
    path = tmp_path / "prices.yaml"
    path.write_text(FILE)
    return read_prices(path)


@pytest.mark.parametrize(
    ("kind", "when", "price"),
    [
        ("H100", (2026, 11, 30, 23, 59), "2.1"),
        ("H100", (2026, 12, 1), "1.95"),
        ("H100", (2026, 12, 24, 10, 59), "1.95"),
        ("H100", (2026, 12, 24, 11), "1.5"),
        ("H100", (2026, 12, 27), "1.95"),
        ("core", (2026, 12, 1), "0.1"),
    ],
)
def test_the_last_valid_price_of_a_kind_counts(prices: PriceFile, kind: str, when: tuple[int, ...], price: str) -> None:
    assert tariffs(prices, {kind: 1}, False, at(*when))[kind].per_hour == Decimal(price)


def test_spot_devices_have_their_own_price_and_the_same_power(prices: PriceFile) -> None:
    assert tariffs(prices, {"H100": 8}, True, at(2026, 11, 1)) == {
        "H100": Tariff(Decimal("0.7"), Decimal(700), Decimal("1.25"), Decimal(350))
    }
    assert tariffs(prices, {"H100": 8}, True, at(2026, 12, 2))["H100"].per_hour is None, "it has no spot price"


def test_nothing_is_known_without_a_file_or_an_entry(prices: PriceFile) -> None:
    assert tariffs(None, {"H100": 1}, False, 0) == {"H100": UNKNOWN}
    without = prices.model_copy(update={"devices": prices.devices[:1]})
    assert tariffs(without, {"core": 1}, False, 0)["core"].per_hour is None


def test_decimal_prices_are_read_as_they_are_written(prices: PriceFile) -> None:
    assert [str(price.per_hour) for price in prices.devices] == ["2.1", "1.95", "1.5", "0.1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("currency: EUR", "currency: euros"),
        ("per_hour: 2.10", "per_hour: -2.10"),
        ("per_hour: 2.10", "per_huor: 2.10"),
        ("valid_from: 2026-12-01", "valid_from: soon"),
        ("valid_until: 2026-12-27", "valid_until: 2026-12-20"),
        ("cost: 5000", "action: pause"),
        ("scope: project", "scope: planet"),
        ("pue: 1.25", "pue: 0.5"),
    ],
)
def test_a_mistake_names_file_and_key(tmp_path: Path, change: str, said: str) -> None:
    path = tmp_path / "prices.yaml"
    path.write_text(FILE.replace(change, said))
    with pytest.raises(ConfigurationError, match=r"prices\.yaml") as caught:
        read_prices(path)
    key = said.split(":")[0]
    expected = {"valid_until": "valid_until", "action": "at least one of cost", "per_huor": "per_hour"}.get(key, key)
    assert expected in str(caught.value)
