"""The read-only routes of the JSON API, under /api/v1: one for each read model of `ops.queries`.

Every list has a limit. Runs are addressed by their full id, which is looked up in the ledger before any file is read.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from db.read.series import SeriesKey
from db.write.annotations import TAGS
from db.write.events import EventRow
from db.write.runs import STATES
from ops.costs import view as costs
from ops.evaluation import view as suites
from ops.queries import checkpoints, compare, devices, faults, lineage, logs, placement, run, run_list, series, spec
from ops.queries.log_files import LEVELS, Filter
from ops.web.context import Before, Iteration, Limit, Number, Offset, RunId, SearchText, Served
from ops.web.texts import Like, Text, one_of

router = APIRouter(prefix="/api/v1")
Keys = Annotated[list[Text], Query(max_length=series.KEYS, description="Keys of the metrics.")]
Buckets = Annotated[int, Query(ge=1, le=series.BUCKETS, description="Maximum number of buckets.")]
State = Annotated[str, one_of(STATES)]
Level = Annotated[str, one_of(LEVELS)]
Tags = Annotated[list[Text] | None, Query(max_length=TAGS, description="Tags that a run must have.")]
By = Annotated[list[costs.Dimension] | None, Query(max_length=6, description="What to sum by.")]
Since = Annotated[int | None, Query(ge=0, le=2**53, description="Only from this time on, in milliseconds since 1970.")]
Place = Annotated[
    Annotated[str, Like(r"^\d{1,9}\.\d{1,9}\.\d{1,9}$", "the previous page's `next`, such as 2.0.1")] | None,
    Query(description="The value of `next` on the previous page."),
]


@router.get("/runs", tags=["runs"])
def list_runs(
    served: Served,
    text: SearchText = "",
    state: State | None = None,
    tag: Tags = None,
    limit: Limit = 50,
    offset: Offset = 0,
) -> run_list.RunList:
    """Lists the runs in a given state, with all given tags, whose id contains a text: running ones first."""
    return run_list.run_list(ledger=served.ledger, text=text, state=state, limit=limit, offset=offset, tags=tag or ())


@router.get("/costs", tags=["costs"])
def sum_costs(served: Served, by: By = None, since: Since = None) -> costs.Costs:
    """Returns what the newest runs cost, summed by the given dimensions, by default by run. Amounts are decimal text."""
    return costs.costs(served.ledger, tuple(dict.fromkeys(by or ("run",))), since)


@router.get("/runs/{run_id}", tags=["run"])
def show_run(served: Served, run_id: RunId) -> run.RunView:
    """Returns one run: its status, use of time, phases and newest metrics."""
    return run.run_view(served.ledger, run_id)


@router.get("/runs/{run_id}/spec", tags=["run"])
def show_spec(served: Served, run_id: RunId) -> spec.SpecView:
    """Returns the newest revision of the run's spec as lines of YAML, with the values chosen for this run marked."""
    return spec.spec_view(served.ledger, run_id)


@router.get("/runs/{run_id}/metrics", tags=["run"])
def list_metrics(served: Served, run_id: RunId) -> tuple[SeriesKey, ...]:
    """Lists the metrics recorded along the run's line."""
    return series.series_keys(served.ledger, run_id)


@router.get("/runs/{run_id}/series", tags=["run"])
def read_series(
    served: Served,
    run_id: RunId,
    key: Keys,
    buckets: Buckets = 300,
    first: Number = 0,
    last: Number | None = None,
) -> series.RunSeries:
    """Returns series of metrics, reduced to the lowest, highest and mean value of each bucket."""
    return series.series(ledger=served.ledger, run=run_id, keys=key, buckets=buckets, first=first, last=last)


@router.get("/runs/{run_id}/placements", tags=["placement"])
def list_placements(served: Served, run_id: RunId, limit: Limit = 50, before: Before = None) -> placement.Decisions:
    """Lists placement decisions, newest first."""
    return placement.decisions(served.ledger, run_id, limit, before)


