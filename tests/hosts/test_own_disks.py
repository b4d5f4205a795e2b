"""A run whose hosts share no disk, and lose one with all that was on it, ends with the bits of a run on one host."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.flows.tools import Driver, same_result
from tests.hosts.door import door
from tests.hosts.host import Host
from tests.hosts.namespaces import Inside
from tests.hosts.network import Hosts, NoHostsError
from tests.hosts.ray_nodes import PORT, SETTINGS, node_command, ray_nodes
from tests.object_store.server import S3Server
from tests.recovery.nursery import Nursery
from tests.services import ROOT
from tests.waiting import wait_until

SECONDS = 400
SHAPES = {
    "virtual.yaml": ("rollout.engine.instances=2", "trainer.engine.ranks=2", "rollout.engine.base_seconds=0.05"),
    "torch.yaml": ("rollout.engine.instances=2", "trainer.engine.ranks=2"),
}
COMMON = (
    "iterations=4", "tracking.enabled=false", "evaluation.every=4", "checkpoints.every=2", "checkpoints.keep=1",
    "retention.experience=needed", "controllers.per=node", "recovery.phase_deadline_seconds=120",
)  # fmt: skip


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery) -> Driver:
    return Driver(tmp_path / "runs", nursery)


@pytest.fixture
def server() -> Iterator[S3Server]:
    server = S3Server()
    server.start()
    server.make_bucket("bucket")
    yield server
    server.stop()


def drive(host: Host, driver: Driver, run: str, environment: Mapping[str, str]) -> Inside:
    command = [sys.executable, "-m", "tests.flows.driver_process", str(driver.folder), run]
    return host.start(
        command, env={**os.environ, **SETTINGS, **environment}, cwd=ROOT, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def committed(driver: Driver, run: str) -> int:
    with driver.ledger() as ledger:
        return ledger.runs.find(run).iteration


@pytest.mark.verify
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("spec", SHAPES)
def test_hosts_without_a_shared_disk_end_with_the_bits_of_one_host(
    spec: str,
    driver: Driver,
    server: S3Server,
    service_environment: Mapping[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shape = (*SHAPES[spec], *COMMON)
    here = driver.create(spec, "name=here", *shape)
    driver.drive(here)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    run = driver.create(spec, "name=apart", *shape, "storage.url=s3://bucket/prefix")
    folder = driver.home.run_folder(run)
    prefect = service_environment["PREFECT_API_URL"]
    ports = [urlsplit(address).port or 80 for address in (prefect, server.environment["AWS_ENDPOINT_URL"])]
    try:
        hosts = Hosts(2, [folder])
    except NoHostsError as error:
        pytest.skip(str(error))
    with hosts, ExitStack() as doors:
        first, second = hosts
        for port in ports:
            doors.enter_context(door(first, port))
        second_doors = doors.enter_context(ExitStack())
        second_doors.enter_context(door(second, ports[1]))
        with ray_nodes(hosts, server.environment) as address:
            environment = {"PREFECT_API_URL": prefect, "YATT_RAY_ADDRESS": address, **server.environment}
            process = drive(first, driver, run, environment)
            wait_until(lambda: committed(driver, run) >= 2 or process.poll() is not None, SECONDS)
            assert process.poll() is None, process.communicate()[0]
            second.power_off(keep_disk=False)
            second_doors.close()
            time.sleep(1.0)
            second.power_on()
            second_doors.enter_context(door(second, ports[1]))
            with (tmp_path / "again.log").open("w") as log:
                again = node_command(second, first, Path(f"/tmp/yn-{os.getpid()}"))
                second.start(again, stdout=log, stderr=log, env={**os.environ, **SETTINGS, **server.environment})
            output, _ = process.communicate(timeout=SECONDS)
            if process.returncode != 0:
                process = drive(first, driver, run, environment)
                output, _ = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, output
        assert same_result(driver.results(here), driver.results(run))
        with driver.ledger() as ledger:
            assert ledger.events.of_kind(run, "disks")[0].body["nodes"] == {"h1": "h1", "h2": "h2"}
            assert ledger.events.of_kind(run, "actor_lost")
    assert not list(folder.glob("experience/*/*/*.parquet")), f"the hosts wrote to this machine's disk, port {PORT}"
