"""Facts for decisions, written briefly."""

from __future__ import annotations

from typing import Any

from flows.queueing.facts import Allocation, Entry, QueueFacts
from flows.queueing.pools import PoolsSpec, parse_pools

NOW = 100_000.0


def pools(devices: int = 8, **more: Any) -> PoolsSpec:
    return parse_pools({"pools": {"main": {"devices": devices}}, **more}, "pools")


def entry(run: str, devices: int, priority: int = 0, order: int = 0, **more: Any) -> Entry:
    known: dict[str, Any] = {"pools": ("main",), "owner": "ada", "project": "chat"}
    return Entry(run=run, devices=devices, priority=priority, order=order, **{**known, **more})


def holding(run: str, first: int, devices: int, priority: int = 0, **more: Any) -> Entry:
    own = {key: more.pop(key) for key in ("owner", "project", "pools", "wanted") if key in more}
    known: dict[str, Any] = {
        "started_at": NOW - 5000.0,
        "level": priority,
        "free_at": NOW + 60.0,
        "ends_at": NOW + 9000.0,
    }
    pool = own.get("pools", ("main",))[0]
    held = Allocation(pool=pool, devices=tuple(range(first, first + devices)), **{**known, **more})
    return entry(run, devices, priority, **own, held=held)


def facts(*entries: Entry, **more: Any) -> QueueFacts:
    return QueueFacts(NOW, entries, **more)
