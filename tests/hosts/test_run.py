"""A whole run over two hosts that share no disk ends with the bits of a run on one host."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.flows.tools import Driver, same_result
from tests.hosts.door import door
from tests.hosts.network import Hosts, NoHostsError
from tests.hosts.ray_nodes import SETTINGS, ray_nodes
from tests.object_store.server import S3Server
from tests.recovery.nursery import Nursery
from tests.services import ROOT

SHAPE = ("name=hosts", "iterations=2", "tracking.enabled=false", "evaluation.every=4", "checkpoints.every=2")
SECONDS = 150


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery) -> Driver:
    return Driver(tmp_path / "runs", nursery)


@pytest.fixture
def store() -> Iterator[S3Server]:
    made = S3Server()
    made.start()
    made.make_bucket("bucket")
    yield made
    made.stop()


@pytest.mark.timeout(300)
def test_a_run_over_two_hosts_ends_with_the_bits_of_a_run_on_one(
    driver: Driver, store: S3Server, service_environment: Mapping[str, str]
) -> None:
    run = driver.create("virtual.yaml", *SHAPE, "controllers.per=node", "storage.url=s3://bucket/runs")
    folder = driver.home.run_folder(run)
    given = {"PREFECT_API_URL": service_environment["PREFECT_API_URL"]}
    given |= store.environment
    try:
        hosts = Hosts(2, [folder])
    except NoHostsError as error:
        pytest.skip(str(error))
    here = driver.create("virtual.yaml", *SHAPE)
    alone = driver.start(here)
    with hosts, ExitStack() as doors:
        for host in hosts:
            for address in (given["PREFECT_API_URL"], given["AWS_ENDPOINT_URL"]):
                doors.enter_context(door(host, urlsplit(address).port or 80))
        with ray_nodes(hosts, store.environment) as address:
            environment = {**os.environ, **SETTINGS, **given, "YATT_RAY_ADDRESS": address}
            command = [sys.executable, "-m", "tests.flows.driver_process", str(driver.folder), run]
            process = hosts["h1"].start(
                command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
            )  # fmt: skip
            output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 0, output
        kept = [
            hosts[name].call("sh", "-c", f"cd {folder} && find experience -name '*.parquet'") for name in ("h1", "h2")
        ]
    assert alone.wait(SECONDS) == 0, alone.output
    assert same_result(driver.results(here), driver.results(run))
    with driver.ledger() as ledger:
        assert ledger.events.of_kind(run, "controllers")[0].body["nodes"] == {"h1": 1, "h2": 1}
    assert all(kept) and kept[0] != kept[1], "each host has its own controller's shards"
    assert not list(folder.glob("experience/**/*.parquet")), "a host wrote to this machine's disk"
