"""Ray over hosts: the command and settings of a node, and a cluster with a node on each host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.hosts.host import Host
from tests.hosts.network import Hosts
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.cluster.ray_head import READY_TEXT

PORT = 6379
READY_SECONDS = 120.0
OBJECT_STORE_BYTES = 80 << 20
SETTINGS = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "10",
    "RAY_task_events_report_interval_ms": "0",
    "PYTHONPATH": str(ROOT),
}
"""The environment of nodes and drivers: no token, on hosts that reach each other; lost hosts are noticed in some ten
seconds."""


def node_command(host: Host, head: Host, folder: Path, cpus: int = 1) -> list[str]:
    """Returns the command of a host's node, which lasts until it is ended.

    folder: for Ray's files; its path must be short.
    """
    role = ["--head", f"--port={PORT}", "--include-dashboard=false"]
    role = role if host is head else [f"--address={address_of(head)}"]
    command = [str(Path(sys.executable).with_name("ray")), "start", "--block", *role, f"--num-cpus={cpus}"]
    command += ["--disable-usage-stats", "--include-log-monitor=false", f"--temp-dir={folder}"]
    command += [f"--object-store-memory={OBJECT_STORE_BYTES}", f"--node-ip-address={host.address}"]
    return [*command, f"--node-name={host.name}"]


def address_of(head: Host) -> str:
    """Returns the address of the head on a host."""
    return f"{head.address}:{PORT}"


def is_ready(log: Path) -> bool:
    """Returns whether the node that writes to a log has started."""
    return READY_TEXT in log.read_text(errors="replace")


@contextmanager
def ray_nodes(hosts: Hosts, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Starts a node on each host, the head on the first one, and yields the head's address once all have joined.

    environment: added to that of the nodes.
    """
    folder = Path(tempfile.mkdtemp(prefix="r-"))  # a short path, for Ray's sockets
    head, *others = hosts
    given = {**os.environ, **SETTINGS, **(environment or {})}

    def start(host: Host) -> Path:
        log = folder / f"{host.name}.log"
        with log.open("w") as output:
            command = node_command(host, head, folder / host.name)
            host.start(command, stdout=output, stderr=subprocess.STDOUT, env=given)
        return log

    try:
        first = start(head)
        wait_until(lambda: is_ready(first), READY_SECONDS)
        logs = [start(host) for host in others]
        wait_until(lambda: all(is_ready(log) for log in logs), READY_SECONDS)
        yield address_of(head)
    finally:
        for host in hosts:
            host.end_processes()
        shutil.rmtree(folder, ignore_errors=True)
