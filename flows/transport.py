"""What an iteration's payload cost, as gauges of class timing: most bytes under way, what was spilled, what sync sent."""

from __future__ import annotations

from collections.abc import Sequence

from flows.segment import Segment
from yatt_core.receipts import PEAK_BYTES, ShardReceipt, SyncReceipt

PEAK, SPILLED = "controllers/peak_bytes_in_flight", "object_store/spilled_bytes"
SYNC_BYTES, SYNC_BUCKETS, SYNC_SECONDS = "sync/bytes", "sync/buckets", "sync/dirty_seconds"


def book_transport(segment: Segment, receipt: ShardReceipt) -> None:
    """Books the peak of a shard's controller; the iteration's is the highest of all controllers'."""
    segment.gauges[PEAK] = max(segment.gauges.get(PEAK, 0.0), receipt.timing.get(PEAK_BYTES, 0.0))


def watch_transport(segment: Segment) -> None:
    """Books what the object store spilled since the iteration before collected, and says so aloud."""
    spilled = segment.fleet.spilled_bytes()
    segment.gauges = {PEAK: 0.0, **segment.gauges, SPILLED: float(spilled)}
    if spilled:
        segment.observer.warned(
            f"Ray's object store wrote {spilled / 2**20:.0f} MiB to disk for want of memory: lower "
            "controllers.bytes_in_flight, or give the nodes a larger object store"
        )


def book_sync(segment: Segment, receipts: Sequence[SyncReceipt]) -> None:
    """Books what a sync brought to all engines, and how long the slowest had no weights; nothing, where an attempt that was
    killed had brought them all.
    """
    segment.gauges[SYNC_BYTES] = float(sum(receipt.bytes for receipt in receipts))
    segment.gauges[SYNC_BUCKETS] = float(sum(receipt.buckets for receipt in receipts))
    segment.gauges[SYNC_SECONDS] = max((receipt.seconds for receipt in receipts), default=0.0)
