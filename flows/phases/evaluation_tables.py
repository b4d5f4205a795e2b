"""The tables that a workload of one's own gives at an evaluation: files in the run's folder, and their delivery to MLflow.

Consumes the receipt of an evaluation. Produces `reports/tables/BRANCH-ITERATION/NAME.json`, which pages read, and outbox rows
that name them, so that no text is in the ledger. These files are for display only: one that cannot be written is left out.
"""

from __future__ import annotations

import logging
from pathlib import Path

from db.write.outbox import OutboxEntry
from flows.delivery.outbox import row_ids
from flows.driver.context import RunContext
from flows.run.trackers import in_mlflow
from yatt_core.durable import make_folder, write_file
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.receipts import RowsReceipt
from yatt_core.workloads.contract import Listing
from yatt_core.workloads.listings import decode_listing, encode_listing

log = logging.getLogger("yatt_core.flow")
KIND = "table"
"""The kind of the outbox rows."""
FOLDER = Path("reports") / "tables"


def keep_tables(context: RunContext, receipt: RowsReceipt) -> list[OutboxEntry]:
    """Writes the tables of an evaluation; returns the outbox rows that deliver them to MLflow, if the spec asks for reports."""
    iteration = receipt.key.iteration
    below = _folder(context.branch, iteration)
    entries: list[OutboxEntry] = []
    now = context.clock.time_ms()
    tracking = context.spec.tracking
    delivers = tracking.enabled and tracking.reports and in_mlflow(context.spec)
    for name, table in receipt.tables.items():
        path = below / f"{name}.json"
        try:
            make_folder(context.folder / below)
            write_file(context.folder / path, encode_listing(table))
        except (OSError, InfrastructureError) as error:
            log.warning("the table %s of iteration %d is left out: %s", name, iteration, error)
            continue
        body = {"name": name, "path": str(path), "iteration": iteration}
        keys = row_ids(context.run, context.branch, f"i{iteration}/{KIND}/{name}") if delivers else ()
        entries += [OutboxEntry(key, KIND, body, now) for key in keys]
    return entries


def tables_of(run_folder: Path, branch: int, iteration: int) -> dict[str, Listing]:
    """Returns the tables of an evaluation by name; empty if it gave none. Raises `DataError` for a damaged one."""
    found = sorted((run_folder / _folder(branch, iteration)).glob("*.json"))
    return {path.stem: decode_listing(path.read_bytes(), str(path)) for path in found}


def _folder(branch: int, iteration: int) -> Path:
    return FOLDER / f"b{branch:03d}-i{iteration:06d}"
