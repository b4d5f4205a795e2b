"""`yatt show`: shows one run in detail, with the curves of its most telling metrics."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from db.core.errors import LedgerUnavailable
from flows.reports.measures import MetricChange, measures_of, told_of
from flows.run.home import Home
from ops.cli.commands.inspection.alarms import alarm_facts, write_alarms
from ops.cli.commands.inspection.profile import LAST, check_options, show_profile
from ops.costs.words import amount
from ops.presentation.columns import Column, Columns
from ops.presentation.curves import sparkline
from ops.presentation.measure_words import newest_first
from ops.presentation.output import message, write, write_json, write_list
from ops.presentation.time_accounts import time_facts, write_time
from ops.presentation.words import duration, place, wait_text
from ops.terminal.lookup import find_run, opened_ledger
from ops.terminal.options import HomeOption, Output, OutputOption, RunArgument, examples
from yatt_core.counting import many
from yatt_core.fault_stacks import kept_stacks
from yatt_core.workload_kinds import parts_in

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.read.overview import DriverSessionRow, RunLine, RunOverview
    from ops.queries.run import PhaseUse

app = typer.Typer()

CURVE_WIDTH = 32
NAME_WIDTH = 26
"""Least width of the names before values; longer names move the values, two spaces after the longest."""
METRICS: Columns[tuple[str, float]] = (
    Column("metric", lambda named: named[0]),
    Column("newest value", lambda named: named[1], number=True),
)
CURVES: Columns[Mapping[str, Any]] = (
    Column("curve", lambda curve: curve["key"]),
    Column("over the iterations", lambda curve: sparkline(curve["mean"])),
    Column("first", lambda curve: curve["mean"][0], number=True),
    Column("last", lambda curve: curve["mean"][-1], number=True),
)


def driver(line: RunLine) -> str:
    """Returns who drives the run, for display; empty if nobody does."""
    from flows.run.lease import is_keeper
    from ops.queries.run_list import DRIVEN, LOST, driver_of

    found = driver_of(line)
    if found == DRIVEN:
        return line.holder or ""
    if found != LOST:
        return ""
    if line.holder is None or is_keeper(line.holder):
        return "lost"  # the lease says only when the keeper released it
    return f"lost {duration(-line.lease_expires_in)} ago"


@app.command(
    epilog=examples(
        "yatt show latest",
        "yatt show quickstart-3 -o json",
        "yatt show latest --profile --last 20",
        "yatt show latest --profile --iteration 12 --flame iteration-12.html",
    )
)
def show(
    run: RunArgument,
    profile: Annotated[
        bool, typer.Option("--profile", help="Show where the time of iterations goes, by phase and process.")
    ] = False,
    iteration: Annotated[int | None, typer.Option(min=0, help="With --profile: only this iteration.")] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help=f"With --profile: the mean of the newest iterations. Default: {LAST}.")
    ] = None,
    flame: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="With --profile: write a flame graph: .html, .svg, or .txt for other tools to read."
        ),
    ] = None,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """Show one run: results and digests, alarms, phases, failures, use of time, sessions and checkpoints."""
    located = Home.locate(home)
    check_options(profile, iteration, last, flame)
    if profile:
        with opened_ledger(located) as ledger:
            show_profile(
                ledger=ledger,
                home=located,
                run=find_run(ledger, run),
                iteration=iteration,
                last=last,
                flame=flame,
                output=output,
            )
        return
    try:
        with opened_ledger(located) as ledger:
            facts = run_facts(ledger, located, find_run(ledger, run))
    except LedgerUnavailable as error:
        _show_waiting(located, run, output, error)
        return
    if output is Output.JSON:
        write_json(facts)
    else:
        _print_run(facts)


def _show_waiting(home: Home, run: str, output: Output, error: LedgerUnavailable) -> None:
    """Shows what a run's driver says while the ledger is away. Raises the ledger's error if it says nothing."""
    from flows.run.waiting_file import read_waiting

    found = read_waiting(home.run_folder(run))
    if found is None:
        raise error
    message(f"the ledger does not answer: {error}")
    if output is Output.JSON:
        write_json({"state": "waiting", "waiting": asdict(found)})
        return
    write(f"{found.run} is waiting, last known commit {found.iteration}")
    write(f"  {'waiting':<{NAME_WIDTH}}{wait_text(found, time.time())}")
    write(f"  {'driver':<{NAME_WIDTH}}{found.holder.text}")
    write(f"  {'folder':<{NAME_WIDTH}}{home.run_folder(run)}")


def run_facts(ledger: Ledger, home: Home, run: str) -> dict[str, Any]:
    """Returns a run's results and overview as plain values."""
    from db.write.runs import DRIVEN_STATES
    from flows.run.results import run_results
    from flows.schedule.window_record import window_parameters
    from ops.queries.forecast import run_forecast
    from ops.queries.run_list import LOST, driver_of, find_line
    from ops.queries.series import newest_values

    overview = ledger.overview.show(run)
    revision = ledger.runs.revision(run)
    line = overview.line
    is_lost = driver_of(line) == LOST  # a driver that is lost waits for nothing any more
    wait = None if is_lost else ledger.waits.of([run]).get(run)
    return {
        **asdict(run_results(ledger, run)),
        "target_iterations": line.run.target_iterations,
        "state_reason": line.run.state_reason,
        "waiting": None if wait is None else asdict(wait),
        "desired_state": line.run.desired_state,
        "branch": line.run.current_branch,
        "term": line.term,
        "driver": driver(line),
        "driver_lost": is_lost and line.run.state in DRIVEN_STATES,
        "last_commit_age": line.last_commit_age,
        "forecast": asdict(run_forecast(ledger, find_line(ledger, run), revision.spec)),
        "sft": revision.spec.get("sft") is not None,
        "language": parts_in(revision.spec).language_model,
        "spec_revision": revision.revision,
        "spec_digest": revision.digest,
        "mlflow_run_id": line.run.mlflow_run_id,
        "folder": str(home.run_folder(run)),
        "stacks": kept_stacks(home.run_folder(run)),
        "metrics": newest_values(ledger, run),
        "measured": [asdict(told) for told in told_of(ledger, run)],
        "curves": _curves(ledger, run),
        "aliases": {alias: key.iteration for alias, key in sorted(ledger.aliases.pointing(run).items())},
        **_tables(overview, window_parameters(ledger, run)),
        **alarm_facts(ledger, run),
        **time_facts(ledger, run, revision.spec["checkpoints"]["every"]),
    }


