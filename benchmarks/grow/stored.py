"""What a run's own object store spills when weights go through it.

Consumes a spec and a size. Stand-ins for a rank and for engines send and check as many bytes, with the product's own code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from yatt_core.spec import RunSpec


def spilled(folder: Path, spec: RunSpec, size: int) -> int:
    """Returns the bytes that a run's own store spills when weights of this size go through it, twice."""
    import ray

    from yatt_core.cluster.connect import connect_ray, disconnect_ray
    from yatt_core.cluster.metering import BytesMeter, metered_get
    from yatt_core.cluster.object_store import spilled_bytes, store_bytes
    from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
    from yatt_core.run_actors.sync_parties import SyncParties
    from yatt_core.run_actors.weight_sync import sync_through_store
    from yatt_core.supervisor.client import ensure_supervisor, stop_supervisor, wait_ready

    class Calls:
        def get(self, references: list[Any], what: str, names: list[str]) -> list[Any]:
            return metered_get(BytesMeter(), references, 600.0, what)

    through_store = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"sync_transport": "store"})})
    head = ray_head_service(folder, object_store_bytes=store_bytes(through_store))
    ensure_supervisor(folder, [head], grace=600)
    try:
        connect_ray(wait_ready(folder, [SERVICE_NAME], 120.0).service(SERVICE_NAME).address, "grow", folder)
        rank, *engines = (
            ray.remote(num_cpus=0)(kind).remote(size) for kind in (StoredRank, StoredEngine, StoredEngine)
        )
        for version in (1, 2):
            calls: Any = Calls()
            sync_through_store(calls, 1, version, SyncParties([rank], engines, ["rank"], ["engines"]))
        return spilled_bytes() or 0
    finally:
        disconnect_ray()
        stop_supervisor(folder, 30.0)


class StoredRank:
    """A rank that has only weights, which it sends in buckets of the default size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buckets: Any = None

    def export(self, term: int, version: int, number: int) -> tuple[bool, Any]:
        """Returns the next bucket, and whether it is the last."""
        from yatt_core.wire.buckets import buckets_of

        if number == 0:
            self._buckets = buckets_of((f"{place}", np.zeros(8 << 20, np.uint8)) for place in range(self._size >> 23))
        bucket = next(self._buckets)
        return bucket.last, bucket


class StoredEngine:
    """An engine that only checks its weights."""

    def __init__(self, size: int) -> None:
        self._size = size

    def begin_update(self, term: int, version: int) -> None:
        """Does nothing."""

    def take(self, term: int, bucket: Any) -> None:
        """Checks a bucket."""
        bucket.require_intact()

    def end_update(self, term: int) -> None:
        """Does nothing."""
