"""`/metrics`: the metrics that Prometheus scrapes, read from the ledger at each scrape.

Consumes only the ledger, so a run whose driver is dead is exported like any other. Produces metric families. A
limited number of runs have their own series: running ones first, then the newest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from db.core.approval_rules import PENDING, standing
from db.core.errors import LedgerUnavailable
from db.core.migrate import HEAD
from db.ledger import Ledger
from db.write.queueing import RUNNING, WAITING
from db.write.runs import STATES
from flows.billing.held_time import total_charges
from flows.reports.measures import BY_KIND, SAMPLED_PAIRS
from ops.costs.view import run_charges
from ops.metrics import names
from ops.metrics.names import MetricName
from ops.queries.accounts import accounts
from ops.queries.forecast import run_forecast
from ops.queries.run import THROUGHPUT
from ops.queries.run_list import DRIVEN, LOST, ListedRun, RunList, run_list

RUNS = 200
"""Maximum number of runs with their own series."""
OPEN_APPROVALS = 1000
"""Maximum number of open approvals that are counted."""
ACCOUNTED = 20
"""Maximum number of driven runs with time accounts and forecasts, which require reading their newest attempts."""
HEALTH = dict.fromkeys(key for each in (*BY_KIND.values(), SAMPLED_PAIRS) for key in each.health)
LEARNING = (*HEALTH, *THROUGHPUT)


class LedgerCollector(Collector):
    """Reads everything from the ledger at each scrape."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def collect(self) -> Iterator[Metric]:
        """Yields all families; if the ledger is unavailable, only the two that do not need it."""
        yield InfoMetricFamily(names.BUILD.name, names.BUILD.help, {"version": version("yatt"), "ledger": HEAD})
        try:
            families = list(self._read())
        except LedgerUnavailable:
            yield _filled(names.LEDGER_UP, {(): 0.0})
            return
        yield _filled(names.LEDGER_UP, {(): 1.0})
        yield from families

    def _read(self) -> Iterator[Metric]:
        found = run_list(self._ledger, limit=RUNS)
        runs = [run.id for run in found.runs]
        yield from _of_ledger(found)
        yield from _of_queue(self._ledger)
        yield from _of_approvals(self._ledger)
        yield from _of_lines(found.runs)
        yield _filled(
            names.CHECKPOINT, {(run,): at / 1000 for run, at in self._ledger.run_list.newest_checkpoints(runs).items()}
        )
        waits = self._ledger.waits.of(runs)
        yield _filled(names.WAITING, {(run, row.dependency): row.since / 1000 for run, row in waits.items()})
        pending = self._ledger.run_list.outbox_pending(runs)
        yield _filled(names.OUTBOX, {(run,): float(pending.get(run, 0)) for run in runs})
        newest = self._ledger.run_list.newest(runs, LEARNING)
        yield _filled(names.LEARNING, newest)
        failed = self._ledger.run_list.attempts(runs)
        yield _filled(
            names.FAILED, {(run, *key): count for run, counts in failed.items() for key, count in counts.items()}
        )
        yield _filled(names.ALARMS, self._ledger.run_list.alarms(runs))
        yield from self._costs(found.runs)
        driven = [run for run in found.runs if run.driver == DRIVEN][:ACCOUNTED]
        yield from self._forecasts(driven)
        yield from self._times([run.id for run in driven])

    def _forecasts(self, runs: Sequence[ListedRun]) -> Iterator[Metric]:
        made = {run.id: run_forecast(self._ledger, run, self._ledger.runs.revision(run.id).spec) for run in runs}
        expected: dict[tuple[str, ...], float] = {}
        deadlines: dict[tuple[str, ...], float] = {}
        for run, each in made.items():
            if each.expected_at is not None:
                expected[run,] = each.expected_at / 1000
            if each.deadline_at is not None:
                deadlines[run,] = each.deadline_at / 1000
        yield _filled(names.EXPECTED, expected)
        yield _filled(names.DEADLINE, deadlines)

    def _costs(self, runs: Sequence[ListedRun]) -> Iterator[Metric]:
        cost: dict[tuple[str, ...], float] = {}
        seconds: dict[tuple[str, ...], float] = {}
        carbon: dict[tuple[str, ...], float] = {}
        for run in runs:
            charges = run_charges(self._ledger, run.id, driven=run.driver == DRIVEN, compute=total_charges)
            for place, amounts in charges.items():
                key = place.run, place.project, place.owner
                seconds[key] = seconds.get(key, 0.0) + amounts.device_ms / 1000
                if place.currency:
                    cost[*key, place.currency] = cost.get((*key, place.currency), 0.0) + float(amounts.cost)
                if amounts.carbon_g:
                    carbon[key] = carbon.get(key, 0.0) + float(amounts.carbon_g)
        yield _filled(names.COST, cost)
        yield _filled(names.DEVICE_SECONDS, seconds)
        yield _filled(names.CARBON, carbon)

    def _times(self, runs: Sequence[str]) -> Iterator[Metric]:
        ratios: dict[tuple[str, ...], float] = {}
        shares: dict[tuple[str, ...], float] = {}
        for run in runs:
            made = accounts(self._ledger, run).accounts
            if made.ettr is not None:
                ratios[run,] = made.ettr
                shares |= {(run, name): took / made.wall_seconds for name, took in made.buckets.items()}
        yield _filled(names.ETTR, ratios)
        yield _filled(names.TIME_SHARE, shares)


