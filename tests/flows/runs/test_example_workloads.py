"""The workloads of examples/workloads through real services: killed, on another number of ranks, and from the queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import pytest

from flows.reports.lineage import lineage_of
from tests.flows.tools import SECONDS, Driver
from tests.flows.workload_runs import (
    EVERY_PHASE,
    TRAININGS,
    Training,
    killed_at_random,
    killed_in,
    on_one_rank,
    require_same,
    through_the_queue,
)

pytestmark = [pytest.mark.verify, pytest.mark.timeout(900)]
each = pytest.mark.parametrize("training", TRAININGS.values(), ids=TRAININGS.keys())


@each
def test_killed_in_every_phase(training: Training, driver: Driver) -> None:
    undisturbed, struck = (training.create(driver) for _ in range(2))
    driver.drive(undisturbed)
    killed_in(driver, struck, EVERY_PHASE)
    require_same(driver, struck, undisturbed)


@each
def test_killed_at_random_moments(training: Training, driver: Driver) -> None:
    undisturbed, struck = (training.create(driver) for _ in range(2))
    began = time.monotonic()
    driver.drive(undisturbed)
    killed_at_random(driver, struck, longest=time.monotonic() - began, seed=46)
    require_same(driver, struck, undisturbed)


@each
def test_on_another_number_of_ranks(training: Training, driver: Driver, service_environment: Mapping[str, str]) -> None:
    """A fork takes over the same bits, is marked, and can be killed; a checkpoint of two ranks has the same figures on one."""
    run = training.create(driver)
    driver.drive(run)
    undisturbed, struck = (on_one_rank(driver, run) for _ in range(2))
    driver.drive(undisturbed)
    killed_in(driver, struck, ("recover:2", "learn:3", "evaluate:4"))
    require_same(driver, struck, undisturbed)
    with driver.ledger() as ledger:
        marks = [mark for made in (undisturbed, struck) for mark in lineage_of(ledger, driver.home, made).drift]
        recorded = {
            name.removeprefix("evaluation/"): dict(ledger.metrics.history(run, name))[2]
            for name in ledger.metrics.latest(run)
            if name.startswith("evaluation/")
        }
    assert len(marks) >= 2, "each is marked, once a session until its first commit"
    assert all(mark["changes"]["layout"] == ["torch x 2", "torch x 1"] for mark in marks)
    measured = evaluated(driver, run, 2, service_environment)
    assert recorded and {name: measured[name] for name in recorded} == recorded


def evaluated(driver: Driver, run: str, iteration: int, services: Mapping[str, str]) -> dict[str, Any]:
    """Returns what `yatt evaluate` finds in a checkpoint, on one rank."""
    words = ["--home", str(driver.folder), "evaluate", run, "--iteration", str(iteration), "-o", "json"]
    done = subprocess.run(
        [sys.executable, "-m", "ops.cli.main", *words],
        env={**os.environ, **services}, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@each
def test_from_the_queue(training: Training, driver: Driver, service_environment: Mapping[str, str]) -> None:
    undisturbed, queued = (training.create(driver) for _ in range(2))
    driver.drive(undisturbed)
    through_the_queue(driver, queued, service_environment)
    require_same(driver, queued, undisturbed)
