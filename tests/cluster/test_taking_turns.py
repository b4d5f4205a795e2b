"""Devices without memory for all roles at once: the trainer makes room for rollout and has its tensors back in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.conftest import Head
from tests.cluster.fleets import RUN, Heartbeat, batch_of, begin, fleet_of, fleet_spec, shard_tasks
from yatt_core.run_actors.run_actors import Fleet

NAMESPACE = "turns"


def watched(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is waited for from here on, as messages name it."""
    waits: list[str] = []
    get = fleet._calls.get

    def noting(references: list[Any], what: str, *arguments: Any) -> list[Any]:
        waits.append(what)
        return get(references, what, *arguments)

    monkeypatch.setattr(fleet._calls, "get", noting)
    return waits


@pytest.mark.parametrize("resident", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_the_trainer_is_away_while_others_work(
    attached: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    fleet = fleet_of(fleet_spec(), tmp_path, 1)
    try:
        with Heartbeat(tmp_path, 1):
            fleet.resident = resident
            begin(fleet)
            waits = watched(fleet, monkeypatch)
            receipts = list(fleet.collect(shard_tasks(fleet_spec(), 1)))
            fleet.rest()
            prepared = fleet.prepare(batch_of(receipts, 1, phase="prepare"))
            assert fleet.learn(batch_of(receipts, 1), prepared).version == 1
            assert [receipt.version for receipt in fleet.sync(1)] == [1, 1]
            fleet.evaluate(RUN, 1, 4)
    finally:
        fleet.stop()
    turns = [what for what in waits if "offload" in what or "reload" in what or "rest" in what]
    offload, reload, rest = (
        "the trainer's ranks to offload",
        "the trainer's ranks to reload",
        "the rollout engines to rest",
    )
    assert turns == ([] if resident else [offload, rest, reload, offload, rest])
    learnt, synced = (next(i for i, what in enumerate(waits) if part in what) for part in ("learn", "put to work"))
    if not resident:
        assert waits.index(reload) < learnt < synced < len(waits) - 1 - waits[::-1].index(offload)