def registry_of(ledger: Ledger) -> CollectorRegistry:
    """Returns a registry that contains only the ledger's metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(LedgerCollector(ledger))
    return registry


def _of_ledger(found: RunList) -> Iterator[Metric]:
    yield _filled(names.RUNS, {(state,): float(found.states.get(state, 0)) for state in STATES})
    yield _filled(names.RUNS_LEFT_OUT, {(): float(found.total - len(found.runs))})


def _of_queue(ledger: Ledger) -> Iterator[Metric]:
    rows = ledger.queue.rows()
    scheduler = ledger.queue.scheduler()
    states = Counter(entry.state for entry in rows.open)
    waits = [entry.waited(rows.now) for entry in rows.open if entry.waiting_since is not None]
    held = Counter[str]()
    away = Counter(outage.pool for outage in rows.outages)
    for allocation in rows.held:
        held[allocation.pool] += len(allocation.numbers)
    up = scheduler is not None and scheduler.holder is not None and scheduler.expires_in > 0
    yield _filled(names.QUEUE_ENTRIES, {(state,): float(states[state]) for state in (WAITING, RUNNING)})
    yield _filled(names.QUEUE_WAIT, {(): max(waits, default=0.0)})
    yield _filled(names.QUEUE_HELD, {(pool,): float(count) for pool, count in sorted(held.items())})
    yield _filled(names.QUEUE_AWAY, {(pool,): float(count) for pool, count in sorted(away.items())})
    yield _filled(names.QUEUE_SCHEDULER, {(): float(up)})


def _of_approvals(ledger: Ledger) -> Iterator[Metric]:
    now = ledger.approvals.now()
    asked = ledger.approvals.list(OPEN_APPROVALS, only_open=True)
    waiting = [approval for approval in asked if standing(approval, now) == PENDING]
    counts = Counter(approval.kind for approval in waiting)
    longest = max((now - approval.asked_at for approval in waiting), default=0) / 1000
    yield _filled(names.APPROVALS, {(kind,): float(count) for kind, count in sorted(counts.items())})
    yield _filled(names.APPROVAL_WAIT, {(): longest})


def _of_lines(runs: Sequence[ListedRun]) -> Iterator[Metric]:
    """Yields the families that are read from the runs' own rows."""

    def gauge(metric: MetricName, values: Mapping[str, float | None]) -> Metric:
        return _filled(metric, {(run,): value for run, value in values.items() if value is not None})

    yield _filled(names.STATE, {(run.id, run.state): 1.0 for run in runs})
    yield gauge(names.DRIVEN, {run.id: float(run.driver == DRIVEN) for run in runs})
    yield gauge(names.DRIVER_LOST, {run.id: float(run.driver == LOST) for run in runs})
    yield gauge(names.STOP_ASKED, {run.id: float(run.desired_state == "stop") for run in runs})
    yield gauge(names.ITERATION, {run.id: float(run.iteration) for run in runs})
    yield gauge(names.TARGET, {run.id: float(run.target_iterations) for run in runs})
    yield gauge(names.CREATED, {run.id: run.created_at / 1000 for run in runs})
    yield gauge(
        names.COMMITTED, {run.id: None if run.committed_at is None else run.committed_at / 1000 for run in runs}
    )
    yield gauge(names.ITERATION_SECONDS, {run.id: run.iteration_seconds for run in runs})
    yield gauge(names.LEFT_SECONDS, {run.id: run.eta_seconds for run in runs})


def _filled(metric: MetricName, values: Mapping[tuple[str, ...], float]) -> Metric:
    """Returns a family of gauges or counters, from values by label."""
    make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = make(metric.name, metric.help, labels=metric.labels)
    for labels, value in values.items():
        family.add_metric(list(labels), value)
    return family
