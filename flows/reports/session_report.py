"""What the tracker receives at the end of a session: learning curve, samples, placement, seats, and where the time went.

Consumes the ledger and the newest iteration's sealed samples. Produces files in `reports/` of the run's folder and
outbox rows that name them: samples are read from these files when the rows are delivered, so that no text is in the
ledger. These files are for display only: a file that cannot be made is left out, and never changes the session's outcome.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from db.core.errors import LedgerError
from db.ledger import Ledger
from db.write.outbox import OutboxEntry
from db.write.records import ShardRow
from flows.delivery.outbox import row_ids
from flows.driver.context import RunContext
from flows.placement.seats import seat_spans, seat_table
from flows.reports.accounting import Accounts, accounts_of
from flows.reports.learning_curve import write_learning_plot
from flows.run.trackers import for_trackers
from yatt_core.durable import make_folder, write_file, write_json
from yatt_core.experience.batch import SAMPLES_FILE
from yatt_core.experience.table import UNSCORED, without_placeholders

log = logging.getLogger("yatt_core.flow")
FOLDER = "reports"
TABLE = "samples.json"
PLACEMENT = "placement.json"
SEAT_TABLE = "seats.json"
TIMES = "time.md"
COLUMNS = ("prompt", "response", "reward", "correct", "truncated", "prompt_ordinal", "sample")
"""MLflow's pages show the first few."""
PLACEMENT_COLUMNS = ("iteration", "decision", "mode", "roles", "devices", "predicted_collect_s", "collect_s", "reason")
DECISIONS = 2000
"""Maximum number of placement decisions in the table; the newest ones."""
LONGEST_TEXT = 4000
ATTEMPTS = 2000
"""Maximum number of attempts that the account of the time covers."""
Body = dict[str, Any]


def publish_reports(context: RunContext) -> None:
    """Writes the reports of a session and enqueues their delivery; does nothing if the spec asks for none."""
    tracking = context.spec.tracking
    if not (tracking.enabled and tracking.reports):
        return
    bodies = [
        body for make in (_picture, _times, _placement, _seats, _samples) if (body := _made(make, context)) is not None
    ]
    try:
        now = context.clock.time_ms()
        entries = [
            OutboxEntry(key, "file", body, now)
            for body in bodies
            for key in row_ids(context.run, context.branch, f"t{context.fence.term}/{body['name']}")
        ]
        context.ledger.outbox.enqueue(context.fence, for_trackers(context.spec, entries))
    except LedgerError as error:
        log.warning("the session's reports are not delivered: %s", error)


def _made(make: Callable[[RunContext], Body | None], context: RunContext) -> Body | None:
    try:
        make_folder(context.folder / FOLDER)
        return make(context)
    except Exception as error:  # noqa: BLE001 - a library that draws or reads files may raise anything
        log.warning("a report of the session is left out: %s: %s", type(error).__name__, error)
        return None


# Each writes a file and returns the body of its outbox row, with the path in the run's folder; None if there is nothing
# to report.


def _picture(context: RunContext) -> Body | None:
    plot = write_learning_plot(context.ledger, context.run, context.folder)
    return None if plot is None else {"name": plot.name, "path": plot.name}


def _times(context: RunContext) -> Body | None:
    text = time_report(context.run, accounts_of(context.ledger.overview.history(context.run, ATTEMPTS)))
    write_file(context.folder / FOLDER / TIMES, text.encode())
    return {"name": f"{FOLDER}/{TIMES}", "path": f"{FOLDER}/{TIMES}"}


def _placement(context: RunContext) -> Body | None:
    table = placement_table(context.ledger, context.run)
    if table is None:
        return None
    write_json(context.folder / FOLDER / PLACEMENT, table)
    return {"name": f"{FOLDER}/{PLACEMENT}", "path": f"{FOLDER}/{PLACEMENT}", "table": True}


