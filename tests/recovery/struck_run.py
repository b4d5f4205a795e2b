"""A run on its own services or a warm Ray head, driven by real processes, with methods that strike its parts.

Takes a home, a run and an environment; owns the driver process, which `tend` restarts whenever it is gone. Every signal
goes to a pid that was looked up, never to a name.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from flows.run.home import Home
from flows.run.shared_cluster import services_folder
from tests.recovery.ledger_watch import LedgerWatch
from tests.recovery.parts import kill, living_actors
from tests.recovery.warm_heads import HeadOwner
from tests.services import ROOT
from yatt_core.cluster import fork_server
from yatt_core.errors import ExitCode
from yatt_core.supervisor.client import current_state, stop_supervisor
from yatt_core.supervisor.process import ProcessIdentity, identity_of, send_signal, session_members
from yatt_core.supervisor.state import SupervisorFiles

POLL_SECONDS = 0.05
END_SECONDS = 120.0


class StruckRun:
    """A run, its driver process and its services.

    exits: exit code and last output of each driver that ended without being killed.
    owner: of the warm heads that the run may take over.
    until: the iteration after which its drivers stop; None for the run's target.
    term_launched: start of each term's driver in milliseconds since 1970, added once the driver's term is known.
    """

    def __init__(
        self,
        home: Home,
        run: str,
        environment: Mapping[str, str],
        watch: LedgerWatch,
        lease: float,
        owner: HeadOwner | None = None,
        until: int | None = None,
    ) -> None:
        self.home = home
        self.run = run
        self.watch = watch
        self.folder = home.run_folder(run)
        self._environment = dict(environment)
        self._lease = lease
        self._owner = owner
        self._arguments = () if until is None else ("--until", str(until))
        self._output = self.folder / "driver.txt"
        self._driver: subprocess.Popen[bytes] | None = None
        self._launched: tuple[int, int] | None = None
        self.exits: list[str] = []
        self.term_launched: dict[int, int] = {}

    # -- the driver ---------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """Starts a driver if there is none, and an owner, and notes when each term's driver was started."""
        if self._owner is not None:
            self._owner.tend()
        if self._driver is not None and (code := self._driver.poll()) is not None:
            if code != -signal.SIGKILL:
                self._note_exit(code)
            self._driver = None
        if self._driver is None:
            self._driver = self._launch()
        if self._launched and (term := self.watch.term()) > self._launched[0]:
            self.term_launched[term] = self._launched[1]
            self._launched = None

    def _note_exit(self, code: int) -> None:
        said = self._output.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        self.exits.append(f"{code}: {said[-1] if said else ''}")

    def _launch(self) -> subprocess.Popen[bytes]:
        self._launched = (self.watch.term(), int(time.time() * 1000))
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.flows.driver_process", str(self.home.folder), self.run, *self._arguments],
                cwd=ROOT, env=self._environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip

    def kill_driver(self) -> bool:
        """Kills the driver with SIGKILL."""
        if self._driver is None or self._driver.poll() is not None:
            return False
        self._driver.kill()
        self._driver.wait()
        return True

    def await_end(self) -> None:
        """Waits until the driver has ended on its own."""
        if self._driver is not None:
            self._driver.wait(END_SECONDS)

    def stop(self) -> None:
        """Stops the driver gracefully, then its services; kills whatever does not stop."""
        if self._driver is not None and self._driver.poll() is None:
            self._driver.terminate()
            try:
                self._driver.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill_driver()
        self._driver = None
        stop_supervisor(self.folder)

    @property
    def services(self) -> Path:
        """The folder of the services that the newest driver uses."""
        return services_folder(self.folder)

    # -- strikes: each returns whether there was anything to strike ----------------------------------------------------

    def actor(self, role: str, choose: random.Random) -> Callable[[], bool]:
        """Chooses a living actor of a role; returns a function that kills it without a delay."""
        found = sorted((name, pid) for name, pid in living_actors(self.folder).items() if name.startswith(role))
        if not found:
            return lambda: False
        _, pid = choose.choice(found)
        identity = identity_of(pid)
        return lambda: identity is not None and send_signal(identity, signal.SIGKILL)

    def pause(self) -> bool:
        """Stops the driver until another has taken over its expired lease, then continues it: it must exit."""
        stopped = self._driver
        if stopped is None or stopped.poll() is not None:
            return False
        before = self.watch.term()
        stopped.send_signal(signal.SIGSTOP)
        self._driver = None
        time.sleep(self._lease)
        deadline = time.monotonic() + END_SECONDS
        while self.watch.term() == before and time.monotonic() < deadline:
            self.tend()
            time.sleep(POLL_SECONDS)
        stopped.send_signal(signal.SIGCONT)
        try:
            code = stopped.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            stopped.kill()
            code = stopped.wait()
        if code != ExitCode.LEASE_HELD:
            self._note_exit(code)
        return True

    def cold(self) -> bool:
        """Kills the driver, the supervisor and everything it started."""
        self.kill_driver()
        state = current_state(self.services)
        if state is None:
            return False
        send_signal(state.identity, signal.SIGKILL)
        for member in session_members([], SupervisorFiles.of(self.services).mark):
            send_signal(member, signal.SIGKILL)
        return True

    def raylet(self) -> bool:
        """Kills the process that starts Ray's workers."""
        members = session_members([], SupervisorFiles.of(self.services).mark)
        raylets = [member.pid for member in members if _program(member).endswith("raylet")]
        return sum(kill(pid) for pid in raylets) > 0

    def fork_server(self) -> bool:
        """Kills the process of which Ray's workers are copies."""
        pid = self.fork_server_pid()
        return pid is not None and kill(pid)

    def prefect(self, seconds: float) -> bool:
        """Kills the Prefect server and keeps it down for `seconds` by stopping its supervisor."""
        state = current_state(self.services)
        server = state.service("prefect").identity if state else None
        if state is None or server is None:
            return False
        send_signal(state.identity, signal.SIGSTOP)
        found = send_signal(server, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.tend()
            time.sleep(POLL_SECONDS)
        send_signal(state.identity, signal.SIGCONT)
        return found

    def supervisor(self) -> bool:
        """Kills the supervisor and, after one more phase, the driver, whose successor starts a supervisor."""
        state = current_state(self.services)
        if state is None or not send_signal(state.identity, signal.SIGKILL):
            return False
        killed = int(time.time() * 1000)
        deadline = time.monotonic() + END_SECONDS
        while not self.watch.done_since(killed) and time.monotonic() < deadline:
            self.tend()
            time.sleep(POLL_SECONDS)
        return self.kill_driver()

    def owner(self) -> bool:
        """Kills the owner of the warm heads."""
        return self._owner is not None and self._owner.kill()

    def fork_server_pid(self) -> int | None:
        """Returns the pid of the process of which Ray's workers are copies, or None if it does not run."""
        head = self.service_pid("ray")
        if head is None:
            return None
        with suppress(psutil.Error):
            for child in psutil.Process(head).children():
                if fork_server.__name__ in child.cmdline():
                    return int(child.pid)
        return None

    def service_pid(self, name: str) -> int | None:
        """Returns the pid of a service of the `supervisor` or of the `fork_server`, or None if it does not run."""
        if name == "fork_server":
            return self.fork_server_pid()
        if name == "owner":
            return None if self._owner is None else self._owner.pid
        state = current_state(self.services)
        if state is None:
            return None
        service = state.services.get(name)
        identity = state.identity if name == "supervisor" else service and service.identity
        return identity.pid if identity else None


def _program(identity: ProcessIdentity) -> str:
    try:
        return Path(f"/proc/{identity.pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def own_services(ledger: str, failpoints: Path) -> dict[str, str]:
    """Returns the environment of a driver with its own Ray and Prefect, whose actors record what they publish."""
    from tests.recovery.failpoints import VARIABLE

    given = ("YATT_RAY_ADDRESS", "PREFECT_API_URL", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE")
    path = os.pathsep.join([str(ROOT / "tests" / "recovery" / "site"), str(ROOT)])
    environment = {key: value for key, value in os.environ.items() if key not in given}
    return environment | {"YATT_LEDGER": ledger, VARIABLE: str(failpoints), "PYTHONPATH": path}
