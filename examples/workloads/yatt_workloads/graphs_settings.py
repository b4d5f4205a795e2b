"""The base of the graph workloads' settings, which refuses names that it does not know; and the devices they can use."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from yatt_core.workloads.contract import Ranks

CPU = "cpu"


class GraphSettings(BaseModel):
    """Settings that are frozen and know no further names."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def require_cpu(device: str, ranks: Ranks) -> None:
    """Raises `ValueError` for several ranks on accelerators: these trainings compute, and exchange vectors, on the processor."""
    if ranks.count > 1 and device != CPU:
        raise ValueError(f"it computes on the processor; with device {device}, expected one rank, not {ranks.count}")
