"""Makes `learn` and `skip` idempotent: a train engine keeps the receipt of its last update or skip."""

from __future__ import annotations

from yatt_core.protocols.receipts import BatchTask, UpdateReceipt

SKIPPED = "skipped"
"""Key in a fingerprint that shows that no step was taken."""


def kept_receipt(receipt: UpdateReceipt | None, version: int, task: BatchTask, skipped: bool) -> UpdateReceipt | None:
    """Returns the kept receipt if it answers this task, otherwise None.

    skipped: whether a skip is requested rather than an update.
    """
    if receipt is None or version != task.key.iteration or receipt.key != task.key:
        return None
    return receipt if (SKIPPED in receipt.fingerprint) == skipped else None
