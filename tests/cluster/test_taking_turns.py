"""Devices without memory for all roles at once: the trainer offloads for rollout and reloads in time."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError

from tests.cluster.conftest import Head
from tests.cluster.run_actors import RUN, DriverBeat, actors_of, actors_spec, batch_of, begin, shard_tasks
from yatt_core.cluster.nodes import node_names
from yatt_core.protocols.receipts import ActorSeat
from yatt_core.run_actors.run_actors import RunActors

NAMESPACE = "turns"


def watched(actors: RunActors, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Returns a list that collects the name of every wait from now on, as it appears in messages."""
    waits: list[str] = []
    get = actors._calls.get

    def noting(references: list[Any], what: str, *arguments: Any, **named: Any) -> list[Any]:
        waits.append(what)
        return get(references, what, *arguments, **named)

    monkeypatch.setattr(actors._calls, "get", noting)
    return waits


def kill(actor: ActorHandle) -> None:
    """Kills an actor and waits until Ray reports it as dead; `ray.kill` returns earlier, and calls may still be answered."""
    ray.kill(actor)
    with pytest.raises(RayActorError):
        while True:
            ray.get(actor.__ray_ready__.remote(), timeout=30)


def check_seats(seats: tuple[ActorSeat, ...]) -> None:
    """Checks that all actors are on the only node; virtual ones have no devices."""
    by_role = Counter(seat.actor.partition("-")[0] for seat in seats)
    assert by_role.keys() == {"dispatcher", "controller", "rollout", "trainer"}
    assert {seat.node for seat in seats} == set(node_names().values())
    assert {seat.device for seat in seats} == {""}
    assert all(seat.host_bytes > 10 << 20 for seat in seats if not seat.actor.startswith("dispatcher"))


@pytest.mark.parametrize("resident", [False, pytest.param(True, marks=pytest.mark.verify)])
def test_the_trainer_is_offloaded_while_others_work(
    attached: Head, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    actors = actors_of(actors_spec(), tmp_path, 1)
    try:
        with DriverBeat(1):
            actors.resident = resident
            begun = watched(actors, monkeypatch)
            begin(actors)
            loaded = begun.index("the actors to load")
            assert ("the trainer's ranks to offload" in begun[:loaded]) is not resident
            check_seats(actors.seats())
            waits = watched(actors, monkeypatch)
            receipts = list(actors.begin_collecting(shard_tasks(actors_spec(), 1)).receipts())
            actors.rest()
            prepared = actors.prepare(batch_of(receipts, 1, phase="prepare"))
            assert actors.learn(batch_of(receipts, 1), prepared).version == 1
            assert [receipt.version for receipt in actors.sync(1)] == [1, 1]
            actors.evaluate(RUN, 1, 4)
            used = actors.process_use()
            devices = {name: use.utilization for name, use in used.items() if use.utilization is not None}
            assert (
                devices.keys() == {"rollout-0", "rollout-1", "trainer-0", "trainer-1"} and min(devices.values()) >= 0.0
            )
            assert used.keys() == {*devices, "controller-0", "controller-1"}
            assert all(use.holds.host_bytes > 1 << 20 for use in used.values())
            kill(actors._ranks[1])
            assert set(actors.process_use()) == used.keys() - {"trainer-1"}, "a lost actor is left out"
    finally:
        actors.stop()
    turns = [what for what in waits if "offload" in what or "reload" in what or "rest" in what]
    offload = "the trainer's ranks to offload"
    reload = "the trainer's ranks to reload"
    rest = "the rollout engines to rest"
    assert turns == ([] if resident else [offload, rest, reload, offload, rest])
    learned, synced = (
        next(i for i, what in enumerate(waits) if part in what) for part in ("learn", "the digest of new weights")
    )
    if not resident:
        assert waits.index(reload) < learned < synced < len(waits) - 1 - waits[::-1].index(offload)
