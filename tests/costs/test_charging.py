"""Charges add up: whatever the division of the time into causes, phases, records and reports, the sum is the whole."""

from __future__ import annotations

import json
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from yatt_core.costs.billing import BillingRecord, HeldDevices
from yatt_core.costs.charging import CAUSES, MS_PER_HOUR, Amounts, HeldInterval, charge, rounded, whole
from yatt_core.costs.prices import Tariff

PRICES = st.decimals("0.000001", "999.999999", places=6)
TARIFFS = st.builds(
    Tariff,
    per_hour=PRICES | st.none(),
    watts=PRICES | st.none(),
    pue=st.decimals("1", "2", places=2),
    carbon_g_per_kwh=PRICES | st.none(),
)
DEVICES = st.dictionaries(
    st.sampled_from(["H100", "core"]), st.builds(HeldDevices, st.integers(1, 64), TARIFFS), min_size=1
)


@st.composite
def pieces(draw: st.DrawFn) -> list[HeldInterval]:
    at = draw(st.integers(0, 10**6))
    found = []
    for length, gap in draw(
        st.lists(st.tuples(st.integers(0, 10**7), st.integers(0, 3) | st.just(10**6)), max_size=12)
    ):
        at += gap
        found.append(
            HeldInterval(at, at + length, draw(st.sampled_from(CAUSES)), draw(st.sampled_from(["collect", "learn"])))
        )
        at += length
    return found


@st.composite
def records(draw: st.DrawFn) -> list[BillingRecord]:
    times = sorted(draw(st.lists(st.integers(0, 10**8), max_size=4)))
    return [
        BillingRecord(
            at, draw(st.sampled_from(["", "math"])), "ada", draw(st.sampled_from(["EUR", "USD"])), draw(DEVICES)
        )
        for at in (0, *times)
    ]


def in_force(known: list[BillingRecord], at: int) -> BillingRecord:
    return [record for record in known if record.since <= at][-1]


@given(pieces(), records())
def test_the_parts_add_up_to_the_whole_exactly(held: list[HeldInterval], known: list[BillingRecord]) -> None:
    parts = charge("run-1", held, known)
    exact: dict[str, Fraction] = {}
    device_ms = 0
    for piece in held:
        moments = [piece.start, *sorted({r.since for r in known if piece.start < r.since < piece.end}), piece.end]
        for start, end in pairwise(moments):
            record = in_force(known, start)
            for devices in record.devices.values():
                device_ms += (end - start) * devices.count
                if devices.tariff.per_hour is not None:
                    hours = Fraction((end - start) * devices.count, MS_PER_HOUR)
                    exact[record.currency] = exact.get(record.currency, Fraction(0)) + hours * Fraction(
                        devices.tariff.per_hour
                    )
    sums = whole(parts)
    assert {name: amounts.cost for name, amounts in sums.items() if amounts.cost} == {
        name: rounded(amount) for name, amount in exact.items() if rounded(amount)
    }
    assert sum(amounts.device_ms for amounts in parts.values()) == device_ms
    together = charge("run-1", [HeldInterval(piece.start, piece.end, "", "") for piece in held], known)
    assert sum(parts.values(), Amounts()) == sum(together.values(), Amounts()), "however the time is divided"


@given(pieces(), records(), st.integers(0, 10**8))
def test_the_charges_before_and_after_a_time_add_up_to_all(
    held: list[HeldInterval], known: list[BillingRecord], since: int
) -> None:
    before = [HeldInterval(p.start, min(p.end, since), p.cause, p.phase) for p in held if p.start < since]
    parts = [*charge("r", before, known).values(), *charge("r", held, known, since).values()]
    assert sum(parts, Amounts()) == sum(charge("r", held, known).values(), Amounts())


@given(records())
def test_a_record_is_read_back_as_it_was(known: list[BillingRecord]) -> None:
    for record in known:
        assert BillingRecord.of(json.loads(json.dumps(record.body()))) == record


def test_an_hour_of_eight_devices() -> None:
    tariff = Tariff(Decimal("2.5"), Decimal(700), Decimal("1.2"), Decimal(400))
    record = BillingRecord(0, "math", "ada", "EUR", {"H100": HeldDevices(8, tariff)})
    ((place, amounts),) = charge("run-1", [HeldInterval(0, MS_PER_HOUR, "training", "learn")], [record]).items()
    assert place == ("run-1", "math", "ada", "H100", "EUR", "training", "learn")
    assert amounts == Amounts(8 * MS_PER_HOUR, 0, 0, Decimal(20), Decimal("6.72"), Decimal(2688))
    assert amounts.device_hours == 8


def test_unknown_prices_and_powers_are_counted() -> None:
    record = BillingRecord(0, "", "", "EUR", {"core": HeldDevices(2, Tariff(watts=Decimal(5)))})
    ((place, amounts),) = charge("run-1", [HeldInterval(0, 1000, "idle", "")], [record]).items()
    assert place.currency == "" and (amounts.unpriced_ms, amounts.unmetered_ms) == (2000, 2000)
