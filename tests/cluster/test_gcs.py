"""Nodes and actors as Ray's control store knows them, even if it was restarted without the driver's knowledge."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from tests.cluster.conftest import Head
from yatt_core.cluster.background_calls import no_calls
from yatt_core.cluster.control_store import RayControlStore
from yatt_core.cluster.gcs import Node, living_nodes, node_of_actor, own_namespace
from yatt_core.errors import InfrastructureError

ASKED_OF_ANOTHER_HEAD = """
import os, signal, sys, time
from pathlib import Path
import psutil
from yatt_core.supervisor.client import ensure_supervisor, wait_ready
from yatt_core.cluster.connect import connect_ray
from yatt_core.cluster.gcs import living_nodes, node_of_actor
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.errors import InfrastructureError
import ray

folder = Path(sys.argv[1])
ensure_supervisor(folder, [ray_head_service(folder)], grace=60)
head = wait_ready(folder, [SERVICE_NAME], 120).service(SERVICE_NAME)
connect_ray(head.address, "gcs", folder)
actor = ray.remote(num_cpus=0)(type("Nobody", (), {})).remote()
assert len(living_nodes()) == 1
for part in psutil.Process(head.identity.pid).children(recursive=True):
    if part.name() in ("gcs_server", "raylet"):
        part.kill()
deadline = time.monotonic() + 120
while wait_ready(folder, [SERVICE_NAME], 120).service(SERVICE_NAME).identity == head.identity:
    assert time.monotonic() < deadline
    time.sleep(0.2)
for question in (living_nodes, lambda: node_of_actor(actor._actor_id.hex())):
    try:
        raise AssertionError(question())
    except InfrastructureError as error:
        print(error, flush=True)
"""


def test_a_node_has_its_given_name_or_that_of_its_host() -> None:
    def info(name: str) -> GcsNodeInfo:
        return GcsNodeInfo(
            node_id=b"\x01", node_name=name, node_manager_address="10.0.0.1", node_manager_hostname="host",
            node_manager_port=7, resources_total={"CPU": 2.0},
        )  # fmt: skip

    assert Node.of(info("10.0.0.1")) == Node("01", "host", "host", "10.0.0.1", 7, {"CPU": 2.0})
    assert Node.of(info("rack-3")).name == "rack-3"


def test_nodes_and_the_places_of_actors(connected: Head) -> None:
    (node,) = living_nodes()
    actor = ray.remote(num_cpus=0)(Nobody).remote()
    assert ray.get(actor.answer.remote()) == 1
    assert node_of_actor(actor._actor_id.hex()) == node.id == ray.get_runtime_context().get_node_id()
    assert node_of_actor("ab" * 16) == "", "an unknown actor has no node"


def test_driver_and_actors_leave_each_other_values_in_the_runs_namespace(connected: Head) -> None:
    store = RayControlStore()
    store.put("driver.a", "1")
    store.put("driver.a", "2")
    store.put("driver.b", "")
    other = ray.remote(num_cpus=0)(Reader).remote()
    assert ray.get(other.read.remote("driver.")) == {"driver.a": "2", "driver.b": ""}
    store.delete("driver.")
    assert store.keys("driver.") == [] and store.get("driver.a") is None


def test_a_process_without_a_connection_hears_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray._private.worker, "global_worker", object())
    with pytest.raises(InfrastructureError):
        RayControlStore().keys("driver.")


@pytest.mark.verify
def test_a_restarted_head_ends_no_process(run_folder: Path) -> None:
    command = [sys.executable, "-c", ASKED_OF_ANOTHER_HEAD, str(run_folder)]
    driver = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert driver.returncode == 0, driver.stderr
    assert driver.stdout.count("Ray's control store does not answer") == 2


class Reader:
    def read(self, prefix: str) -> dict[str, str | None]:
        store = RayControlStore()
        return {key: store.get(key) for key in store.keys(prefix)}


class Nobody:
    def answer(self) -> int:
        return 1


def test_records_of_calls_do_not_fill_the_heads_memory(connected: Head) -> None:
    actor = ray.remote(num_cpus=0)(type("Called", (), {"call": lambda self: None})).remote()
    ray.get([actor.call.remote() for _ in range(50)])
    time.sleep(3)  # Ray reports once a second
    assert ray.timeline() == []


NOT_CONNECTED = """
import yatt_core.cluster.control_store as store
import ray
from types import SimpleNamespace
from yatt_core.errors import InfrastructureError
# As while another thread connects: a client is there already, and the rest is not.
ray._private.worker.global_worker.gcs_client = SimpleNamespace()
ray._private.worker.global_worker.core_worker = None
try:
    store.RayControlStore().put("key", "value")
except InfrastructureError as error:
    print(error)
ray.get_runtime_context()
print(ray.is_initialized())
"""


def test_a_thread_that_asks_while_another_one_connects_starts_no_cluster_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", NOT_CONNECTED], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["there is no connection to the cluster", "False"], done.stdout + done.stderr


def test_a_thread_that_asks_while_another_one_disconnects_does_not_reach_ray(connected: Head) -> None:
    with no_calls(), ThreadPoolExecutor(1) as other:
        question = other.submit(own_namespace)
        with pytest.raises(InfrastructureError, match="no connection"):
            question.result(30)
    assert own_namespace()
