"""`yatt runs` and `yatt show`: list runs, and show one run in detail."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ops.cli.commands.inspection.alarms import alarm_facts, write_alarms
from ops.cli.lookup import find_run, opened_ledger
from ops.cli.options import HomeOption, Output, OutputOption, RunArgument, examples
from ops.presentation.output import write, write_json, write_table
from ops.presentation.time_accounts import time_facts, write_time
from ops.presentation.words import at_the_start, cut, duration, moment, place, size

if TYPE_CHECKING:
    from db.ledger import Ledger
    from db.read.overview import RunLine, RunOverview
    from flows.run.home import Home

REASON_CHARACTERS = 120


def register(app: typer.Typer) -> None:
    """Adds the commands to the program."""
    app.command(epilog=examples("yatt runs", "yatt runs --limit 5 -o json", "yatt runs --deleted"))(runs)
    app.command(epilog=examples("yatt show latest", "yatt show quickstart-3 -o json"))(show)


def runs(
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of runs; the newest are kept.")] = 50,
    deleted: Annotated[
        bool, typer.Option("--deleted", help="List deleted runs instead: who deleted them, and why.")
    ] = False,
    home: HomeOption = None,
    output: OutputOption = Output.TEXT,
) -> None:
    """List runs, newest first: state, iteration, driver and time since the last commit."""
    from flows.run.home import Home

    with opened_ledger(Home.locate(home)) as ledger:
        if deleted:
            _show_deleted(ledger, limit, output)
            return
        lines = ledger.overview.runs(limit)
    if output is Output.JSON:
        write_json({"runs": [_line_json(line) for line in lines]})
        return
    rows = [
        (
            line.run.id,
            line.run.state,
            f"{max(0, line.run.iteration)}/{line.run.target_iterations}",
            "" if line.last_commit_age is None else f"{duration(line.last_commit_age)} ago",
            driver(line),
            cut(line.run.state_reason, REASON_CHARACTERS),
        )
        for line in lines
    ]
    write_table(("run", "state", "iteration", "last commit", "driver", "reason"), rows)


def _show_deleted(ledger: Ledger, limit: int, output: Output) -> None:
    rows = ledger.deletions.list(limit)
    if output is Output.JSON:
        write_json({"deleted": [asdict(row) for row in rows]})
        return
    table = [(row.run, moment(row.deleted_at), row.by, row.why, "" if row.cleaned_at else "yes") for row in rows]
    write_table(("run", "deleted", "by", "why", "remains"), table)


def driver(line: RunLine) -> str:
    """Returns who drives the run, for display; empty if nobody does."""
    if line.holder is None:
        return ""
    if line.lease_expires_in < 0:
        return f"lost {duration(-line.lease_expires_in)} ago"
    return line.holder


def _line_json(line: RunLine) -> dict[str, Any]:
    facts = asdict(line)
    run: dict[str, Any] = facts.pop("run")
    return run | facts


def show(run: RunArgument, home: HomeOption = None, output: OutputOption = Output.TEXT) -> None:
    """Show one run: results and digests, alarms, phases, failures, use of time, sessions and checkpoints."""
    from flows.run.home import Home

    located = Home.locate(home)
    with opened_ledger(located) as ledger:
        facts = run_facts(ledger, located, find_run(ledger, run))
    if output is Output.JSON:
        write_json(facts)
    else:
        _print_run(facts)


def run_facts(ledger: Ledger, home: Home, run: str) -> dict[str, Any]:
    """Returns a run's results and overview as plain values."""
    from flows.run.results import run_results

    overview = ledger.overview.show(run)
    revision = ledger.runs.revision(run)
    line = overview.line
    return {
        **asdict(run_results(ledger, run)),
        "target_iterations": line.run.target_iterations,
        "state_reason": line.run.state_reason,
        "desired_state": line.run.desired_state,
        "branch": line.run.current_branch,
        "term": line.term,
        "driver": driver(line),
        "last_commit_age": line.last_commit_age,
        "sft": revision.spec.get("sft") is not None,
        "spec_revision": revision.revision,
        "spec_digest": revision.digest,
        "mlflow_run_id": line.run.mlflow_run_id,
        "folder": str(home.run_folder(run)),
        "metrics": {key: point.value for key, point in ledger.metrics.latest(run).items()},
        "aliases": {alias: key.iteration for alias, key in sorted(ledger.aliases.pointing(run).items())},
        **_tables(overview),
        **alarm_facts(ledger, run),
        **time_facts(ledger, run, revision.spec["checkpoints"]["every"]),
    }


