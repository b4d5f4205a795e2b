"""Devices are reserved per node, passed on to the next driver, replaced if a node is lost, and released."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.cluster.many_nodes import OPEN, ManyNodes
from tests.services import ROOT
from yatt_core.cluster import reservation
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.devices import Device
from yatt_core.cluster.gcs import node_of_actor, remember
from yatt_core.cluster.nodes import A_NODE, node_names
from yatt_core.cluster.reservation import NodeReservation, check_room, lacking, release, reserve
from yatt_core.cluster.seating import RankLayout
from yatt_core.errors import AwayError, ConfigurationError, InfrastructureError
from yatt_core.run_actors.actor_registry import TRAINER, ActorRegistry
from yatt_core.spec import load_spec


def cores(**counts: int) -> list[Device]:
    places = [(node, slot) for node, count in counts.items() for slot in range(count)]
    return [Device(index, "core", node, f"{node}:core{slot}") for index, (node, slot) in enumerate(places)]


@pytest.mark.parametrize(
    ("held", "avoided", "wanted", "added"),
    [
        ({}, set(), 3, {"b": 3}),
        ({}, set(), 6, {"b": 4, "a": 2}),
        ({}, set(), 99, {"a": 2, "b": 4, "c": 2}),
        ({}, {"b"}, 3, {"a": 2, "c": 1}),
        ({"b": 4}, set(), 4, {}),
        ({"b": 4}, {"b"}, 4, {"a": 2, "c": 2}),
        ({"a": 1}, set(), 2, {"c": 1}),  # a group never grows
    ],
)
def test_missing_devices_are_reserved_on_as_few_nodes_as_possible(
    held: dict[str, int], avoided: set[str], wanted: int, added: dict[str, int]
) -> None:
    groups = {node: NodeReservation("00", count) for node, count in held.items()}
    assert lacking(cores(a=2, b=4, c=2), groups, avoided, wanted, of(wanted)) == added


def of(ranks: int) -> RankLayout:
    return RankLayout(ranks, shares=True)


def test_a_run_that_does_not_get_all_devices_keeps_none_of_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise two runs could each hold what the other one waits for."""
    stored = {"a": NodeReservation("aa", 2)}
    removed = list[str]()

    def grouped(node: str, count: int, kind: str, name: str) -> NodeReservation:
        if node == "c":
            raise AwayError("a free place on the cluster is away: others have it")
        return NodeReservation("bb", count)

    def tell(groups: dict[str, NodeReservation]) -> None:
        stored.clear()
        stored.update(groups)

    monkeypatch.setattr(reservation, "inventory", lambda: tuple(cores(a=2, b=4, c=2)))
    monkeypatch.setattr(reservation, "_groups", lambda: dict(stored))
    monkeypatch.setattr(reservation, "_tell", tell)
    monkeypatch.setattr(reservation, "_group_on", grouped)
    monkeypatch.setattr(NodeReservation, "handle", property(lambda group: group.id))
    monkeypatch.setattr(reservation, "remove_placement_group", removed.append)
    with pytest.raises(AwayError):
        reserve(8, (), of(8))
    assert removed == ["bb"] and stored == {"a": NodeReservation("aa", 2)}


@pytest.mark.parametrize(
    ("held", "avoided", "had_room", "away"),
    [
        ({}, set(), False, False),
        ({}, set(), True, True),
        ({"a": 2}, set(), False, True),
        ({}, {"b"}, False, True),
    ],
    ids=["never held", "held by an earlier session", "held", "one is avoided"],
)
def test_ranks_that_find_no_place_wait_for_a_node_if_the_run_could_have_had_one(
    monkeypatch: pytest.MonkeyPatch, held: dict[str, int], avoided: set[str], had_room: bool, away: bool
) -> None:
    ranks = RankLayout(6)
    missing = {"a": 2, "b": 3}
    monkeypatch.setattr(
        reservation, "_groups", lambda: {node: NodeReservation("00", count) for node, count in held.items()}
    )
    for work in (reserve_all, check_room):
        monkeypatch.setattr(reservation, "inventory", lambda: tuple(cores(**missing)))
        with pytest.raises(AwayError if away else ConfigurationError) as caught:
            work(avoided, ranks, of(1), had_room)
        assert not isinstance(caught.value, AwayError) or caught.value.dependency == A_NODE
    monkeypatch.setattr(reservation, "inventory", lambda: tuple(cores(**missing, c=4)))
    check_room(avoided, ranks, of(1), had_room)


