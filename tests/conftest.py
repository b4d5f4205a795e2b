"""What all tests share: one torch thread, no telemetry, no secrets or settings of the surroundings, no deadlines of examples."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

SHARING = ("recovery", "flows", "cluster", "object_store")
"""Folders whose tests share a Ray head or a Prefect server, the longest first."""
OF_THEIR_OWN = ("test_exact",)
"""Long enough to be worth services of its own, so that two workers have equal shares."""
AS_A_WHOLE = ("train/test_contract", "train/test_ranks")
"""Files whose fixtures start processes that train: one worker has them, not each."""
POSTGRESQL = "[postgresql"
"""Begins the parameters of tests that share a database server."""
VLLM = "vllm"
"""Folder, or a parameter, of tests that run vLLM in their own process, which is to be one process."""

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
    "PREFECT_API_AUTH_STRING",
    "PREFECT_SERVER_API_AUTH_STRING",
    "MLFLOW_TRACKING_URI",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
):
    os.environ.pop(name, None)

# How long an example takes says nothing: the machine has other work too.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def group_of(nodeid: str) -> str:
    """Tests of a group run one after another in the same worker; most are a group of their own."""
    path, _, name = nodeid.partition("::")
    folder, stem = Path(path).parent.name, Path(path).stem
    if folder in SHARING:
        return stem if stem in OF_THEIR_OWN else folder
    if (file := f"{folder}/{stem}") in AS_A_WHOLE:
        return file
    if VLLM in (folder, *re.split(r"[\[\]-]", name)[1:]):
        return VLLM
    return POSTGRESQL if POSTGRESQL in name else nodeid


class Groups(LoadScopeScheduling):
    """Hands groups to workers, in the order of collection."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    config.option.loadscopereorder = False
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long groups first, so that no worker is left with one at the end."""
    long = ("recovery", "flows", *OF_THEIR_OWN, "cluster", VLLM, *AS_A_WHOLE, POSTGRESQL)
    order = {group: place for place, group in enumerate(long)}
    items.sort(key=lambda item: order.get(group_of(item.nodeid), len(order)))
