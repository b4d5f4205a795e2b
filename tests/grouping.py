"""Which tests one worker runs together, and which `make quick` leaves out.

Tests share what is dear to start, once a session, module or package, only within a process: those that ask for it stay
together. Everything else goes to whichever worker is free.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from xdist.scheduler import LoadGroupScheduling

FIXTURES = {"service_environment": "services", "head": "ray", "postgresql": "postgresql"}
"""Session-wide fixtures, each one or more processes, and the group of the tests that ask for them."""
OF_THEIR_OWN = ("test_exact",)
"""Long enough to be worth services of their own, so that workers have equal shares."""
VLLM = "vllm"
"""Folder, or a parameter, of tests that run vLLM in their own process, which is to be one process."""
FIRST = ("services", *OF_THEIR_OWN, "ray", VLLM, "postgresql")
"""The longest groups; a worker that was left with one at the end would keep everybody waiting."""
WIDE = ("module", "package")


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


def mark_groups(items: list[pytest.Function]) -> None:
    """Marks the tests for xdist and puts groups first, the longest of them in front."""
    order = {group: place for place, group in enumerate(FIRST)}
    places: dict[str, int] = {}
    for item in items:
        group = group_of(item)
        if group is not None:
            item.add_marker(pytest.mark.xdist_group(group))
        places[item.nodeid] = len(order) + 1 if group is None else order.get(group, len(order))
    items.sort(key=lambda item: places[item.nodeid])


class InOrder(LoadGroupScheduling):
    """Hands groups to workers in the order of collection, not by how many tests they have."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)