def _tables(overview: RunOverview) -> dict[str, Any]:
    return {
        "samples": overview.samples,
        "tokens": overview.tokens,
        "outbox_pending": overview.outbox_pending,
        "notifications_pending": overview.notifications_pending,
        "phases": [asdict(phase) | {"failures": dict(phase.failures)} for phase in overview.phases],
        "sessions": [asdict(session) for session in overview.sessions],
        "branches": [asdict(branch) for branch in overview.branches],
        "checkpoints": [asdict(checkpoint) for checkpoint in overview.checkpoints],
    }


def _print_run(facts: dict[str, Any]) -> None:
    reason = f" ({facts['state_reason']})" if facts["state_reason"] else ""
    write(f"{facts['run']} is {facts['state']}{reason}, {place(facts['iteration'], facts['target_iterations'])}")
    for name, value in _headlines(facts):
        write(f"  {name:<22}{value}")
    if facts["alarms"]:
        write_alarms(facts["alarms"], facts["alarm_count"])
    metrics = facts["metrics"]
    write_table(("metric", "newest value"), sorted(metrics.items()))
    rows = [
        (row["phase"], row["attempts"], row["done"], row["seconds"], _failures(row["failures"]))
        for row in facts["phases"]
    ]
    write_table(("phase", "attempts", "done", "seconds", "failures"), rows)
    write_time(facts)
    sessions = [
        (row["term"], row["flow_run_name"], row["outcome"] or "running", _session_length(row))
        for row in facts["sessions"]
    ]
    write_table(("session", "name", "outcome", "length"), sessions)
    checkpoints = [
        (row["iteration"], row["state"], size(row["bytes"]), row["weights_digest"][:16], row["folder"])
        for row in facts["checkpoints"]
    ]
    write_table(("checkpoint", "state", "size", "weights", "folder"), checkpoints)


def _headlines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.3f}"

    traffic, spent = facts["flow_bytes_per_sample"], facts["spent"]
    return [
        (
            "held-out accuracy",
            f"{share(facts['accuracy'])}, {at_the_start(facts['sft'])} {share(facts['accuracy_sft'])}",
        ),
        ("time", duration(facts["seconds"])),
        ("samples, tokens", f"{facts['samples']:,}, {facts['tokens']:,}"),
        ("used", f"{spent['wall_hours']:.3g} h, {spent['device_hours']:.3g} device-hours"),
        ("driver", facts["driver"] or "none"),
        ("weights digest", facts["weights_digest"] or "-"),
        ("experience digest", facts["experience_digest"]),
        ("metrics digest", facts["metrics_digest"]),
        ("driver traffic", "-" if traffic is None else f"{traffic:.0f} bytes per sample"),
        ("spec", f"revision {facts['spec_revision']}, {facts['spec_digest'][:16]}"),
        ("MLflow run", f"{facts['mlflow_run_id'] or '-'}, {facts['outbox_pending']} rows waiting to be sent"),
        ("aliases", ", ".join(f"{alias} {iteration}" for alias, iteration in facts["aliases"].items()) or "-"),
        *_untold(facts["notifications_pending"]),
        ("folder", facts["folder"]),
    ]


def _untold(pending: int) -> list[tuple[str, str]]:
    return [("notifications", f"{pending} not sent yet")] if pending else []


def _failures(failures: dict[str, int]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in failures.items())


def _session_length(row: dict[str, Any]) -> str:
    return "" if row["ended_at"] is None else duration((row["ended_at"] - row["started_at"]) / 1000)
