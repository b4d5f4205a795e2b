"""Decides which tests a worker runs together, and in which order.

Fixtures that are expensive to start, once per session, module or package, are shared within one process only, so tests
that request them stay together. Every other test goes to any free worker.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

FIXTURES = {"service_environment": "services", "head": "ray", "postgresql": "postgresql"}
"""Session-wide fixtures that start one or more processes, and the group of the tests that request them."""
VLLM = "vllm"
"""Folder or parameter of tests that share an engine of vLLM, or run it inside the test process, which only one should."""
FIRST = ("services", "ray", VLLM, "postgresql")
"""The longest groups; starting one of them last would keep all other workers waiting."""
WIDE = ("module", "package")
VARIABLE = "YATT_TEST_GROUPS"
"""Environment variable with the path of the file in which the first worker passes the groups to the scheduler."""


def group_of(item: pytest.Function) -> str | None:
    """Returns the group of a test, or None if any worker may run it by itself."""
    path = Path(item.nodeid.partition("::")[0])
    if VLLM in (path.parent.name, *re.split(r"[\[\]-]", item.name)[1:]):
        return VLLM
    if "[postgresql" in item.name:
        return "postgresql"
    for fixture, group in FIXTURES.items():
        if fixture in item.fixturenames:
            return group
    definitions = (item._fixtureinfo.name2fixturedefs.get(name, ())[-1:] for name in item.fixturenames)
    shares = any(fixture.scope in WIDE and fixture.baseid for found in definitions for fixture in found)
    return path.as_posix() if shares else None


def sort_by_group(items: list[pytest.Function]) -> None:
    """Sorts groups to the front, longest first; the first worker passes them to the scheduler."""
    order = {group: place for place, group in enumerate(FIRST)}
    groups = {item.nodeid: group for item in items if (group := group_of(item)) is not None}
    items.sort(key=lambda item: order.get(groups[item.nodeid], len(order)) if item.nodeid in groups else len(order) + 1)
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        Path(os.environ[VARIABLE]).write_text(json.dumps(groups))


class InOrder(LoadScopeScheduling):
    """Scheduler that assigns groups of tests to workers in collection order, and each ungrouped test on its own."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    @cached_property
    def _groups(self) -> dict[str, str]:
        """The group of each test, as passed on by the first worker, whose collection is complete by now."""
        groups: dict[str, str] = json.loads(Path(os.environ[VARIABLE]).read_text())
        return groups

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forgets what is complete, which would be counted again after each of ten thousand tests."""
        nodeid = self.registered_collections[node][item_index]
        scope = self._split_scope(nodeid)
        unit = self.assigned_work[node][scope]
        unit[nodeid] = True
        if all(unit.values()):
            del self.assigned_work[node][scope]
        self._reschedule(node)

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)