def reserve_all(avoided: set[str], layout: RankLayout, pool: RankLayout, had_room: bool) -> None:
    """Reserves devices for all ranks."""
    reserve(layout.ranks, avoided, layout, pool, had_room)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[ManyNodes]:
    for name, value in OPEN.items():
        monkeypatch.setenv(name, value)
    with ManyNodes(["a", "b"], OPEN) as cluster:
        connect_ray(cluster.address, "one")
        yield cluster
        disconnect_ray()


def test_devices_are_reserved_on_several_nodes(
    nodes: ManyNodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = {name: node for node, name in node_names().items()}
    seats = reserve(3, (), of(3))
    assert sorted(Counter(seat.node for seat in seats).values()) == [1, 2]
    assert reserve(3, (), of(3)) == seats, "the next driver finds the same seats"
    spec = load_spec(ROOT / "configs" / "quickstart.yaml", ["trainer.engine.ranks=3", "controllers.count=1"])
    registry = ActorRegistry(spec, tmp_path, 1, 0)
    registry.gather(frozenset())
    ray.get(
        [rank.rendezvous.remote("127.0.0.1") for rank in registry.of(TRAINER)]
    )  # until it answers, Ray may name a node that only forwards it
    placed = [node_of_actor(rank._actor_id.hex()) for rank in registry.of(TRAINER)]
    assert placed == [seat.node for seat in seats], "each rank has its own device"
    names = node_names()
    recorded = [(seat.node, seat.device) for seat in registry.seats() if seat.actor.startswith(TRAINER)]
    assert recorded == [(names[seat.node], f"core{seat.bundle}") for seat in seats]

    connect_ray(nodes.address, "another")
    monkeypatch.setattr(reservation, "FREE_SECONDS", 1.0)
    with pytest.raises(InfrastructureError, match=r"\bcores\b.*\bnode \w+"):
        reserve(4, (), of(4))
    connect_ray(nodes.address, "one")
    registry.end_all()
    monkeypatch.setattr(reservation, "FREE_SECONDS", 30.0)
    assert len(reserve(4, (), of(4))) == 4, "released devices are available again"

    remember("one", reservation.KEY, "{}")
    assert len(reserve(4, (), of(4))) == 4, "devices of a driver that died before recording them are found"
    assert {seat.node for seat in reserve(4, {ids["a"]}, of(4))} == {ids["b"]}, "the group of an avoided node is kept"
    nodes.kill("b")
    deadline = time.monotonic() + 30
    while ids["b"] in node_names() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert {seat.node for seat in reserve(4, (), of(4))} == {ids["a"]}
    release()
    assert len(reserve(2, (), of(2))) == 2


NVIDIA_SMI = """#!/bin/sh
echo "Abacus 9, 30720"
echo "Abacus 9, 20480"
"""
SHARED = """
import os, ray
ray.init(num_cpus=1, num_gpus=2, include_dashboard=False, configure_logging=False, log_to_driver=False)
from yatt_core.cluster.reservation import gpus_of, reserve
from yatt_core.cluster.seating import RankLayout
seen = ray.remote(lambda: os.environ["CUDA_VISIBLE_DEVICES"])
seats = reserve(3, (), RankLayout(3, shares=True))
print(gpus_of(seats))
print(seats[0].kind, ray.get([seen.options(num_cpus=0, **seats[i % 2].options).remote() for i in range(4)]))
from yatt_core.cluster.devices import inventory, measured_gpus
known = inventory()
print([(gpu.model, gpu.memory >> 20) for gpu in measured_gpus(known, {known[0].node})])
os.remove(os.environ["TOOL"])
try:
    measured_gpus(known, {known[0].node})
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.timeout(420)
def test_actors_of_a_gpu_see_only_that_gpu_and_its_driver_is_asked_for_its_memory(tmp_path: Path) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(NVIDIA_SMI)
    tool.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", SHARED],
        cwd=ROOT,
        env={**os.environ, **OPEN, "TOOL": str(tool), "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        text=True,
        capture_output=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    smallest = ("Abacus 9", 20480)
    said = ["('0', '1')", "gpu ['0', '1', '0', '1']", str([smallest, smallest]), "ConfigurationError"]
    assert done.stdout.splitlines() == said
