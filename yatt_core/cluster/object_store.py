"""The bytes that Ray's object stores have spilled to disk for lack of memory.

The store of a run's own head is large enough (`ray_head.store_bytes`). Those of other clusters may be smaller; spilling
slows a run down but breaks nothing, so it is only reported. Any raylet answers for all nodes of the connected cluster within
a few milliseconds.
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
    """Returns the bytes spilled since the nodes started; logs a warning and returns None if the cluster is too slow."""
    try:
        node = living_nodes()[0]
        reply = get_memory_info_reply(None, node.address, node.port, ANSWER_SECONDS)
    except (InfrastructureError, IndexError, grpc.RpcError) as error:
        log.warning("cannot read the object store's statistics: %s", error)
        return None
    return int(reply.store_stats.spilled_bytes_total)


class SpillMeter:
    """Computes the growth of spilled bytes from totals, which shrink by a node's share when the node leaves."""

    def __init__(self) -> None:
        self._total: int | None = None

    def growth(self, total: int | None) -> int:
        """Returns the bytes spilled since the last known total; 0 for the first total and for an unknown one."""
        if total is None:
            return 0
        before = self._total
        self._total = total
        return 0 if before is None else max(0, total - before)
