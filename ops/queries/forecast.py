"""When a run reaches its target at its rate, beside its deadline.

Consumes the ledger: the durations of the newest iterations, and the spec in force. Produces `RunForecast`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from db.ledger import Ledger
from flows.driver.target_deadline import ITERATION_SECONDS
from ops.queries.run_list import DRIVEN, ListedRun
from yatt_core.guards.deadline import RECENT, TargetForecast, forecast, standing


@dataclass(frozen=True, slots=True)
class RunForecast:
    """A run's forecast and deadline.

    expected_at: when it reaches its target, in milliseconds since 1970; None if it has, or if there is no rate yet.
    deadline_at: the same for its deadline; None if it has none.
    text: both for people; empty if there is neither.
    """

    expected_at: int | None
    deadline_at: int | None
    text: str

    @property
    def is_late(self) -> bool:
        """True if the deadline will be missed at this rate."""
        return None not in (self.expected_at, self.deadline_at) and (self.expected_at or 0) > (self.deadline_at or 0)


def run_forecast(ledger: Ledger, run: ListedRun, spec: Mapping[str, Any]) -> RunForecast:
    """Returns a run's forecast.

    spec: the revision in force, as the ledger stores it. A run that nobody drives is taken to go on now.
    """
    deadline = _deadline_in(spec)
    driven = run.driver == DRIVEN
    expected: TargetForecast | None = None
    if run.committed_at is not None and run.last_commit_age is not None:
        now = run.committed_at + round(1000 * run.last_commit_age)
        seconds = [value for _, value in ledger.metrics.newest(run.id, ITERATION_SECONDS, RECENT)]
        under_way = run.last_commit_age if driven else 0.0
        expected = forecast(
            seconds=seconds, iteration=run.iteration, target=run.target_iterations, now=now, under_way=under_way
        )
    text = standing(expected, deadline)
    if expected is not None and not driven:
        text = f"if it went on now: {text}"
    return RunForecast(
        expected_at=None if expected is None else expected.at,
        deadline_at=None if deadline is None else round(1000 * deadline.timestamp()),
        text=text,
    )


def _deadline_in(spec: Mapping[str, Any]) -> datetime | None:
    """Returns the deadline in a stored spec; one of an older version has no such key."""
    at = spec["guards"].get("deadline", {}).get("at")
    return None if at is None else datetime.fromisoformat(at)
