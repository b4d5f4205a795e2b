"""What all tests share: one torch thread, no telemetry, no secrets or settings of the surroundings."""

from __future__ import annotations

import os

# Before anything of ours is imported: children inherit it.
os.environ.update(
    OMP_NUM_THREADS="1",
    DO_NOT_TRACK="true",
    RAY_USAGE_STATS_ENABLED="0",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",
    HF_HUB_OFFLINE="1",
)
for name in (
    "YATT_HOME",
    "YATT_LEDGER",
    "YATT_RAY_ADDRESS",
    "PREFECT_API_URL",
    "MLFLOW_TRACKING_URI",
    "PYTHONDONTWRITEBYTECODE",
):
    os.environ.pop(name, None)
