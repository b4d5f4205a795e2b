"""A Ray head that outlives the process that started it, listens on loopback only, and works in a deep folder."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import ray

from tests.cluster.conftest import NAMESPACE, Head
from tests.supervisor.support import supervised
from yatt_core.cluster.connect import connect_ray
from yatt_core.cluster.devices import devices_of, inventory
from yatt_core.cluster.gcs import Node
from yatt_core.cluster.ray_head import (
    FOLDER_LIMIT,
    SHORT_CUT,
    SOCKET_PATH_LIMIT,
    ray_folder,
    ray_token_file,
    socket_folder,
)
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.supervisor.client import current_state
from yatt_core.supervisor.process import session_members
from yatt_core.supervisor.runner import free_port


def test_killed_starter_leaves_a_head_with_its_detached_actor(connected: Head):
    assert current_state(connected.run_folder) is not None
    counter = ray.get_actor("counter")
    assert ray.get(counter.add.remote(), timeout=30) >= 2


def test_a_head_starts_only_servers_that_a_run_uses(connected: Head) -> None:
    state = current_state(connected.run_folder)
    assert state is not None
    identity = state.service("ray").identity
    assert identity is not None
    running = [" ".join(child.cmdline()) for child in psutil.Process(identity.pid).children(recursive=True)]
    assert any("raylet" in command for command in running)
    for name in ("ray.util.client.server", "dashboard/dashboard.py", "log_monitor", "autoscaler"):
        assert not any(name in command for command in running), name


SECOND_DRIVER = """
import sys
from pathlib import Path
import ray
import psutil
from yatt_core.cluster.connect import connect_ray
connect_ray(sys.argv[1], sys.argv[3], Path(sys.argv[2]))
listeners = [c.laddr.ip for c in psutil.Process().net_connections('inet') if c.status == psutil.CONN_LISTEN]
print(ray.get(ray.get_actor('counter').add.remote(), timeout=30) > 1, sorted(set(listeners)))
"""


def second_driver(head: Head, run_folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a process that imports Ray before it connects."""
    return driver_of(SECOND_DRIVER, head, run_folder)


def driver_of(program: str, head: Head, run_folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a driver process without Ray's variables in its environment."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", program, head.address, str(run_folder), NAMESPACE],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def test_driver_that_imported_ray_before_stays_on_loopback(head: Head):
    assert second_driver(head, head.run_folder).stdout == "True ['::ffff:127.0.0.1']\n"


SIGNALLED_DRIVER = """
import os, signal, subprocess, sys
from pathlib import Path
import ray
from yatt_core.cluster.connect import connect_ray, disconnect_ray

heard = []
signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
signal_all_the_time = ["bash", "-c", "exec > /dev/null 2>&1; while kill -TERM $PPID; do sleep 0.01; done"]
with subprocess.Popen(signal_all_the_time) as signalling:
    for _ in range(2):
        connect_ray(sys.argv[1], sys.argv[3], Path(sys.argv[2]))
    assert ray.get(ray.get_actor("counter").add.remote(), timeout=30) > 1
    signalling.kill()
print(len(heard) > 10)
heard.clear()
os.kill(os.getpid(), signal.SIGTERM)
disconnect_ray()
os.kill(os.getpid(), signal.SIGTERM)
print(len(heard))
"""


def test_a_driver_handles_signals_itself_even_while_connecting(head: Head):
    driver = driver_of(SIGNALLED_DRIVER, head, head.run_folder)
    assert driver.stdout == "True\n2\n", driver.stderr


@pytest.mark.verify
def test_driver_with_another_token_is_refused(head: Head, tmp_path: Path):
    """Takes 20 s because Ray keeps retrying."""
    ray_token_file(tmp_path).parent.mkdir(parents=True)
    ray_token_file(tmp_path).write_text("0" * 64)
    refused = second_driver(head, tmp_path)
    assert refused.returncode != 0
    assert f"cannot connect to the Ray head at {head.address}" in refused.stderr


def test_every_listener_is_on_loopback(connected: Head):
    leader = connected.state.service("ray").identity
    assert leader is not None
    members = {member.pid for member in session_members([leader.pid], "YATT_TEST=nobody:")}
    assert {member.pid for member in supervised(connected.run_folder)} <= members
    listeners = [
        connection.laddr.ip
        for pid in {*members, os.getpid()}
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(listeners) >= 8
    assert set(listeners) <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}


def test_token_is_readable_by_its_owner_only(head: Head):
    assert stat.S_IMODE(ray_token_file(head.run_folder).stat().st_mode) == 0o600


def test_all_of_rays_files_are_in_its_folder(connected: Head):
    session = Path(ray._private.worker.global_worker.node.get_session_dir_path())
    assert session.resolve().is_relative_to(ray_folder(connected.run_folder))
    sockets = [str(file) for file in (session / "sockets").iterdir()]
    assert len(sockets) == 2
    assert max(map(len, sockets)) <= SOCKET_PATH_LIMIT


def test_a_deep_run_folder_is_reached_through_a_short_cut(connected: Head):
    """The session's head is in so deep a folder that its sockets need the short cut; all tests here use it."""
    assert len(str(ray_folder(connected.run_folder))) > FOLDER_LIMIT
    assert socket_folder(ray_folder(connected.run_folder)) == SHORT_CUT
    assert socket_folder(Path("/" + "x" * (FOLDER_LIMIT - 1))) == "/" + "x" * (FOLDER_LIMIT - 1)


def test_devices_are_cores_if_there_is_no_gpu(connected: Head):
    devices = inventory()
    if devices[0].kind == "core":
        assert [device.index for device in devices] == [0, 1]
        assert [device.name.rpartition(":")[2] for device in devices] == ["core0", "core1"]
    assert {device.node for device in devices} == {node["NodeID"] for node in ray.nodes()}


def test_devices_are_gpus_if_there_are_any():
    def node(name: str, **resources: float) -> Node:
        return Node(name, name, f"host-{name}", "10.0.0.1", 1, resources)

    nodes = [node("a", CPU=8.0), node("b", CPU=8.0, GPU=2.0), node("d", GPU=1.0)]
    names = [(device.index, device.kind, device.node, device.name) for device in devices_of(nodes)]
    assert names == [
        (0, "gpu", "b", "host-b:gpu0"),
        (1, "gpu", "b", "host-b:gpu1"),
        (2, "gpu", "d", "host-d:gpu0"),
    ]


@pytest.mark.parametrize("address", ["auto", "ray://127.0.0.1:10001"])
def test_address_in_another_form_is_refused(address):
    with pytest.raises(ConfigurationError) as caught:
        connect_ray(address, "test")
    assert repr(address) in str(caught.value) and "host:port" in str(caught.value)


def test_an_address_without_a_listener_is_reported_quickly():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(InfrastructureError, match=address):
        connect_ray(address, "test", timeout=0.3)
