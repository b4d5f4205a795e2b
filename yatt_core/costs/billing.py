"""What a driver records about the charges of a run, in the audit chain: devices, their tariffs, project and owner.

A record is in force from its time on, until the next one; it is never changed. Money is text, never a float. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from yatt_core.costs.prices import UNKNOWN, PriceFile, Tariff, tariffs

BILLING = "billing"
"""The kind of these links."""
UNRECORDED = ""
"""The kind of devices that nobody recorded."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """Devices of one kind."""

    count: int
    tariff: Tariff


@dataclass(frozen=True, slots=True)
class BillingRecord:
    """What a run is charged from a time on.

    since: milliseconds since 1970.
    project: empty if the run belongs to none.
    currency: empty without prices.
    devices: by kind.
    """

    since: int
    project: str
    owner: str
    currency: str
    devices: Mapping[str, HeldDevices]

    @property
    def stands_in(self) -> bool:
        """True if this is no record, but stands for devices of unknown kind that nobody recorded."""
        return UNRECORDED in self.devices

    def same_as(self, other: BillingRecord | None) -> bool:
        """Returns True if another record differs at most in its time."""
        return other is not None and replace(other, since=self.since) == self

    def body(self) -> dict[str, Any]:
        """Returns the record as the ledger stores it."""
        return {
            "since": self.since,
            "project": self.project,
            "owner": self.owner,
            "currency": self.currency,
            "devices": {
                kind: {
                    "count": held.count,
                    "per_hour": _text(held.tariff.per_hour),
                    "watts": _text(held.tariff.watts),
                    "pue": _text(held.tariff.pue),
                    "carbon_g_per_kwh": _text(held.tariff.carbon_g_per_kwh),
                }
                for kind, held in sorted(self.devices.items())
            },
        }

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> BillingRecord:
        """Reads what `body` wrote."""
        devices = {
            kind: HeldDevices(
                count=int(held["count"]),
                tariff=Tariff(
                    per_hour=_decimal(held["per_hour"]),
                    watts=_decimal(held["watts"]),
                    pue=Decimal(held["pue"]),
                    carbon_g_per_kwh=_decimal(held["carbon_g_per_kwh"]),
                ),
            )
            for kind, held in body["devices"].items()
        }
        return cls(
            since=int(body["since"]),
            project=str(body["project"]),
            owner=str(body["owner"]),
            currency=str(body["currency"]),
            devices=devices,
        )


def with_past_prices(records: Sequence[BillingRecord], prices: PriceFile, spot: bool) -> list[BillingRecord]:
    """Returns records in which devices whose price is unknown have that of a price file at the time. What is known stays.

    records: of a run, in order.
    spot: whether the run's devices are spot devices.
    """
    filled = []
    for number, record in enumerate(records):
        end = records[number + 1].since if number + 1 < len(records) else None
        changes = [at for at in prices.boundaries() if at > record.since and (end is None or at < end)]
        filled += [_priced(replace(record, since=at), prices, spot) for at in (record.since, *changes)]
    return filled


def _priced(record: BillingRecord, prices: PriceFile, spot: bool) -> BillingRecord:
    """Returns a record with the prices at its time; as it is if it has prices in another currency."""
    if record.currency not in ("", prices.currency):
        return record
    lacking = {kind: held.count for kind, held in record.devices.items() if held.tariff.per_hour is None}
    found = tariffs(prices, lacking, spot, record.since)
    devices = {kind: held for kind, held in record.devices.items() if kind not in lacking}
    for kind, count in lacking.items():
        known = record.devices[kind].tariff
        tariff = found[kind] if known == UNKNOWN else replace(known, per_hour=found[kind].per_hour)
        devices[kind] = HeldDevices(count, tariff)
    return replace(record, currency=prices.currency, devices=devices)


def _text(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
