"""What all tests share: one torch thread, no telemetry, no secrets or settings of the surroundings."""

from __future__ import annotations

import os

import pytest

SHARING = ("cluster", "flows", "recovery")
OF_THEIR_OWN = ("test_exact",)
"""Long enough to be worth services of its own, so that two workers have equal shares."""

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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that share a Ray head or a Prefect server run one after another in the same worker."""
    for item in items:
        folder = item.path.parent.name
        if folder in SHARING:
            group = item.path.stem if item.path.stem in OF_THEIR_OWN else folder
            item.add_marker(pytest.mark.xdist_group(group))