def _tables(overview: RunOverview, windows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "samples": overview.samples,
        "tokens": overview.tokens,
        "outbox_pending": overview.outbox_pending,
        "outbox_refused": overview.outbox_refused,
        "notifications_pending": overview.notifications_pending,
        "phases": [asdict(phase) | {"failures": dict(phase.failures)} for phase in overview.phases],
        "sessions": [
            asdict(session) | {"parameters": windows.get(session.flow_run_id, {})} for session in overview.sessions
        ],
        "branches": [asdict(branch) for branch in overview.branches],
        "checkpoints": [asdict(checkpoint) for checkpoint in overview.checkpoints],
    }


def _print_run(facts: dict[str, Any]) -> None:
    from db.write.alarms import AlarmRow
    from db.write.records import CheckpointRow
    from ops.queries.checkpoints import CHECKPOINTS
    from ops.queries.run import phase_columns, session_columns

    reason = f" ({facts['state_reason']})" if facts["state_reason"] and facts["waiting"] is None else ""
    state = f"{facts['state']}, driver lost" if facts["driver_lost"] else facts["state"]
    write(f"{facts['run']} is {state}{reason}, {place(facts['iteration'], facts['target_iterations'])}")
    headlines = _headlines(facts)
    width = max(NAME_WIDTH, *(len(name) + 2 for name, _ in headlines))
    for name, value in headlines:
        write(f"  {name:<{width}}{value}")
    if facts["alarms"]:
        write_alarms([AlarmRow(**row) for row in facts["alarms"]], facts["alarm_count"])
    _write_curves(facts["curves"])
    write_list(METRICS, sorted(facts["metrics"].items()))
    write_list(phase_columns(facts["sft"]), [_phase(row) for row in facts["phases"]], "phases")
    write_time(facts)
    windows = {row["flow_run_id"]: row["parameters"] for row in facts["sessions"]}
    write_list(session_columns(windows), [_session(row) for row in facts["sessions"]], "driver sessions")
    write_list(CHECKPOINTS, [CheckpointRow(**row) for row in facts["checkpoints"]], "checkpoints")


