"""Predictions of a run's end and cost after each tenth of its iterations.

Consumes where a run stands and the pools' history; produces a row of the ledger, which is scored once the run has ended.
"""

from __future__ import annotations

from db.core.queue_rows import AllocationRow, EntryRow, ForecastRow
from db.ledger import Ledger
from flows.queueing.forecasts import expected_price, forecast
from flows.queueing.ledger_facts import QueueHistory, cost_of
from flows.queueing.pools import PoolsSpec
from flows.queueing.run_progress import RunProgress

TENTHS = 10


def predicted(
    ledger: Ledger,
    pools: PoolsSpec,
    entry: EntryRow,
    held: AllocationRow,
    progress: RunProgress,
    history: QueueHistory,
) -> ForecastRow | None:
    """Returns the prediction at the newest tenth; None while too little is known."""
    run = ledger.runs.find(entry.run)
    outlook = progress.outlook()
    tenth = TENTHS * max(run.iteration, 0) // run.target_iterations
    if outlook is None or not 0 < tenth < TENTHS:
        return None
    plain = forecast(outlook, None)
    prices = {name: price for name in entry.pools.split(",") if (price := _price(pools, name)) is not None}
    cost = None
    pool = pools.pools.get(held.pool)
    # Earlier allocations are in the currency that the file had then.
    if held.pool in prices and pool is not None and pool.price is not None and pool.price.currency == held.currency:
        interruptions = (outlook.failures + outlook.stops) * plain.held_seconds
        rest = forecast(
            outlook, expected_price(prices, held.pool, history.device_seconds_of(entry.pools), interruptions)
        ).cost
        so_far = cost_of(ledger.queue.allocations(runs=[entry.run]), history.now)
        cost = None if rest is None or so_far is None else so_far + rest
    end_at = history.now + round(plain.end_seconds * 1000)
    return ForecastRow(
        run=entry.run,
        tenth=tenth,
        iteration=run.iteration,
        made_at=history.now,
        ettr=plain.ettr,
        end_at=end_at,
        cost=cost,
        ended_at=None,
        actual_cost=None,
    )


def _price(pools: PoolsSpec, name: str) -> float | None:
    pool = pools.pools.get(name)
    return None if pool is None or pool.price is None else pool.price.per_device_hour