def _seats(context: RunContext) -> Body | None:
    spans = seat_spans(context.ledger, context.run)
    if not spans:
        return None
    write_json(context.folder / FOLDER / SEAT_TABLE, seat_table(spans))
    return {"name": f"{FOLDER}/{SEAT_TABLE}", "path": f"{FOLDER}/{SEAT_TABLE}", "table": True}


def _samples(context: RunContext) -> Body | None:
    table = sample_table(context.ledger, context.run, context.home.folder, context.spec.tracking.samples)
    if table is None:
        return None
    write_json(context.folder / FOLDER / TABLE, table)
    return {"name": f"{FOLDER}/{TABLE}", "path": f"{FOLDER}/{TABLE}", "table": True}


def time_report(run: str, accounts: Accounts) -> str:
    """Returns where a run's time went, as Markdown."""
    wall = accounts.wall_seconds
    lines = [f"# {run}: where the time went", "", f"{wall:.0f} s in all"]
    if accounts.ettr is not None:
        lines[-1] += f"; {accounts.ettr:.1%} of the time that was not idle was productive (ETTR)"
    lines += ["", "| | seconds | of all |", "|---|---|---|"]
    lines += [
        f"| {name} | {seconds:.1f} | {seconds / wall:.1%} |" for name, seconds in accounts.buckets.items() if wall
    ]
    lines += ["", "| phase | bucket | seconds |", "|---|---|---|"]
    for bucket, phases in accounts.phases.items():
        lines += [f"| {phase} | {bucket} | {seconds:.1f} |" for phase, seconds in sorted(phases.items())]
    lines += ["", f"crashes and failed attempts: {len(accounts.crashes)}", ""]
    return "\n".join(lines)


def placement_table(ledger: Ledger, run: str) -> dict[str, Any] | None:
    """Returns the placement decisions of the current line, newest first, as columns and rows; None if there are none.

    `roles` has one letter for each rollout instance, `devices` the actors on each device while samples are collected.
    """
    decisions = ledger.browse.decisions(run, DECISIONS)
    if not decisions:
        return None
    rows = [
        [
            row.iteration,
            row.seq,
            row.decision.get("mode", ""),
            row.decision.get("start", ""),
            "; ".join(", ".join(actors) for actors in row.decision.get("roles", {}).get("collect", [])),
            row.prediction.get("collect"),
            (row.outcome or {}).get("collect_s"),
            row.reason,
        ]
        for row in decisions
    ]
    return {"columns": list(PLACEMENT_COLUMNS), "data": rows}


def sample_table(ledger: Ledger, run: str, home: Path, limit: int) -> dict[str, Any] | None:
    """Returns samples of the newest committed iteration, the same number from each shard, as columns and rows.

    Reward and correctness are null without a score.

    Returns None if there are none, or if a file cannot be read.
    """
    iteration = ledger.runs.find(run).iteration
    if limit == 0 or iteration < 1:
        return None
    owner, branch, _ = ledger.commits.maker(run, iteration)
    shards = ledger.records.shards(owner, branch, iteration)
    if not shards:
        return None
    of_each = -(-limit // len(shards))
    try:
        rows = [[*row, iteration] for shard in shards for row in _rows(home / owner, shard, of_each)]
    except (OSError, pa.ArrowException) as error:
        log.warning("the table of samples is left out: %s", error)
        return None
    return {"columns": [*COLUMNS, "iteration"], "data": rows[:limit]}


def _rows(folder: Path, shard: ShardRow, count: int) -> list[list[Any]]:
    """Returns the first samples of a shard; reads no more of the file than it needs."""
    with pq.ParquetFile(folder / shard.folder / SAMPLES_FILE) as file:
        names = [name for name in file.schema_arrow.names if name in (*COLUMNS, UNSCORED)]
        batch = next(file.iter_batches(batch_size=count, columns=names), None)
    if batch is None:
        return []
    rows = without_placeholders(pa.Table.from_batches([batch])).to_pylist()
    return [[_cell(row[name]) for name in COLUMNS] for row in rows]


def _cell(value: Any) -> Any:
    return value[:LONGEST_TEXT] if isinstance(value, str) else value
