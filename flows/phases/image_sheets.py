"""The images of an iteration's samples on their way to MLflow: outbox rows that name them, so that no picture is in the ledger.

Consumes the receipt of an iteration's columns. Produces rows of iterations that are evaluated, as tables have them; the tracker
makes one picture of the images when it delivers a row, since nothing else needs it.
"""

from __future__ import annotations

from db.write.outbox import OutboxEntry
from flows.delivery.outbox import row_ids
from flows.driver.context import RunContext
from flows.run.trackers import in_mlflow
from yatt_core.protocols.receipts import PrepareReceipt

KIND = "images"
"""The kind of the outbox rows."""


def sheet_entries(context: RunContext, prepared: PrepareReceipt) -> list[OutboxEntry]:
    """Returns the outbox rows for an iteration's images; none without images, or if the spec asks for no reports or samples."""
    tracking = context.spec.tracking
    wanted = tracking.enabled and tracking.reports and tracking.samples > 0
    if not (prepared.images and wanted and in_mlflow(context.spec)):
        return []
    iteration = prepared.key.iteration
    body = {"iteration": iteration, "folder": prepared.folder, "sha256": prepared.images}
    now = context.clock.time_ms()
    return [OutboxEntry(key, KIND, body, now) for key in row_ids(context.run, context.branch, f"i{iteration}/{KIND}")]
