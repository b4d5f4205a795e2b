"""Waiting for streams: what has arrived is taken before anybody asks whether it is enough."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from yatt_core.run_actors import streams
from yatt_core.run_actors.streams import StreamWait


def test_what_arrived_while_nobody_looked_is_taken_though_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a trainer's update, beside which a later iteration was collected."""
    arrived = ["one", "two"]
    heard = list[list[str]]()
    calls: Any = SimpleNamespace(deadline=60.0, interruptions=None)
    blocked: Any = SimpleNamespace(unheard=lambda names: [], heard=heard.append)
    monkeypatch.setattr(streams, "first_ready", lambda waiting, seconds, _: arrived.pop(0) if arrived else None)
    wait = StreamWait(calls, "shard", blocked, lambda: True)
    names = {"one": "controller-0", "two": "controller-1"}
    assert [wait.next_ready(names) for _ in range(3)] == ["one", "two", None]
    assert heard == [["controller-0"], ["controller-1"]]