@router.get("/runs/{run_id}/placements/{iteration}", tags=["placement"])
def explain_placement(served: Served, run_id: RunId, iteration: Iteration) -> placement.PlacementView:
    """Explains an iteration's placement, with the role of each device over time."""
    return placement.placement(served.ledger, served.home, run_id, iteration)


@router.get("/runs/{run_id}/devices/{iteration}", tags=["placement"])
def show_devices(served: Served, run_id: RunId, iteration: Iteration) -> devices.DeviceUse:
    """Returns what each device did during an iteration, with or without judges."""
    return devices.device_use(served.ledger, run_id, iteration)


@router.get("/runs/{run_id}/checkpoints", tags=["checkpoints"])
def list_checkpoints(
    served: Served, run_id: RunId, limit: Limit = 100, before: Place = None
) -> checkpoints.Checkpoints:
    """Lists checkpoints with their newest verifications, newest iteration first."""
    return checkpoints.checkpoints(served.ledger, run_id, limit, before)


@router.get("/runs/{run_id}/evaluations", tags=["checkpoints"])
def list_evaluations(served: Served, run_id: RunId, suite: Text | None = None) -> list[suites.SuiteHistory]:
    """Returns the history of each of the run's suites, with what is significantly worse than before."""
    return suites.suite_histories(served.ledger, run_id, suite)


@router.get("/runs/{run_id}/aliases", tags=["checkpoints"])
def list_aliases(served: Served, run_id: RunId, limit: Limit = 100) -> checkpoints.AliasesView:
    """Returns the checkpoints that the aliases point to, and the history of promotions: who, when and why."""
    return checkpoints.aliases(served.ledger, run_id, limit)


@router.get("/runs/{run_id}/faults", tags=["faults"])
def list_faults(served: Served, run_id: RunId, limit: Limit = 100, before: Before = None) -> faults.Faults:
    """Lists crashes with the cost of each, and failed attempts, newest first."""
    return faults.faults(served.ledger, run_id, limit, before)


@router.get("/runs/{run_id}/logs", tags=["logs"])
def list_logs(
    served: Served,
    run_id: RunId,
    iteration: Number | None = None,
    phase: Text | None = None,
    actor: Text | None = None,
    level: Level = "info",
    limit: Limit = 200,
) -> logs.Logs:
    """Returns the newest log records, oldest first.

    actor: an actor's name or the beginning of it.
    level: the minimum level.
    """
    return logs.logs(
        ledger=served.ledger, home=served.home, run=run_id, wanted=Filter(iteration, phase, actor, level), limit=limit
    )


@router.get("/runs/{run_id}/lineage", tags=["lineage"])
def show_lineage(
    served: Served,
    run_id: RunId,
    iteration: Number | None = None,
    branch: Number | None = None,
    term: Number | None = None,
) -> lineage.LineageView:
    """Returns the lineage of a checkpoint, by default the current branch's newest, and the run's branches and forks."""
    return lineage.lineage(
        ledger=served.ledger, home=served.home, run=run_id, iteration=iteration, branch=branch, term=term
    )


@router.get("/runs/{run_id}/events", tags=["audit"])
def list_events(
    served: Served, run_id: RunId, kind: Text | None = None, limit: Limit = 100, before: Before = None
) -> tuple[EventRow, ...]:
    """Lists events of the run's audit chain, newest first.

    before: list only events with smaller numbers.
    """
    run_list.find_line(served.ledger, run_id)
    return tuple(served.ledger.browse.events(run_id, limit, before, () if kind is None else (kind,)))


@router.get("/compare", tags=["compare"])
def compare_runs(
    served: Served,
    run_ids: Annotated[list[Text], Query(alias="run", min_length=1, max_length=compare.MOST_RUNS)],
    key: Annotated[list[Text] | None, Query(max_length=series.KEYS)] = None,
    buckets: Buckets = 300,
) -> compare.RunComparison:
    """Compares runs: differences between their specs, newest metrics, and series."""
    return compare.compare(served.ledger, run_ids, key or (), buckets)
