"""`yatt costs`: what runs cost by run, project, owner, phase, cause or device, as a table, JSON or CSV.

Consumes the ledger through `ops.costs.view`, as the dashboard does.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flows.run.home import Home
from ops.costs.words import figures
from ops.presentation.columns import Column
from ops.presentation.output import message, write, write_json, write_list
from ops.terminal.completion import complete_run
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, examples
from yatt_core.counting import many
from yatt_core.errors import ConfigurationError

if TYPE_CHECKING:
    from ops.costs.view import CostRow, Costs

app = typer.Typer()

LISTED = 5
"""Number of runs without a price that are named."""
BAR = 20


class By(StrEnum):
    """What costs are summed by."""

    RUN = "run"
    PROJECT = "project"
    OWNER = "owner"
    PHASE = "phase"
    CAUSE = "cause"
    DEVICE = "device"


class CostsFormat(StrEnum):
    """Output format."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"


@app.command(
    epilog=examples(
        "yatt costs",
        "yatt costs --by project --by cause --since 2026-11-01",
        "yatt costs latest --by phase",
        "yatt costs --by owner -o csv > owners.csv",
        "yatt costs --fill-prices",
    )
)
def costs(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Ids of runs, unique prefixes, or `latest`. Default: all.",
            autocompletion=complete_run,
        ),
    ] = None,
    by: Annotated[list[By] | None, typer.Option("--by", help="What to sum by; may be given more than once.")] = None,
    since: Annotated[
        str | None, typer.Option(metavar="DATE", help="Only from this time on, such as 2026-11-01, in UTC.")
    ] = None,
    fill_prices: Annotated[
        bool,
        typer.Option(
            "--fill-prices",
            help="Use the price file also for device time of which no price is recorded; records nothing.",
        ),
    ] = False,
    home: HomeOption = None,
    output: Annotated[CostsFormat, typer.Option("--output", "-o", help="Output format.")] = CostsFormat.TEXT,
) -> None:
    """Show what runs cost: money, device hours, energy and carbon, by the prices in force at the time."""
    from flows.billing.price_file import home_prices
    from ops.costs import view as query

    place = Home.locate(home)
    prices = home_prices(place)  # a mistake in the price file is the likely reason for costs that are missing
    if fill_prices and prices is None:
        raise ConfigurationError("--fill-prices: there is no price file; write prices.yaml in the home (docs/costs.md)")
    dimensions: list[query.Dimension] = [each.value for each in dict.fromkeys(by or [By.RUN])]
    with opened_ledger(place) as ledger:
        names = list(dict.fromkeys(find_run(ledger, run) for run in runs)) if runs else None
        start = None if since is None else moment_of(since)
        found = query.costs(
            ledger=ledger,
            by=dimensions,
            since=start,
            runs=names,
            done=_progress(),
            prices=prices if fill_prices else None,
        )
    if output is CostsFormat.CSV:
        sys.stdout.write(query.csv_of(found))
    elif output is CostsFormat.JSON:
        write_json(asdict(found))
    else:
        _write(found)


def moment_of(text: str) -> int:
    """Returns a date or time as milliseconds since 1970; without a time zone, in UTC. Raises `ConfigurationError`."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigurationError(
            f"--since {text:.40}: expected a date or a time, such as 2026-11-01 or 2026-11-01T08:00+01:00"
        ) from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _progress() -> Callable[[int, int], None]:
    """Returns a function that shows the number of summed runs on a terminal."""
    if not sys.stderr.isatty():
        return lambda done, total: None

    def show(done: int, total: int) -> None:
        end = "\r\x1b[K" if done == total else ""
        sys.stderr.write(f"\r{done}/{many(total, 'run')}{end}")
        sys.stderr.flush()

    return show


def _write(found: Costs) -> None:
    from ops.costs.view import cost_columns

    if not found.rows:
        write("no device has been used yet")
        return
    highest = max(_size(row) for row in found.rows)
    bar: Column[CostRow] = Column("", lambda row: _bar(row, highest))
    write_list((*cost_columns(found.by), bar), found.rows)
    for row in found.totals:
        cost, hours, energy, carbon = figures(row)
        write(f"total: {cost or 'no known price'}, {hours} device-hours, {energy or '?'} kWh, {carbon or '?'} kg CO2")
    if found.unpriced:
        named = ", ".join(found.unpriced[:LISTED])
        more = f" and {len(found.unpriced) - LISTED} more" if len(found.unpriced) > LISTED else ""
        message(
            f"the price of some device time is unknown: {named}{more}; --fill-prices uses the price file for it (docs/costs.md)"
        )
    if found.left_out:
        message(f"left out: {many(found.left_out, 'older run')}; `yatt costs RUN` shows the costs of one")


def _size(row: CostRow) -> tuple[bool, Decimal]:
    return bool(row.currency), Decimal(row.cost if row.currency else row.device_seconds)


def _bar(row: CostRow, highest: tuple[bool, Decimal]) -> str:
    """Returns a bar in proportion to the largest row; without a price next to priced rows, none."""
    priced, size = _size(row)
    return "█" * round(BAR * size / highest[1]) if priced == highest[0] and highest[1] else ""