def _phase(row: Mapping[str, Any]) -> PhaseUse:
    from ops.queries.run import PhaseUse

    mean = row["seconds"] / row["done"] if row["done"] else None
    return PhaseUse(
        phase=row["phase"], attempts=row["attempts"], done=row["done"], mean_seconds=mean, failures=row["failures"]
    )


def _session(row: Mapping[str, Any]) -> DriverSessionRow:
    from db.read.overview import DriverSessionRow

    return DriverSessionRow(**{name: value for name, value in row.items() if name != "parameters"})


def _curves(ledger: Ledger, run: str) -> list[dict[str, Any]]:
    """Returns the curves of what the objective measures, each reduced to at most `CURVE_WIDTH` means."""
    from ops.queries.series import series

    return [
        {"key": each.key, "width": each.width, "steps": each.steps, "mean": each.mean}
        for each in series(ledger, run, measures_of(ledger, run).curves, CURVE_WIDTH).series
        if each.steps
    ]


def _write_curves(curves: list[dict[str, Any]]) -> None:
    if curves:
        write_list(CURVES, curves)


def _headlines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    measured = (MetricChange(**each) for each in facts["measured"])
    spent = facts["spent"]
    return [
        *((told.name, newest_first(told, facts["sft"])) for told in measured),
        *_waiting(facts["waiting"]),
        ("time", duration(facts["seconds"])),
        *([("samples, tokens", f"{facts['samples']:,}, {facts['tokens']:,}")] if facts["language"] else []),
        ("used", f"{amount(str(spent['wall_hours']))} h, {amount(str(spent['device_hours']))} device-hours"),
        *([("forecast", facts["forecast"]["text"])] if facts["forecast"]["text"] else []),
        ("driver", facts["driver"] or "none"),
        ("weights digest", facts["weights_digest"] or "-"),
        *([("experience digest", facts["experience_digest"])] if facts["language"] else []),
        ("metrics digest", facts["metrics_digest"]),
        *([("driver traffic", _traffic(facts["flow_bytes_per_sample"]))] if facts["language"] else []),
        ("spec", f"revision {facts['spec_revision']}, {facts['spec_digest'][:16]}"),
        ("MLflow run", f"{facts['mlflow_run_id'] or '-'}, {many(facts['outbox_pending'], 'row')} waiting to be sent"),
        *_refused(facts["outbox_refused"]),
        ("aliases", ", ".join(f"{alias} {iteration}" for alias, iteration in facts["aliases"].items()) or "-"),
        *_untold(facts["notifications_pending"]),
        ("folder", facts["folder"]),
        *_hung(facts["stacks"]),
    ]


def _traffic(bytes_per_sample: float | None) -> str:
    return "-" if bytes_per_sample is None else f"{bytes_per_sample:.0f} bytes per sample"


def _waiting(wait: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    from db.write.waits import WaitRow

    return [] if wait is None else [("waiting", wait_text(WaitRow(**wait), time.time()))]


def _hung(stacks: list[str]) -> list[tuple[str, str]]:
    """Returns where the stacks of actors that hung are."""
    return [("stacks of hung actors", f"{len(stacks)} in the folder, the newest {stacks[0]}")] if stacks else []


def _refused(rows: int) -> list[tuple[str, str]]:
    """Returns the line about rows that a tracker has refused for good; none if it took all."""
    return [("refused by trackers", f"{many(rows, 'row')}; the driver's log says why of each")] if rows else []


def _untold(pending: int) -> list[tuple[str, str]]:
    return [("notifications", f"{pending} not sent yet")] if pending else []


def _failures(failures: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items())


def _parameters(row: dict[str, Any]) -> str | None:
    from flows.schedule.parameters import parameters_text

    return parameters_text(row["parameters"]) or None
