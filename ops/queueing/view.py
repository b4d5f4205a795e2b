"""The queue as people look at it: pools with their devices, runs that hold or wait for devices, predictions and their scores.

Consumes the ledger and the pools file; produces a `QueueView`. Times are milliseconds since 1970, durations seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from db.core.queue_rows import AllocationRow, EntryRow, ForecastRow, QueueRows
from db.ledger import Ledger
from flows.queueing.forecasts import relative_error
from flows.queueing.ledger_facts import cost_of
from flows.queueing.pools import PoolsSpec
from flows.queueing.pools_file import pools_file, read_pools
from flows.run.home import Home
from ops.presentation.columns import Column, Columns, RunCell
from ops.queueing.words import cost_text, pool_text, when_text

ENDED = 20
"""Number of runs that ended last and are shown."""


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool.

    held, away, free: numbers of devices.
    price: of a device for an hour; None if it has none.
    """

    name: str
    devices: int
    held: int
    away: tuple[int, ...]
    free: int
    spot: bool
    price: float | None
    currency: str | None


@dataclass(frozen=True, slots=True)
class EntryView:
    """A run in the queue.

    pool, held: the devices that it holds, as the ledger has them; None while it holds none.
    waited: seconds that it has waited for devices.
    starts: allocations so far.
    ends_at, cost: the newest prediction, or how it ended.
    cost_error: relative error of the first prediction of the cost; None before the end.
    """

    run: str
    state: str
    wanted: str
    reason: str
    owner: str
    project: str
    priority: int
    devices: int
    pools: tuple[str, ...]
    pool: str | None
    held: str | None
    submitted_at: int
    waited: float
    starts: int
    iteration: int
    target_iterations: int
    ends_at: int | None
    cost: float | None
    currency: str | None
    cost_error: float | None


@dataclass(frozen=True, slots=True)
class QueueView:
    """The queue.

    scheduler: who schedules; None if nobody does.
    pools_file: where the pools are declared.
    ended: runs that ended last, newest first.
    """

    pools_file: str
    scheduler: str | None
    pools: tuple[PoolView, ...]
    entries: tuple[EntryView, ...]
    ended: tuple[EntryView, ...]


def queue_view(ledger: Ledger, home: Home) -> QueueView:
    """Returns the queue as it is now. Raises `ConfigurationError` for a bad pools file."""
    rows = ledger.queue.rows()
    file = pools_file(home)
    pools = read_pools(home) if file.exists() else None
    ended = ledger.queue.ended(ENDED)
    runs = [row.run for row in (*rows.open, *ended)]
    stretches = ledger.queue.allocations(runs=runs)
    predictions = ledger.queue.forecasts(runs)
    known = ledger.queue.scheduler()
    serving = known is not None and known.holder is not None and known.expires_in > 0

    def view(row: EntryRow) -> EntryView:
        own = [each for each in stretches if each.run == row.run]
        return _entry_view(
            ledger=ledger,
            row=row,
            own=own,
            predictions=[each for each in predictions if each.run == row.run],
            now=rows.now,
        )

    return QueueView(
        pools_file=str(file),
        scheduler=known.holder.text if serving and known is not None and known.holder is not None else None,
        pools=() if pools is None else tuple(_pool_view(name, pools, rows) for name in sorted(pools.pools)),
        entries=tuple(view(row) for row in sorted(rows.open, key=lambda row: (row.state, -row.priority, row.seq))),
        ended=tuple(view(row) for row in ended),
    )


def _pool_view(name: str, pools: PoolsSpec, rows: QueueRows) -> PoolView:
    pool = pools.pools[name]
    held = [row for row in rows.held if row.pool == name]
    also = [row for row in rows.held if row.gpus and pool.gpus is not None]
    taken = {number for row in (*held, *also) for number in row.numbers}.intersection(pool.numbers)
    away = {row.device for row in rows.outages if row.pool == name and row.device in pool.numbers}
    return PoolView(
        name=name,
        devices=len(pool.numbers),
        held=len(taken),
        away=tuple(sorted(away)),
        free=len([number for number in pool.numbers if number not in taken and number not in away]),
        spot=pool.spot,
        price=None if pool.price is None else pool.price.per_device_hour,
        currency=None if pool.price is None else pool.price.currency,
    )


def _entry_view(
    ledger: Ledger, row: EntryRow, own: Sequence[AllocationRow], predictions: Sequence[ForecastRow], now: int
) -> EntryView:
    run = ledger.runs.find(row.run)
    held = next((each for each in own if each.ended_at is None), None)
    newest = predictions[-1] if predictions else None
    ends_at, cost = (None, None) if newest is None else (newest.end_at, newest.cost)
    if row.ended_at is not None:
        ends_at = row.ended_at
        cost = cost_of(own, now)
    return EntryView(
        run=row.run,
        state=row.state,
        wanted=row.wanted,
        reason=row.outcome or row.reason,
        owner=row.owner,
        project=row.project,
        priority=row.priority,
        devices=row.devices,
        pools=tuple(row.pools.split(",")),
        pool=None if held is None else held.pool,
        held=None if held is None else held.devices,
        submitted_at=row.submitted_at,
        waited=row.waited(now),
        starts=len(own),
        iteration=run.iteration,
        target_iterations=run.target_iterations,
        ends_at=ends_at,
        cost=cost,
        currency=own[-1].currency if own else None,
        cost_error=_cost_error(predictions),
    )


def _cost_error(predictions: Sequence[ForecastRow]) -> float | None:
    for row in predictions:
        if row.cost is not None and row.actual_cost is not None:
            return relative_error(row.cost, row.actual_cost)
    return None


def _devices(entry: EntryView) -> str:
    if entry.pool is None:
        return f"{entry.devices} of {' or '.join(entry.pools)}"
    return f"{entry.pool}: {entry.held}"


def _state(entry: EntryView) -> str:
    return "held back" if entry.wanted == "hold" and entry.state == "waiting" else entry.state


POOLS: Columns[PoolView] = (
    Column("pool", lambda pool: pool.name, heads=True),
    Column("devices", lambda pool: pool.devices, number=True),
    Column("held", lambda pool: pool.held, number=True),
    Column("free", lambda pool: pool.free, number=True),
    Column("away", lambda pool: ", ".join(map(str, pool.away))),
    Column("kind", pool_text),
)
ENTRIES: Columns[EntryView] = (
    Column("run", lambda entry: RunCell(entry.run), heads=True),
    Column("state", _state),
    Column("priority", lambda entry: entry.priority, number=True),
    Column("owner", lambda entry: entry.owner),
    Column("project", lambda entry: entry.project),
    Column("devices", _devices, style="break"),
    Column("iteration", lambda entry: f"{max(entry.iteration, 0)}/{entry.target_iterations}", number=True),
    Column("waited", lambda entry: f"{entry.waited / 3600:.1f} h", number=True),
    Column("end, UTC", lambda entry: when_text(entry.ends_at)),
    Column("cost", cost_text),
    Column("why", lambda entry: entry.reason, style="break", wraps=True),
)
