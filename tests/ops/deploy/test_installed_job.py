"""The Slurm job and the head pod's hook with YATT from its wheel and real processes: Ray, Prefect's server, drivers.

Only Slurm's commands are stand-ins: `srun` runs its command here.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from db.ledger import Ledger
from flows.run.creation import create_run
from flows.run.home import Home
from flows.run.results import run_results
from tests.installed import installed_wheel, outside, program
from tests.ops.deploy.test_head_pod import OWN_NAMESPACE, has_namespaces, hook
from tests.ops.deploy.test_slurm_job import SCRIPT
from tests.services import ROOT
from tests.waiting import wait_until
from yatt_core.spec import load_spec

pytestmark = [pytest.mark.verify, pytest.mark.timeout(1200)]

ITERATIONS = 8
MANY = 500
STAND_INS = {
    "scontrol": 'case "$1" in show) echo node-1;; *) echo "$*" >> "$ASKED";; esac',
    "srun": 'while [[ "$1" == --* ]]; do shift; done; exec "$@"',
    "hostname": "echo 127.0.0.1",
    # As on a larger node, and apart from other clusters of this machine.
    "ray": 'exec "$INSTALLED/ray" "$@" --num-cpus=8 --include-dashboard=false --object-store-memory=100000000',
}


@dataclass(frozen=True)
class Site:
    """A machine on which YATT is installed: its home, and the environment of commands."""

    home: Home
    environment: dict[str, str]

    def new_run(self, iterations: int = ITERATIONS) -> str:
        spec = load_spec(ROOT / "configs" / "virtual.yaml", [f"iterations={iterations}", "tracking.enabled=false"])
        return create_run(self.home, spec)

    def committed(self, run: str) -> int:
        with Ledger.open(self.home.ledger) as ledger:
            return ledger.runs.find(run).iteration

    def state(self, run: str) -> str:
        with Ledger.open(self.home.ledger) as ledger:
            return ledger.runs.find(run).state

    def digests(self, run: str) -> tuple[str | None, str, str]:
        with Ledger.open(self.home.ledger) as ledger:
            found = run_results(ledger, run)
        return found.weights_digest, found.experience_digest, found.metrics_digest


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed_wheel(tmp_path_factory.mktemp("installed"))


@pytest.fixture
def site(programs: Path, tmp_path: Path) -> Iterator[Site]:
    stand_ins = tmp_path / "bin"
    stand_ins.mkdir()
    for name, body in STAND_INS.items():
        program(stand_ins / name, f"#!/bin/bash\n{body}\n")
    environment = outside(programs, tmp_path)
    environment |= {
        "PATH": f"{stand_ins}:{environment['PATH']}",
        "INSTALLED": str(programs),
        "ASKED": str(tmp_path / "asked"),
        "YATT_ENVIRONMENT": str(tmp_path / "yatt.env"),
    }
    (tmp_path / "yatt.env").write_text(f"YATT_HOME={tmp_path}/runs\n")
    (tmp_path / "work").mkdir()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as sockets:  # their paths are at most 107 bytes long
        yield Site(Home(tmp_path / "runs"), environment | {"RAY_TMPDIR": sockets})


def free_job() -> int:
    """Returns a job's number whose two ports, as the script computes them, are free."""
    for number in range(os.getpid() % 10000, 10000):
        with socket.socket() as ray, socket.socket() as prefect:
            try:
                ray.bind(("127.0.0.1", 20000 + number))
                prefect.bind(("127.0.0.1", 20001 + number))
            except OSError:
                continue
            return number
    raise AssertionError("no free ports")


