"""What Ray's object store had to write to disk for want of memory: bytes spilled, on all nodes of the connected cluster.

Spilling slows a run down and breaks nothing, so that it is only told. Any raylet answers for all nodes in a few milliseconds.
"""

from __future__ import annotations

import logging

import grpc
from ray._private.internal_api import get_memory_info_reply

from yatt_core.cluster.gcs import living_nodes
from yatt_core.errors import InfrastructureError

log = logging.getLogger(__name__)
ANSWER_SECONDS = 5.0


def spilled_bytes() -> int | None:
    """Bytes spilled since the nodes started; none where the cluster does not answer in time, which the log then says."""
    try:
        node = living_nodes()[0]
        reply = get_memory_info_reply(None, node.address, node.port, ANSWER_SECONDS)
    except (InfrastructureError, IndexError, grpc.RpcError) as error:
        log.warning("the object store's figures cannot be read: %s", error)
        return None
    return int(reply.store_stats.spilled_bytes_total)


class SpillMeter:
    """Tells growth from totals; nodes that come and go take their totals with them."""

    def __init__(self) -> None:
        self._total: int | None = None

    def growth(self, total: int | None) -> int:
        """Bytes spilled since the last known total; 0 for the first one, and for one that is not known."""
        if total is None:
            return 0
        before, self._total = self._total, total
        return 0 if before is None else max(0, total - before)
