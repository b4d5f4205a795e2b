"""The price file: what a device of each kind costs per hour, its power, and budgets over several runs.

Consumes a YAML file; produces `PriceFile`, and from it the `Tariff` of devices at a time. Money and energy are decimal
numbers. Raises `ConfigurationError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from yatt_core.spec.base import SpecModel
from yatt_core.spec.reading.documents import read_document
from yatt_core.spec.reading.mistakes import parse_model
from yatt_core.spec.sections.billing import NAME

LARGEST = Decimal(10) ** 12
PLACES = 9
ANY = "*"
"""The kind of a price that applies to all devices without a price of their own."""
Figure = Annotated[Decimal, Field(ge=0, le=LARGEST, decimal_places=PLACES)]
PositiveFigure = Annotated[Decimal, Field(gt=0, le=LARGEST, decimal_places=PLACES)]
Moment = Annotated[datetime, AfterValidator(lambda at: at.replace(tzinfo=UTC) if at.tzinfo is None else at)]
"""A time with a time zone, by default UTC."""


class Period(SpecModel):
    """Something that is valid for a time."""

    valid_from: Moment | None = None
    """First moment, such as 2026-12-01 or 2026-12-01T08:00:00+01:00. `null`: always valid before `valid_until`."""
    valid_until: Moment | None = None
    """First moment after the time. `null`: no end."""

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.valid_from and self.valid_until and self.valid_until <= self.valid_from:
            raise ValueError(f"valid_until {self.valid_until:%Y-%m-%d %H:%M} is not after valid_from")
        return self

    def holds(self, at_ms: int) -> bool:
        """Returns True if a time, in milliseconds since 1970, is within the period."""
        started = self.valid_from is None or milliseconds(self.valid_from) <= at_ms
        return started and (self.valid_until is None or at_ms < milliseconds(self.valid_until))

    def bounds(self) -> list[int]:
        """Returns the beginning and the end, in milliseconds since 1970, without those that are open."""
        return [milliseconds(at) for at in (self.valid_from, self.valid_until) if at is not None]


class DevicePrice(Period):
    """The price and the power of one device."""

    device: str = Field(min_length=1, max_length=80)
    """Kind of device: the name of its model card, such as `H100`, `core` for a CPU core, or `*` for all others."""
    per_hour: Figure | None = None
    """Price of a device and hour. `null`: unknown."""
    spot_per_hour: Figure | None = None
    """Price of a spot device and hour, for runs with `billing.spot`. `null`: unknown."""
    watts: Figure | None = None
    """Power of a device at work, in watts, including its share of the host. `null`: unknown."""


class SharedBudget(Period):
    """A limit over all runs of a project or an owner, or of one run."""

    scope: Literal["run", "project", "owner"]
    """What the limit is for."""
    name: str = Field(pattern=NAME)
    """Id of the run, or name of the project or owner."""
    cost: PositiveFigure | None = None
    """Maximum cost, in the file's currency."""
    device_hours: PositiveFigure | None = None
    """Maximum hours times devices."""
    carbon_kg: PositiveFigure | None = None
    """Maximum emission in kg of CO2."""
    warn_at: Annotated[Decimal, Field(gt=0, lt=1)] = Decimal("0.8")
    """Fraction of a limit at which an alarm is raised."""
    action: Literal["alert", "pause", "stop"] = "pause"
    """What happens to a run once a limit is reached, as described for `guards.kl`."""

    @model_validator(mode="after")
    def _has_a_limit(self) -> Self:
        if self.cost is None and self.device_hours is None and self.carbon_kg is None:
            raise ValueError("expected at least one of cost, device_hours and carbon_kg")
        return self


class PriceFile(SpecModel):
    """Prices of devices, emissions of their electricity, and budgets over several runs."""

    currency: str = Field(pattern=r"^[A-Z]{3}$")
    """Currency of all prices and limits, such as EUR."""
    pue: Annotated[Decimal, Field(ge=1, le=10, decimal_places=PLACES)] = Decimal(1)
    """Power usage effectiveness: the whole site's energy per energy of the devices."""
    carbon_g_per_kwh: Figure | None = None
    """Grams of CO2 per kWh of the site's electricity. `null`: unknown."""
    devices: tuple[DevicePrice, ...] = ()
    """Of several prices of a kind that are valid at a time, the last one counts."""
    budgets: tuple[SharedBudget, ...] = ()

    def price_of(self, kind: str, at_ms: int) -> DevicePrice | None:
        """Returns the price of a kind of device at a time in milliseconds since 1970; None if there is none."""
        valid = [price for price in self.devices if price.holds(at_ms)]
        own = [price for price in valid if price.device.lower() == kind.lower()]
        found = own or [price for price in valid if price.device == ANY]
        return found[-1] if found else None

    def boundaries(self) -> list[int]:
        """Returns the times at which a price begins or ends, in milliseconds since 1970, in order."""
        return sorted({at for price in self.devices for at in price.bounds()})


@dataclass(frozen=True, slots=True)
class Tariff:
    """What a device costs and emits.

    per_hour: money per device and hour; None if unknown.
    watts: power of the device alone; None if unknown.
    pue, carbon_g_per_kwh: as in `PriceFile`.
    """

    per_hour: Decimal | None = None
    watts: Decimal | None = None
    pue: Decimal = Decimal(1)
    carbon_g_per_kwh: Decimal | None = None


UNKNOWN = Tariff()


def tariffs(prices: PriceFile | None, kinds: Mapping[str, int], spot: bool, at_ms: int) -> dict[str, Tariff]:
    """Returns the tariff of each kind of device at a time.

    kinds: number of devices by kind.
    """
    if prices is None:
        return dict.fromkeys(kinds, UNKNOWN)
    found = {kind: prices.price_of(kind, at_ms) for kind in kinds}
    return {
        kind: Tariff(
            per_hour=None if price is None else price.spot_per_hour if spot else price.per_hour,
            watts=None if price is None else price.watts,
            pue=prices.pue,
            carbon_g_per_kwh=prices.carbon_g_per_kwh,
        )
        for kind, price in found.items()
    }


def read_prices(path: Path) -> PriceFile:
    """Returns the prices in a file. Raises `ConfigurationError` with all mistakes."""
    return parse_model(PriceFile, read_document(path), str(path))


def milliseconds(at: datetime) -> int:
    """Returns a time as milliseconds since 1970."""
    return round(at.timestamp() * 1000)
