"""Workers that are copies of the fork server differ from those that Ray starts itself in nothing but their speed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.cluster.conftest import Head
from yatt_core.cluster import fork_server, worker_start
from yatt_core.cluster.fork_server import WorkerStart
from yatt_core.cluster.head import start_server
from yatt_core.cluster.ray_head import OF_ACTORS
from yatt_core.engines.ahead import data_modules, torch_modules
from yatt_core.errors import InfrastructureError
from yatt_core.spec import load_spec

FACTS = """
import atexit, json, logging, os, random, signal, sys, threading
atexit.register(print, "at exit")
root = logging.getLogger()
print(json.dumps({
    "logging": [root.level, len(root.handlers)],
    "flags": str(sys.flags),
    "arguments": sys.argv,
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "niceness": os.nice(0),
    "blocked": sorted(int(each) for each in signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "child_signal": str(signal.getsignal(signal.SIGCHLD)),
    "path": sys.path,
    "threads": threading.active_count(),
    "descriptors": sorted(os.listdir("/proc/self/fd"))[:-1],
    "is_main": __name__ == "__main__",
}))
print("told", file=sys.stderr)
extra = {"group": os.getpgrp(), "pid": os.getpid(), "number": random.random(), "json": "colorsys" in sys.modules}
open(sys.argv[1].partition("=")[2], "w").write(json.dumps(extra))
sys.exit(7)
"""
RAYS_SCRIPT = """
import os, sys
arguments = [each for each in sys.argv[1:] if not each.startswith(("--serialized-runtime-env-context", "--language"))]
os.execv(sys.executable, [sys.executable, *arguments])
"""


class Place:
    """A folder with a worker's script, one in place of Ray's, and the socket of a server."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "socket"
        self.script = folder / "worker.py"
        self.rays = folder / "setup_worker.py"
        self.extra = folder / "extra.json"
        self.script.write_text(FACTS)
        self.rays.write_text(RAYS_SCRIPT)

    def start(self, context: str = "{}", language: str = "PYTHON") -> subprocess.CompletedProcess[str]:
        """Runs the script that takes the place of Ray's, as a raylet would."""
        self.extra.unlink(missing_ok=True)
        environment = {
            **os.environ,
            worker_start.SOCKET_VARIABLE: str(self.socket),
            worker_start.RAY_SCRIPT_VARIABLE: str(self.rays),
            "RAY_JOB_ID": "01000000",
        }
        own = [f"--serialized-runtime-env-context={context}", f"--language={language}"]
        return subprocess.run(
            [sys.executable, worker_start.__file__, own[0], str(self.script), f"--extra={self.extra}", own[1]],
            env=environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            preexec_fn=as_a_raylet,
        )

    def facts(self, **given: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Starts a worker and returns what it has said of itself: what any worker has, and what is its own."""
        ended = self.start(**given)
        assert ended.stderr == "told\n", ended.stderr
        told, *rest = ended.stdout.splitlines()
        assert rest == ["at exit"], "it ends as any process of Python does"
        return json.loads(told), json.loads(self.extra.read_text())


def as_a_raylet() -> None:
    """Gives a worker what a raylet gives it: a process group, a niceness, and a blocked signal."""
    os.setpgrp()
    os.nice(3)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def served(place: Place) -> Iterator[subprocess.Popen[bytes]]:
    server = start_server(place.socket, ["colorsys"])
    yield server
    server.kill()
    server.wait()


def test_a_copy_has_what_a_process_of_its_own_would_have(place: Place, served: subprocess.Popen[bytes]) -> None:
    wait_for(place.socket)
    copied, own = place.facts()
    again, own_again = place.facts()
    served.kill()
    served.wait()
    fresh, of_fresh = place.facts()
    assert copied == fresh == again
    assert copied["is_main"] and copied["niceness"] >= 3 and copied["blocked"] == [int(signal.SIGINT)]
    assert (own["json"], of_fresh["json"]) == (True, False), "only the copy has what the server has imported"
    assert own["group"] not in (own["pid"], os.getpgid(0)), "it is in the group that the raylet signals"
    assert own["number"] != own_again["number"], "copies do not draw the same random numbers"


def wait_for(path: Path) -> None:
    """Waits until a server listens."""
    until = time.monotonic() + 60.0
    while time.monotonic() < until:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(os.fspath(path))
            except OSError:
                continue
            return
    raise AssertionError("the server does not listen")


@pytest.mark.parametrize("given", [{"context": '{"py_executable": "python"}'}, {"language": "JAVA"}])
def test_other_workers_are_left_to_ray(place: Place, served: subprocess.Popen[bytes], given: dict[str, str]) -> None:
    wait_for(place.socket)
    _, own = place.facts(**given)
    assert own["json"] is False


def test_the_server_ends_with_the_process_that_started_it(place: Place, served: subprocess.Popen[bytes]) -> None:
    wait_for(place.socket)
    assert served.stdin is not None
    served.stdin.close()
    assert served.wait(30) == 0


def test_what_is_no_request_starts_nothing_and_ends_nothing(place: Place, served: subprocess.Popen[bytes]) -> None:
    wait_for(place.socket)
    for said in (b"\n", b'{"arguments": []}\n', b"half a line"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(os.fspath(place.socket))
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            assert connection.recv(1) == b""
    assert place.facts()[1]["json"] is True
    assert place.socket.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("data", [b"[]", b"{}", b"no json", b'{"arguments": [], "more": 1}'])
def test_a_request_is_read_strictly(data: bytes) -> None:
    with pytest.raises(InfrastructureError, match="is not one"):
        WorkerStart.decode(data)


def test_ray_is_never_imported_ahead(place: Place) -> None:
    with pytest.raises(InfrastructureError, match="have imported Ray"):
        fork_server.serve(place.socket, [])  # this process has imported it


CONFIGS = ("quickstart.yaml", "tools.yaml", "genrm.yaml")


def test_no_module_that_is_imported_ahead_imports_ray() -> None:
    specs = [load_spec(Path("configs", name)) for name in CONFIGS]
    modules = {*OF_ACTORS, *(name for spec in specs for name in data_modules(spec))}
    for_torch = list(dict.fromkeys(name for spec in specs for name in torch_modules(spec)))
    kinds = {spec.trainer.engine.kind for spec in specs} | {spec.rollout.engine.kind for spec in specs}
    assert {"torch"} <= kinds and "yatt_core.datasets.gym" in modules
    others = ["yatt_core.engines.train.fsdp2.engine"]
    told = imported(sorted(modules)), imported([*sorted(modules), *for_torch, *others])
    assert [names & {"ray", "torch"} for names in told] == [set(), {"torch"}]
    assert "offline=True" in told[1]
    assert not told[1] & {"scipy", "sklearn", "matplotlib"}, "nothing of a run's start uses them"


def imported(modules: Sequence[str]) -> set[str]:
    """Returns what a process has imported, top-level names only, after it has imported the modules."""
    program = f"import sys; from yatt_core.cluster.fork_server import import_ahead; import_ahead({list(modules)}); "
    told = "import huggingface_hub.constants as hub; print(*sys.modules, f'offline={hub.HF_HUB_OFFLINE}')"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", program + told],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert not done.stderr, "all modules can be imported"
    return {name for name in done.stdout.split() if "." not in name}


@pytest.fixture
def parent_of_worker(connected: Head) -> Iterator[Callable[[], psutil.Process]]:
    made = list[Any]()

    class Worker:
        def parent(self) -> int:
            return os.getppid()

    def start() -> psutil.Process:
        made.append(ray.remote(num_cpus=0)(Worker).remote())
        return psutil.Process(ray.get(made[-1].parent.remote(), timeout=60))

    yield start
    for actor in made:
        ray.kill(actor)


def test_a_heads_workers_are_copies_and_a_lost_server_is_replaced(
    connected: Head, parent_of_worker: Callable[[], psutil.Process]
) -> None:
    server = parent_of_worker()
    assert fork_server.__name__ in server.cmdline()
    head = psutil.Process(connected.state.service("ray").identity.pid)
    running = [" ".join(process.cmdline()) for process in head.children(recursive=True)]
    assert not any("ray.util.client.server" in command for command in running)
    server.kill()
    until = time.monotonic() + 60.0
    while (parent := parent_of_worker()).pid == server.pid or fork_server.__name__ not in parent.cmdline():
        assert time.monotonic() < until, "no other server was started"
        time.sleep(0.1)


def test_the_script_for_workers_stands_alone() -> None:
    found = importlib.util.find_spec(worker_start.__name__)
    assert found is not None and found.origin is not None
    lines = Path(found.origin).read_text().splitlines()
    imports = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert imports <= sys.stdlib_module_names, "it is run for every worker, so nothing else may be imported"
