"""How costs are written for people. Consumes rows of `ops.costs.view`; produces words."""

from __future__ import annotations

from decimal import Decimal
from typing import Protocol

SECONDS = 3600
"""Of an hour."""


class Sums(Protocol):
    """Decimal text of a row's sums."""

    @property
    def currency(self) -> str: ...
    @property
    def cost(self) -> str: ...
    @property
    def device_seconds(self) -> str: ...
    @property
    def energy_kwh(self) -> str: ...
    @property
    def carbon_kg(self) -> str: ...
    @property
    def unmetered_device_seconds(self) -> str: ...


def figures(row: Sums) -> tuple[str, str, str, str]:
    """Returns cost, device hours, energy in kWh and carbon in kg; what is not known is empty.

    A figure that is known only for a part of the time has a `+`.
    """
    cost = f"{amount(row.cost)} {row.currency}" if row.currency else ""
    hours = amount(str(Decimal(row.device_seconds) / SECONDS))
    if row.unmetered_device_seconds == row.device_seconds:
        return cost, hours, "", ""
    mark = "" if Decimal(row.unmetered_device_seconds) == 0 else "+"
    return cost, hours, amount(row.energy_kwh) + mark, amount(row.carbon_kg) + mark


def amount(text: str) -> str:
    """Returns a decimal number with two decimals, or with three significant digits if it is small; never with an exponent."""
    value = Decimal(text)
    if value == 0 or abs(value) >= 1:
        return f"{value:,.2f}"
    return _small(value)


def _small(value: Decimal) -> str:
    """Returns a number below 1 with three significant digits."""
    places = 2 - value.adjusted()
    return f"{value:.{places}f}".rstrip("0")
