"""Which tests one worker runs together, and in which order.

Tests share what is dear to start, once a session, module or package, only within a process: those that ask for it stay
together. Everything else goes to whichever worker is free.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path

import pytest
from xdist.scheduler import LoadScopeScheduling

FIXTURES = {"service_environment": "services", "head": "ray", "postgresql": "postgresql"}
"""Session-wide fixtures, each one or more processes, and the group of the tests that ask for them."""
OF_THEIR_OWN = ("test_exact",)
"""Long enough to be worth services of their own, so that workers have equal shares."""
VLLM = "vllm"
"""Folder, or a parameter, of tests that run vLLM in their own process, which is to be one process."""
FIRST = ("services", *OF_THEIR_OWN, "ray", VLLM, "postgresql")
"""The longest groups; a worker that was left with one at the end would keep everybody waiting."""
WIDE = ("module", "package")
VARIABLE = "YATT_TEST_GROUPS"
"""Names the file in which the first worker tells the scheduler the groups."""


def group_of(item: pytest.Function) -> str | None:
    """The group of a test; None if any worker may run it by itself."""
    path = Path(item.nodeid.partition("::")[0])
    if VLLM in (path.parent.name, *re.split(r"[\[\]-]", item.name)[1:]):
        return VLLM
    if "[postgresql" in item.name:
        return "postgresql"
    for fixture, group in FIXTURES.items():
        if fixture in item.fixturenames:
            return path.stem if path.stem in OF_THEIR_OWN else group
    definitions = (item._fixtureinfo.name2fixturedefs.get(name, ())[-1:] for name in item.fixturenames)
    shares = any(fixture.scope in WIDE and fixture.baseid for found in definitions for fixture in found)
    return path.as_posix() if shares else None


def sort_by_group(items: list[pytest.Function]) -> None:
    """Puts groups first, the longest of them in front; a worker tells the scheduler which they are."""
    order = {group: place for place, group in enumerate(FIRST)}
    groups = {item.nodeid: group for item in items if (group := group_of(item)) is not None}
    items.sort(key=lambda item: order.get(groups[item.nodeid], len(order)) if item.nodeid in groups else len(order) + 1)
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw0":
        Path(os.environ[VARIABLE]).write_text(json.dumps(groups))


class InOrder(LoadScopeScheduling):
    """Hands groups to workers in the order of collection, and every other test by itself."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    @cached_property
    def _groups(self) -> dict[str, str]:
        """By test, as the first worker found them; all have been collected by now."""
        groups: dict[str, str] = json.loads(Path(os.environ[VARIABLE]).read_text())
        return groups

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)
