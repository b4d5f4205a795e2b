"""Gauges of an iteration's data transport (class timing): peak bytes in flight, bytes spilled, bytes sent by sync."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from yatt_core.protocols.receipts import SyncReceipt

PEAK = "controllers/peak_bytes_in_flight"
SPILLED = "object_store/spilled_bytes"
SYNC_BYTES = "sync/bytes"
SYNC_BUCKETS = "sync/buckets"
SYNC_SECONDS = "sync/dirty_seconds"


def collect_gauges(peak_bytes: float, spilled_bytes: int) -> dict[str, float]:
    """Returns the gauges of `collect`.

    peak_bytes: the highest peak of any controller that produced shards in this session.
    spilled_bytes: bytes that Ray's object store wrote to disk during `collect`.
    """
    return {PEAK: peak_bytes, SPILLED: float(spilled_bytes)}


def spill_warning(spilled_bytes: int) -> str:
    """Returns the warning for an operator whose object store has spilled."""
    return (
        f"Ray's object store ran out of memory and spilled {spilled_bytes / 2**20:.0f} MiB to disk: lower "
        "controllers.bytes_in_flight, or give the nodes a larger object store"
    )


def sync_gauges(receipts: Sequence[SyncReceipt]) -> Mapping[str, float]:
    """Returns the bytes and buckets sent to all engines, and the most seconds without usable weights of any engine.

    All are 0 if a killed attempt had already updated every engine.
    """
    return {
        SYNC_BYTES: float(sum(receipt.bytes for receipt in receipts)),
        SYNC_BUCKETS: float(sum(receipt.buckets for receipt in receipts)),
        SYNC_SECONDS: max((receipt.seconds for receipt in receipts), default=0.0),
    }
