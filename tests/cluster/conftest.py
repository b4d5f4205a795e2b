"""One Ray head for all tests that need one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import faults
from tests.supervisor.conftest import run_folder as run_folder
from tests.supervisor.support import supervised
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.run_actors.run_actors import RunActors
from yatt_core.supervisor.client import stop_supervisor, wait_ready
from yatt_core.supervisor.state import SupervisorState

NAMESPACE = "test"


@dataclass(frozen=True)
class Head:
    """The session's Ray head; the process that started it was killed."""

    run_folder: Path
    state: SupervisorState

    @property
    def address(self) -> str:
        return self.state.service("ray").address


STARTER = """
import sys, time
from pathlib import Path
from yatt_core.supervisor.client import ensure_supervisor, wait_ready
from yatt_core.cluster.connect import connect_ray
from yatt_core.cluster.ray_head import ray_head_service

run_folder = Path(sys.argv[1])
ensure_supervisor(run_folder, [ray_head_service(run_folder, cpus=2)], grace=7200)
connect_ray(wait_ready(run_folder, ["ray"], 120).service("ray").address, sys.argv[2], run_folder)

import ray

def counting():
    class Counter:
        def __init__(self):
            self.count = 0
        def add(self):
            self.count += 1
            return self.count
    return Counter

counter = ray.remote(num_cpus=0)(counting()).options(name="counter", lifetime="detached").remote()
assert ray.get(counter.add.remote()) == 1
print("counted", flush=True)
time.sleep(7200)
"""


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Head]:
    """Starts a head whose starter is killed by SIGKILL after it has created a detached actor."""
    folder = tmp_path_factory.mktemp("a-run-folder-that-lies-too-deep-for-the-sockets-of-ray")
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(folder), NAMESPACE],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": faults.PYTHONPATH},
    )
    try:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "counted\n"
        starter.send_signal(signal.SIGKILL)
        starter.communicate()
        yield Head(folder, wait_ready(folder, ["ray"], 0))
    finally:
        starter.kill()
        began = time.monotonic()
        stop_supervisor(folder)
        assert supervised(folder) == []
        assert time.monotonic() - began < 25, (
            "stopped as slowly as Ray's own drain, which takes 30 s with a detached actor"
        )


@pytest.fixture(scope="module")
def connected(head: Head) -> Iterator[Head]:
    """Connects this process to the head as a driver."""
    connect_ray(head.address, NAMESPACE, head.run_folder)
    yield head
    disconnect_ray()


@pytest.fixture(scope="module")
def attached(request: pytest.FixtureRequest, head: Head) -> Iterator[Head]:
    """Connects to the head in the namespace of the module's `NAMESPACE`."""
    connect_ray(head.address, request.module.NAMESPACE, head.run_folder)
    yield head
    disconnect_ray()


@pytest.fixture
def actor_sets(attached: Head) -> Iterator[list[RunActors]]:
    """Collects the actor sets that a test creates and stops them after it."""
    made: list[RunActors] = []
    yield made
    for actors in made:
        actors.stop()
