"""What runs cost, summed by run, project, owner, phase, cause or device, for commands, pages and metrics.

Consumes the ledger; produces `Costs`. The charges of a run are computed again only once its audit chain has a new link or
while it has a driver.
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Literal, get_args
from weakref import WeakKeyDictionary

from db.ledger import Ledger
from flows.members.tags import maker_of
from flows.reports.costs import charges_of
from ops.costs.words import figures
from ops.presentation.columns import Cell, Column, Columns, RunCell
from yatt_core.costs.charging import Amounts, ChargeKey
from yatt_core.costs.prices import PriceFile

Dimension = Literal["run", "project", "owner", "phase", "cause", "device"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
RUNS = 1_000
"""Maximum number of runs that are summed; the newest ones."""
NOBODY = "none"
"""The name of what has none, such as a run without a project."""
GRAMS = 1000
DEVICE_HOURS = "device-hours"


@dataclass(frozen=True, slots=True)
class CostRow:
    """A sum. All numbers are decimal text.

    names: one for each of the dimensions.
    currency: empty for devices without a known price.
    unpriced_device_seconds: seconds times devices whose price is unknown.
    unmetered_device_seconds: those whose power or emission is unknown.
    """

    names: tuple[str, ...]
    currency: str
    cost: str
    device_seconds: str
    unpriced_device_seconds: str
    energy_kwh: str
    carbon_kg: str
    unmetered_device_seconds: str


@dataclass(frozen=True, slots=True)
class Costs:
    """What runs cost.

    by: the dimensions.
    rows: by falling cost, then by falling device hours.
    totals: one row for each currency, and one for devices without a price.
    unpriced: the runs of which some time has no known price.
    runs: number of runs that are summed; `left_out` is the number of older ones that are not.
    since: milliseconds since 1970; None: from the beginning.
    """

    by: tuple[Dimension, ...]
    rows: tuple[CostRow, ...]
    totals: tuple[CostRow, ...]
    unpriced: tuple[str, ...]
    runs: int
    left_out: int
    since: int | None


Compute = Callable[[Ledger, str, int | None], dict[ChargeKey, Amounts]]


class _Kept:
    """The charges of a ledger's runs, by what computed them; one thread at a time computes."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.runs: dict[tuple[Compute, str], tuple[int, int | None, dict[ChargeKey, Amounts]]] = {}


_kept: WeakKeyDictionary[Ledger, _Kept] = WeakKeyDictionary()


def run_charges(
    ledger: Ledger, run: str, since: int | None = None, driven: bool = True, compute: Compute = charges_of
) -> dict[ChargeKey, Amounts]:
    """Returns the charges of a run, by its full id. Raises `RunNotFound`.

    driven: whether the run has a driver, so that its time goes on between two links of its audit chain.
    compute: `charges_of`, or `total_charges`, which takes the same time however long the run is.
    """
    head = ledger.events.head(run).seq
    kept = _kept.setdefault(ledger, _Kept())
    with kept.lock:
        seq, from_time, found = kept.runs.get((compute, run), (-1, None, {}))
        if driven or seq != head or from_time != since:
            found = compute(ledger, run, since)
            kept.runs[compute, run] = head, since, found
    return found


