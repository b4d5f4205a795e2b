"""What an iteration's payload cost Ray, as gauges of class timing: most bytes under way, and what the object store spilled."""

from __future__ import annotations

from flows.segment import Segment
from yatt_core.receipts import PEAK_BYTES, ShardReceipt

PEAK, SPILLED = "controllers/peak_bytes_in_flight", "object_store/spilled_bytes"


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
