"""A warm process that forks drivers, so that none of them has to import prefect, ray and mlflow.

`python -m tests.recovery.nursery` reads one JSON job per line from standard input: home, run, output (file for the
driver's output), failpoints (their folder, or null), environment, arguments. It writes a line when it is ready, then
for each job a line with the driver's pid at once and a line with its exit status (negative: the signal) at its end. It
has no connections and no threads when it forks.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue
from typing import Any

from tests.recovery.failpoints import ROOT, Failpoints

READY_SECONDS = 300.0
OF_THE_ALLOCATOR = "jemalloc_bg_thd"
"""Name of a thread that its library restarts in a forked process."""


@dataclass
class Incarnation:
    """A forked driver."""

    pid: int
    output_file: Path
    _status: Future[int] = field(default_factory=Future)

    def wait(self, seconds: float) -> int:
        """Returns the driver's exit status, negative for a signal. Raises `TimeoutError` if it does not end in time."""
        return self._status.result(seconds)

    def ended(self) -> int | None:
        """Returns the driver's exit status, or None while it lives."""
        return self._status.result() if self._status.done() else None

    @property
    def output(self) -> str:
        """The driver's output so far."""
        return self.output_file.read_text()

    def end(self, status: int) -> None:
        """Records the driver's exit status."""
        self._status.set_result(status)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


class Nursery:
    """The tests' handle on the nursery process.

    environment: describes the services that drivers attach to.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.recovery.nursery", str(folder)],
            cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self._ready = threading.Event()
        self._born: Queue[int] = Queue()
        self._living: dict[int, Incarnation] = {}
        self._count = 0
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self,
        home: Path,
        run: str,
        failpoints: Path | None = None,
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> Incarnation:
        """Forks a driver that drives one session of a run.

        environment: variables to add to the services' environment.
        arguments: the arguments of `tests.flows.driver_process` that follow the run.
        """
        assert self._ready.wait(READY_SECONDS), "the nursery has not imported what drivers need"
        self._count += 1
        output = self._folder / f"driver-{self._count:03d}.txt"
        output.touch()
        job = {
            "home": str(home),
            "run": run,
            "output": str(output),
            "failpoints": str(failpoints or ""),
            "environment": dict(environment or {}),
            "arguments": list(arguments),
        }
        assert self._process.stdin
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        incarnation = Incarnation(0, output)
        self._living[self._count] = incarnation
        incarnation.pid = self._born.get(timeout=60)
        return incarnation

    def close(self) -> None:
        """Ends the nursery and its remaining drivers."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait(30)

    def _listen(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            match line.split():
                case ["ready"]:
                    self._ready.set()
                case ["born", _, pid]:
                    self._born.put(int(pid))
                case [_, number, code]:
                    self._living.pop(int(number)).end(int(code))


def main() -> int:
    folder = Path(sys.argv[1])
    _import_all(folder)
    living: dict[int, int] = {}
    say_lock = threading.Lock()

    def say(line: str) -> None:
        with say_lock:
            os.write(1, f"{line}\n".encode())

    # SIGCHLD interrupts the wait for the next job; only this thread forks.
    def reap(*_: Any) -> None:
        for pid in list(living):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                say(f"ended {living.pop(pid)} {os.waitstatus_to_exitcode(status)}")

    signal.signal(signal.SIGCHLD, reap)
    say("ready")
    for number, line in enumerate(sys.stdin, 1):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if pid == 0:
            _be_driver(json.loads(line))
        living[pid] = number
        say(f"born {number} {pid}")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in list(living):
        os.kill(pid, signal.SIGKILL)
    return 0


def _import_all(folder: Path) -> None:
    """Imports what a driver imports, with the settings of the current services."""
    from flows.prefect_io import prefect_server

    prefect_server.use_server(folder, os.environ["PREFECT_API_URL"].removesuffix("/api"))
    import mlflow.tracking
    import ray

    import flows.train
    import ops.integrations.mlflow_tracker
    import tests.flows.driver_process

    threads = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    assert len(threads) - threads.count(OF_THE_ALLOCATOR) == 1, f"a fork would lose threads: {threads}"
    del mlflow, ray, flows, ops, tests


def _be_driver(job: Mapping[str, Any]) -> None:
    """Drives one session in this forked process and ends it."""
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        os.environ.update(job["environment"])
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        output = os.open(job["output"], os.O_WRONLY | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        from tests.flows import driver_process

        logging.getLogger().handlers.clear()  # Prefect's handlers, which a driver that imports it later does not have
        if job["failpoints"]:
            from tests.recovery.places import watch

            watch(Failpoints(Path(job["failpoints"])))
        sys.argv = ["driver", job["home"], job["run"], *job["arguments"]]
        code = int(driver_process.main())
    except BaseException:
        logging.exception("the driver ends")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