def costs(
    ledger: Ledger,
    by: Sequence[Dimension] = ("run",),
    since: int | None = None,
    runs: Sequence[str] | None = None,
    done: Callable[[int, int], None] = lambda done, total: None,
    prices: PriceFile | None = None,
) -> Costs:
    """Returns what runs cost, by default all runs of the ledger. Raises `RunNotFound`.

    A run without an owner in its spec belongs to who created it.

    runs: full ids.
    prices: apply to time whose price is unknown; nothing is recorded. None: such time has no price.
    done: receives the number of runs that are summed, and of all.
    """
    known = [row.id for row in ledger.runs.list(RUNS + 1)] if runs is None else list(runs)
    chosen = known[:RUNS]
    left_out = (
        ledger.run_list.page(text="", state=None, limit=1, offset=0, tags=()).total - RUNS if len(known) > RUNS else 0
    )
    driven = ledger.leases.holders()
    groups: dict[tuple[tuple[str, ...], str], Amounts] = {}
    totals: dict[str, Amounts] = {}
    unpriced = []
    for number, run in enumerate(chosen, 1):
        charges = (
            run_charges(ledger, run, since, run in driven) if prices is None else charges_of(ledger, run, since, prices)
        )
        maker = maker_of(ledger, run) if "owner" in by else ""
        for place, amounts in charges.items():
            names = {name: getattr(place, name) or (maker if name == "owner" else "") for name in by}
            key = tuple(name or NOBODY for name in names.values()), place.currency
            groups[key] = groups.get(key, Amounts()) + amounts
            totals[place.currency] = totals.get(place.currency, Amounts()) + amounts
        if any(amounts.unpriced_ms for amounts in charges.values()):
            unpriced.append(run)
        done(number, len(chosen))
    ordered = sorted(groups.items(), key=lambda item: (-item[1].cost, -item[1].device_ms, item[0]))
    return Costs(
        by=tuple(by),
        rows=tuple(_row(names, currency, amounts) for (names, currency), amounts in ordered),
        totals=tuple(_row((), currency, amounts) for currency, amounts in sorted(totals.items(), reverse=True)),
        unpriced=tuple(unpriced),
        runs=len(chosen),
        left_out=left_out,
        since=since,
    )


def csv_of(found: Costs) -> str:
    """Returns the rows as CSV with a header. A text that a spreadsheet would take for a formula gets an apostrophe."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [name for name in CostRow.__slots__ if name != "names"]
    writer.writerow([*found.by, *columns])
    for row in found.rows:
        names = [f"'{name}" if name[:1] in "=+-@\t\r" else name for name in row.names]
        writer.writerow([*names, *(getattr(row, column) for column in columns)])
    return stream.getvalue()


def stacks_of(found: Costs) -> dict[str, dict[str, dict[str, Decimal]]]:
    """Returns amounts by cause, by name, by unit: money in each currency, and the device hours without a price.

    found: by a dimension and by cause.
    """
    units: dict[str, dict[str, dict[str, Decimal]]] = {}
    for row in found.rows:
        name, cause = row.names
        amount = Decimal(row.cost) if row.currency else hours_of(row.device_seconds)
        units.setdefault(row.currency or DEVICE_HOURS, {}).setdefault(name, {})[cause] = amount
    return units


def _row(names: tuple[str, ...], currency: str, amounts: Amounts) -> CostRow:
    return CostRow(
        names=names,
        currency=currency,
        cost=format(amounts.cost, "f"),
        device_seconds=_seconds(amounts.device_ms),
        unpriced_device_seconds=_seconds(amounts.unpriced_ms),
        energy_kwh=format(amounts.energy_kwh, "f"),
        carbon_kg=format(amounts.carbon_g / GRAMS, "f"),
        unmetered_device_seconds=_seconds(amounts.unmetered_ms),
    )


def _seconds(milliseconds: int) -> str:
    return format(Decimal(milliseconds) / 1000, "f")


def hours_of(seconds: str) -> Decimal:
    """Returns seconds as hours."""
    return Decimal(seconds) / 3600


FIGURES = ("cost", "device-hours", "kWh", "kg CO2")
UNKNOWN = "unknown"


def cost_columns(by: Sequence[str]) -> Columns[CostRow]:
    """Returns the columns of sums: a column for each dimension, then the figures."""
    return (
        *(_dimension_column(place, name) for place, name in enumerate(by)),
        *(_figure_column(place, name) for place, name in enumerate(FIGURES)),
    )


def _dimension_column(place: int, name: str) -> Column[CostRow]:
    def cell(row: CostRow) -> Cell:
        return RunCell(row.names[place]) if name == "run" else row.names[place]

    return Column(name, cell, heads=place == 0, style="break")


def _figure_column(place: int, name: str) -> Column[CostRow]:
    return Column(name, lambda row: figures(row)[place] or UNKNOWN, number=True, verbatim=name.startswith("k"))
