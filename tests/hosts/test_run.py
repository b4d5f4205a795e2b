"""A whole run over two hosts ends with the bits of a run on one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.flows.tools import Driver, same_result
from tests.hosts.door import door
from tests.hosts.network import Hosts
from tests.hosts.ray_nodes import SETTINGS, ray_nodes
from tests.recovery.nursery import Nursery
from tests.services import ROOT

SHAPE = ("name=hosts", "iterations=2", "tracking.enabled=false", "evaluation.every=4", "checkpoints.every=2")
SECONDS = 150


@pytest.fixture
def driver(tmp_path: Path, nursery: Nursery) -> Driver:
    return Driver(tmp_path / "runs", nursery)


@pytest.mark.timeout(300)
def test_a_run_over_two_hosts_ends_with_the_bits_of_a_run_on_one(
    two_hosts: Hosts, driver: Driver, service_environment: Mapping[str, str]
) -> None:
    here = driver.create("virtual.yaml", *SHAPE)
    driver.drive(here)
    prefect = service_environment["PREFECT_API_URL"]
    run = driver.create("virtual.yaml", *SHAPE, "controllers.per=node")
    first = two_hosts["h1"]
    with door(first, urlsplit(prefect).port or 80), ray_nodes(two_hosts) as address:
        environment = {**os.environ, **SETTINGS, "PREFECT_API_URL": prefect, "YATT_RAY_ADDRESS": address}
        command = [sys.executable, "-m", "tests.flows.driver_process", str(driver.folder), run]
        process = first.start(
            command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )  # fmt: skip
        output, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, output
    assert same_result(driver.results(here), driver.results(run))
    with driver.ledger() as ledger:
        assert ledger.events.of_kind(run, "controllers")[0].body["nodes"] == {"h1": 1, "h2": 1}