@contextmanager
def job(site: Site, run: str, folder: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The job's script on the run, as Slurm starts it; ended with all that it has started."""
    environment = site.environment | more
    environment |= {
        "RUN": run,
        "SLURM_JOB_ID": str(free_job()),
        "SLURM_JOB_NODELIST": "node-1",
        "SLURM_JOB_NUM_NODES": "1",
    }
    with (folder / "job.log").open("ab") as log:
        process = subprocess.Popen(
            ["bash", SCRIPT], env=environment, cwd=folder / "work", stdout=log, stderr=log, start_new_session=True
        )
        try:
            yield process
        finally:
            # What the script leaves in its session ends here, as Slurm ends the processes of a job.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def ended(process: subprocess.Popen[bytes], log: Path) -> int:
    """Returns the exit code of a job."""
    try:
        return process.wait(timeout=400)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(log.read_text()) from error


def test_a_slurm_job_drives_a_run_is_requeued_and_resumes_it(site: Site, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    asked = tmp_path / "asked"
    undisturbed = site.new_run()
    run = site.new_run()
    with job(site, undisturbed, tmp_path) as process:
        assert ended(process, log) == 0, log.read_text()
    assert site.state(undisturbed) == "completed" and not asked.exists()
    with job(site, run, tmp_path) as process:
        wait_until(lambda: site.committed(run) >= 2 or process.poll() is not None, 400)
        process.send_signal(signal.SIGTERM)  # as `--signal=B:TERM@600` does, to the script alone
        assert ended(process, log) == 0, log.read_text()
    assert site.state(run) == "stopped" and site.committed(run) < ITERATIONS
    assert asked.read_text().startswith("requeue ")
    with job(site, run, tmp_path, SLURM_RESTART_COUNT="1") as process:
        assert ended(process, log) == 0, log.read_text()
    assert site.state(run) == "completed" and len(asked.read_text().splitlines()) == 1
    assert site.digests(run) == site.digests(undisturbed)
    assert not list(site.home.folder.glob(".ray-token-*"))


POD = r"""
set -euo pipefail
export PREFECT_HOME="$HOME/prefect" RAY_USAGE_STATS_ENABLED=0 DO_NOT_TRACK=true
cd "$HOME/work"
ray start --head --block --node-ip-address=127.0.0.1 --port="$PORT" > "$HOME/ray.log" 2>&1 &
python -P -m yatt.flows.prefect_io.prefect_serving server start --host 127.0.0.1 --port $((PORT + 1)) > "$HOME/server.log" 2>&1 &
until curl -sf -o /dev/null "$PREFECT_API_URL/health"; do sleep 0.5; done
prefect work-pool create yatt --type process
yatt deploy --run "$FIRST" --name nightly --cron "0 3 1 1 *"
prefect worker start --pool yatt --type process --name pod > "$HOME/worker.log" 2>&1 &
worker=$!
prefect deployment run "$(prefect deployment ls | grep -o '[^ ]*/nightly' | head -n 1)"
python -m yatt.ops.cli.main --home "$YATT_HOME" resume -- "$SECOND" > "$HOME/second.log" 2>&1 &
yatt resume "$THIRD" > "$HOME/third.log" 2>&1 &
until [ -e "$HOME/driving" ]; do sleep 0.2; done
/bin/bash -c "$HOOK"
kill -0 "$worker" && echo over
"""
"""A head pod: Ray, the worker, and drivers by each way to be started; then the hook. Ends once the hook does."""


@pytest.mark.skipif(not has_namespaces(), reason="users cannot create process namespaces on this machine")
def test_the_head_pods_hook_stops_the_drivers_of_an_installation(site: Site, tmp_path: Path) -> None:
    runs = [site.new_run(MANY) for _ in range(3)]
    port = 20000 + free_job()
    environment = site.environment | {
        "PORT": str(port),
        "YATT_RAY_ADDRESS": f"127.0.0.1:{port}",
        "PREFECT_API_URL": f"http://127.0.0.1:{port + 1}/api",
        "HOOK": hook()[2],
        **dict(zip(("FIRST", "SECOND", "THIRD"), runs, strict=True)),
    }
    pod = subprocess.Popen(
        [*OWN_NAMESPACE, "--kill-child", "bash", "-c", POD], env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 500
        while min(map(site.committed, runs)) < 1 and pod.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        (tmp_path / "driving").touch()
        said, _ = pod.communicate(timeout=300)
    finally:
        pod.kill()
        pod.wait()
    assert pod.returncode == 0 and said.endswith("over\n"), said
    assert [site.state(run) for run in runs] == ["stopped"] * 3
