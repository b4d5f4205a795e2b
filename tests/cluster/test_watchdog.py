"""A rollout that hangs is reported with its stack, ended and replaced; bad nodes are avoided."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import ray

from tests.cluster.conftest import Head
from tests.cluster.many_nodes import OPEN, ManyNodes
from tests.cluster.run_actors import actors_of, actors_spec, begin, shard_tasks
from tests.faults import hang_at
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.nodes import avoided_nodes, node_names
from yatt_core.errors import InfrastructureError, StuckError
from yatt_core.fault_stacks import kept_stacks
from yatt_core.run_actors import calls
from yatt_core.run_actors.watchdog import gather_stacks

NAMESPACE = "watchdog"


@pytest.fixture
def attached(head: Head) -> Iterator[Head]:
    connect_ray(head.address, NAMESPACE, head.run_folder)
    yield head
    disconnect_ray()


def test_a_hanging_rollout_is_reported_and_replaced(
    attached: Head, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "gather_stacks", partial(gather_stacks, timeout=15.0))
    spec = actors_spec("recovery.phase_deadline_seconds=60")
    actors = actors_of(spec, tmp_path, 1)
    try:
        begin(actors)
        hang_at(tmp_path, 0)
        actors.deadline = 6.0
        tasks = shard_tasks(spec, 1)
        with caplog.at_level(logging.ERROR), pytest.raises(StuckError) as caught:
            list(actors.begin_collecting(tasks).receipts())
        assert "6 s" in str(caught.value)
        (failure,) = actors.failures
        assert failure.actor.startswith("rollout-") and "in generate for" in failure.reason
        assert f"{failure.actor} in generate for" in str(caught.value)
        assert "engines.py:" in str(caught.value) and "hang" in str(caught.value)
        (kept,) = kept_stacks(tmp_path)
        assert kept in str(caught.value) and f".{failure.actor}." in kept
        native = (tmp_path / kept).read_text()
        assert "hang" in native and "MainThread" in native, "of the thread that hangs, before the actor was ended"
        stack = next(record.getMessage() for record in caplog.records if "thread MainThread" in record.getMessage())
        assert "self._ready().stream(request)" in stack
        actors.deadline = 60.0
        assert actors.start() == (failure.actor,)
        actors.load(actors.materialise())
        actors.sync(0)
        assert len(list(actors.begin_collecting(tasks).receipts())) == len(tasks)
    finally:
        actors.stop()


def test_quarantined_nodes_are_avoided_while_there_are_others() -> None:
    two = {"id-a": "a", "id-b": "b"}
    assert avoided_nodes(two, frozenset({"b"})) == {"id-b"}
    assert avoided_nodes(two, frozenset({"c"})) == frozenset()
    assert avoided_nodes({"id-a": "a"}, frozenset({"a"})) == frozenset(), "the only node is used even if quarantined"
    with pytest.raises(InfrastructureError, match=r"\ba, b\b"):
        avoided_nodes(two, frozenset({"a", "b"}))


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Connects this process to a cluster of the nodes `good` and `bad`."""
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    with ManyNodes(["good", "bad"], OPEN) as cluster:
        connect_ray(cluster.address, NAMESPACE)
        yield
        disconnect_ray()


@pytest.mark.verify
def test_actors_leave_a_quarantined_node(two_nodes: None, tmp_path: Path) -> None:
    assert sorted(node_names().values()) == ["bad", "good"]
    actors = actors_of(actors_spec(), tmp_path, 1)
    actors.avoid_nodes = frozenset({"good"})
    begin(actors)
    assert used_nodes() == {"bad"}
    actors.avoid_nodes = frozenset({"bad"})
    assert len(actors.start()) == 7
    actors.load(actors.materialise())
    assert used_nodes() == {"good"}
    actors.avoid_nodes = frozenset({"good", "bad"})
    with pytest.raises(InfrastructureError, match=r"\bbad, good\b"):
        actors.start()
    actors.stop()


def used_nodes() -> set[str]:
    """Returns the names of the nodes on which the namespace has actors."""
    names = node_names()
    handles = [ray.get_actor(name) for name in ray.util.list_named_actors()]
    return {names[ray._private.state.actors(handle._actor_id.hex())["Address"]["NodeID"]] for handle in handles}
