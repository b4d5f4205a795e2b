"""What a driver records about the charges of a run, in the audit chain: devices, their tariffs, project and owner.

A record is in force from its time on, until the next one; it is never changed. Money is text, never a float. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from yatt_core.costs.prices import Tariff

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
        return cls(int(body["since"]), str(body["project"]), str(body["owner"]), str(body["currency"]), devices)


def _text(value: Decimal | None) -> str | None:
    return None if value is None else format(value, "f")


def _decimal(text: str | None) -> Decimal | None:
    return None if text is None else Decimal(text)
