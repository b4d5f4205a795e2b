"""Charges the time in which a run held devices: exact sums of money, energy and carbon, in parts that add up.

Consumes pieces of time with a cause and a phase, and the billing records in force; produces `Amounts` by `ChargeKey`. A part
is the difference of two roundings of the running total, so parts of any division of the same time add up to the
same whole, which is the exact total rounded to a millionth. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

from yatt_core.costs.billing import BillingRecord
from yatt_core.costs.prices import Tariff

MS_PER_HOUR = 3_600_000
TRAINING, FAULTS, START, IDLE = CAUSES = ("training", "faults", "start", "idle")
"""Why devices were held: for results in use, for lost and repeated work, to start, or between phases."""


class HeldInterval(NamedTuple):
    """A piece of the time in which a run held its devices, in milliseconds since 1970.

    cause: one of `CAUSES`.
    """

    start: int
    end: int
    cause: str
    phase: str


class ChargeKey(NamedTuple):
    """What an amount belongs to.

    device: the kind of device; empty if it was not recorded.
    currency: empty if the price is unknown.
    """

    run: str
    project: str
    owner: str
    device: str
    currency: str
    cause: str
    phase: str


@dataclass(frozen=True, slots=True)
class Amounts:
    """What devices were held for, and what that cost.

    device_ms: milliseconds times devices.
    unpriced_ms: those of them whose price is unknown.
    unmetered_ms: those whose power or emission is unknown.
    cost: money, in the currency of the `ChargeKey`.
    """

    device_ms: int = 0
    unpriced_ms: int = 0
    unmetered_ms: int = 0
    cost: Decimal = Decimal(0)
    energy_kwh: Decimal = Decimal(0)
    carbon_g: Decimal = Decimal(0)

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            device_ms=self.device_ms + other.device_ms,
            unpriced_ms=self.unpriced_ms + other.unpriced_ms,
            unmetered_ms=self.unmetered_ms + other.unmetered_ms,
            cost=self.cost + other.cost,
            energy_kwh=self.energy_kwh + other.energy_kwh,
            carbon_g=self.carbon_g + other.carbon_g,
        )

    @property
    def device_hours(self) -> Decimal:
        """Hours times devices, rounded to a millionth."""
        return rounded(Fraction(self.device_ms, MS_PER_HOUR))


Charges = Mapping[ChargeKey, Amounts]


@dataclass(slots=True)
class _RunningTotal:
    """A sum of fractions, whose parts are the differences of its roundings."""

    exact: Fraction = Fraction(0)
    given: Decimal = Decimal(0)

    def add(self, amount: Fraction) -> Decimal:
        self.exact += amount
        part = rounded(self.exact) - self.given
        self.given += part
        return part


@dataclass(slots=True)
class _Totals:
    """The running totals of a run: money by currency, energy and carbon."""

    cost: dict[str, _RunningTotal] = field(default_factory=dict)
    energy: _RunningTotal = field(default_factory=_RunningTotal)
    carbon: _RunningTotal = field(default_factory=_RunningTotal)

    def charge(self, device_ms: int, tariff: Tariff, currency: str) -> Amounts:
        hours = Fraction(device_ms, MS_PER_HOUR)
        made = Amounts(device_ms=device_ms)
        if tariff.per_hour is None:
            made = replace(made, unpriced_ms=device_ms)
        else:
            total = self.cost.setdefault(currency, _RunningTotal())
            made = replace(made, cost=total.add(hours * Fraction(tariff.per_hour)))
        if tariff.watts is None:
            return replace(made, unmetered_ms=device_ms)
        kwh = hours * Fraction(tariff.watts) * Fraction(tariff.pue) / 1000
        made = replace(made, energy_kwh=self.energy.add(kwh))
        if tariff.carbon_g_per_kwh is None:
            return replace(made, unmetered_ms=device_ms)
        return replace(made, carbon_g=self.carbon.add(kwh * Fraction(tariff.carbon_g_per_kwh)))


def charge(
    run: str, pieces: Iterable[HeldInterval], records: Sequence[BillingRecord], since: int | None = None
) -> dict[ChargeKey, Amounts]:
    """Returns what a run is charged for its time.

    pieces: in order of time, without overlaps.
    records: in order of `since`; the last one before a moment is in force.
    since: the charges before this time are left out; they are still part of the totals that are rounded.
    """
    totals = _Totals()
    found = dict[ChargeKey, Amounts]()
    for piece, record in _cut(pieces, records, since):
        currency = record.currency
        for device, held in sorted(record.devices.items()):
            amounts = totals.charge((piece.end - piece.start) * held.count, held.tariff, currency)
            if since is not None and piece.start < since:
                continue
            known = currency if held.tariff.per_hour is not None else ""
            place = ChargeKey(
                run=run,
                project=record.project,
                owner=record.owner,
                device=device,
                currency=known,
                cause=piece.cause,
                phase=piece.phase,
            )
            found[place] = found.get(place, Amounts()) + amounts
    return found


def _cut(
    pieces: Iterable[HeldInterval], records: Sequence[BillingRecord], since: int | None
) -> Iterator[tuple[HeldInterval, BillingRecord]]:
    """Cuts pieces where another record comes into force and at `since`; yields each part with its record."""
    moments = sorted({record.since for record in records} | ({since} if since is not None else set()))
    number = -1
    after = 0
    for piece in pieces:
        start = piece.start
        while after < len(moments) and moments[after] <= start:
            after += 1
        inner = [at for at in moments[after:] if at < piece.end]
        for end in (*inner, piece.end):
            while number + 1 < len(records) and records[number + 1].since <= start:
                number += 1
            if end > start and records:
                yield HeldInterval(start, end, piece.cause, piece.phase), records[max(0, number)]
            start = end


def whole(charges: Charges) -> dict[str, Amounts]:
    """Returns the sum by currency; devices without a price are under the empty one."""
    sums: dict[str, Amounts] = {}
    for place, amounts in charges.items():
        sums[place.currency] = sums.get(place.currency, Amounts()) + amounts
    return sums


def rounded(amount: Fraction) -> Decimal:
    """Returns a fraction rounded to a millionth, half to even."""
    return Decimal(round(amount * 1_000_000)).scaleb(-6)
