"""What makes `learn` and `skip` idempotent: the receipt that a train engine keeps of what it did last."""

from __future__ import annotations

from yatt_core.protocols.receipts import BatchTask, UpdateReceipt

SKIPPED = "skipped"
"""The key of a fingerprint that says that no step was taken."""


def kept_receipt(receipt: UpdateReceipt | None, version: int, task: BatchTask, skipped: bool) -> UpdateReceipt | None:
    """The kept receipt, if it is the answer to this task; skipped: whether a skip is asked for, or an update."""
    if receipt is None or version != task.key.iteration or receipt.key != task.key:
        return None
    return receipt if (SKIPPED in receipt.fingerprint) == skipped else None
