"""The driver's side of the supervisor: attach or start, wait for services by name, send heartbeats, stop.

All communication goes through the files in `RUN/supervisor/`, so it works from any process on the host, no
matter which process started the supervisor. A lock file prevents two processes from starting it at the same time.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType

from yatt_core.code_revision import code_revision
from yatt_core.durable import make_folder, write_json
from yatt_core.errors import InfrastructureError
from yatt_core.file_lock import file_lock
from yatt_core.python_path import absolute_entries
from yatt_core.supervisor.process import end_sessions, is_alive, is_local, send_signal
from yatt_core.supervisor.services import ServiceSpec, ServiceState
from yatt_core.supervisor.state import (
    MARK_VARIABLE,
    SupervisorFiles,
    SupervisorRequest,
    SupervisorState,
    driver_term,
    log_tail,
    read_state,
    write_state,
)

POLL_SECONDS = 0.05
LOCK_SECONDS = 60.0
START_SECONDS = 120.0
"""Maximum time until a supervisor is ready; on an overloaded machine, Python alone may take half a minute to start."""
STOP_SECONDS = 30.0
REMOTE_SILENCE_SECONDS = 30.0
NOTHING: Mapping[str, str] = MappingProxyType({})
Covers = Callable[[SupervisorRequest, SupervisorRequest], bool]
"""Whether the first request, which is served, will do for whoever has the second one."""

logger = logging.getLogger("yatt.cluster")


def ensure_supervisor(
    folder: Path,
    services: Sequence[ServiceSpec],
    grace: float | None,
    secrets: Mapping[str, str] = NOTHING,
    covers: Covers | None = None,
) -> SupervisorState:
    """Attaches to the run's supervisor if it serves this request, else starts one; does not wait for services.

    A supervisor that was started by a driver with different code serves a different request and is stopped
    first. If a supervisor was killed, the processes that it left are ended first, and its services are
    restarted on the same ports.

    grace: seconds without a heartbeat in the driver's file after which the supervisor ends everything. If None,
        it serves until it is told to stop.
    secrets: additional environment variables for all services; they are never written to disk.
    covers: whether another request, which is being served, will do for this one; if None, none will.

    Raises `InfrastructureError` if the supervisor cannot be started or if one is running on another host.
    """
    files = SupervisorFiles.of(folder)
    make_folder(files.root)
    request = SupervisorRequest(tuple(services), grace, code_revision())
    with _locked(files):
        state = read_state(files)
        if state is not None and _serves(files, state):
            same = state.request_digest == request.digest
            if not state.ending and (same or (covers is not None and covers(_request(files), request))):
                files.driver.touch()
                return state
            _stop(files, state, STOP_SECONDS)
        elif state is not None:
            _sweep(files, state)
        return _start(files, request, secrets)


def ensure_alive(folder: Path, secrets: Mapping[str, str] = NOTHING) -> bool:
    """Restarts the run's supervisor if it was killed, for a driver that is still running; returns True if it did.

    The new supervisor ends the processes that the old one left, including Ray's head and all actors, and starts
    the services on the same ports; this function does not wait for them. Nothing durable is lost: the current
    phase fails, and recovery continues from the files. Does nothing if no supervisor was ever started or if it
    ended on purpose.

    secrets: as for `ensure_supervisor`.
    """
    files = SupervisorFiles.of(folder)
    state = read_state(files)
    if state is None or state.ended or not is_local(state.identity) or is_alive(state.identity):
        return False
    with _locked(files):
        state = read_state(files)
        if state is None or state.ended or is_alive(state.identity):
            return False
        logger.warning("the supervisor (pid %d) is gone; restarting it and its services", state.identity.pid)
        _sweep(files, state)
        _start(files, _request(files), secrets)
    return True


def served_request(folder: Path) -> SupervisorRequest | None:
    """Returns what a supervisor serves; None if it is not running, or is ending."""
    state = current_state(folder)
    return None if state is None or state.ending else _request(SupervisorFiles.of(folder))


def _request(files: SupervisorFiles) -> SupervisorRequest:
    """Returns the request that the newest supervisor serves."""
    return SupervisorRequest.from_json(json.loads(files.request.read_text()))


def current_state(folder: Path) -> SupervisorState | None:
    """Returns the state that the run's supervisor last published; None if it is not running."""
    files = SupervisorFiles.of(folder)
    state = read_state(files)
    return state if state is not None and is_alive(state.identity) else None


def wait_address(folder: Path, name: str, timeout: float) -> str:
    """Returns the address that a service has or will have; empty if it has none within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        state = current_state(folder)
        address = "" if state is None else state.service(name).address
        if address or time.monotonic() >= deadline:
            return address
        time.sleep(POLL_SECONDS)


def wait_ready(folder: Path, names: Collection[str], timeout: float) -> SupervisorState:
    """Waits until all these services are ready.

    Raises `InfrastructureError`, with the end of the service's log, if a service failed permanently, if the
    supervisor ended, or after `timeout` seconds.
    """
    files = SupervisorFiles.of(folder)
    deadline = time.monotonic() + timeout
    while True:
        state = read_state(files)
        if state is None or state.ended or not is_alive(state.identity):
            ended = f" ({state.ended})" if state is not None and state.ended else ""
            raise InfrastructureError(
                f"{files.root}: the supervisor is not running{ended}; its log:\n{log_tail(files.log)}"
            )
        waiting = [state.service(name) for name in names if state.service(name).state is not ServiceState.READY]
        if not waiting:
            return state
        first = waiting[0]
        overdue = time.monotonic() >= deadline
        if overdue or first.state is ServiceState.FAILED:
            said = f"not ready after {timeout:g} s (state: {first.state})" if overdue else "failed"
            raise InfrastructureError(
                f"service {first.name} {said}: {first.reason or 'still starting'}; "
                f"the end of {first.log_file}:\n{log_tail(first.log_file)}"
            )
        time.sleep(POLL_SECONDS)


def stop_supervisor(
    folder: Path, timeout: float = STOP_SECONDS, term: int | None = None, killed: str | None = None
) -> None:
    """Ends the run's supervisor and all its services, and returns when none is left. Does nothing if none is running.

    After `timeout` seconds, this function kills the supervisor and ends its services itself.

    term: the term of the departing driver; a supervisor to which a later driver has attached is left alone.
    killed: the reason to record in the state if the supervisor did not shut down cleanly, so that
        `ensure_alive` does not restart it.
    """
    files = SupervisorFiles.of(folder)
    if not files.root.exists():
        return
    with _locked(files):
        # A driver publishes its term before it attaches, and attaches under this lock: either its term is
        # seen here, or it finds no supervisor.
        if term is not None and driver_term(files) > term:
            return
        state = read_state(files)
        if state is not None and _serves(files, state):
            _stop(files, state, timeout)
        elif state is not None:
            _sweep(files, state)
        last = read_state(files)
        if killed is not None and last is not None and not last.ended:
            write_state(files, replace(last, ended=killed))


def _serves(files: SupervisorFiles, state: SupervisorState) -> bool:
    """Returns True if the recorded supervisor is running on this host.

    Raises `InfrastructureError` if it is running on another host, as a recently touched state file shows.
    """
    if is_local(state.identity):
        return is_alive(state.identity)
    silence = time.time() - files.state.stat().st_mtime
    if not state.ended and silence < REMOTE_SILENCE_SECONDS:
        raise InfrastructureError(
            f"{files.root}: the run's supervisor is running on host {state.identity.host} (pid {state.identity.pid}); "
            f"stop the run there, or wait until it has been silent for {REMOTE_SILENCE_SECONDS:g} s"
        )
    return False


def _start(files: SupervisorFiles, request: SupervisorRequest, secrets: Mapping[str, str]) -> SupervisorState:
    files.stop.unlink(missing_ok=True)
    write_json(files.request, request.to_json())
    hidden = ("PYTHONDONTWRITEBYTECODE", MARK_VARIABLE)
    shown = {key: value for key, value in os.environ.items() if key not in hidden}
    # The supervisor and all services work in other folders.
    environment = absolute_entries(shown, Path.cwd())
    with files.log.open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "yatt_core.supervisor.supervisor", "--folder", str(files.root.parent)],
            env=environment | dict(secrets),
            cwd=files.root,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    # Reaps the supervisor if it ends before this process does.
    threading.Thread(target=process.wait, name="supervisor-reaper", daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while (state := read_state(files)) is None or state.identity.pid != process.pid or state.ended:
        code = process.poll()
        if code is not None or time.monotonic() > deadline:
            process.kill()
            said = log_tail(files.log).strip()
            why = (
                f"was not ready after {START_SECONDS:g} s; the machine may be overloaded, so try again"
                if code is None
                else f"exited with code {code} while it started"
            )
            raise InfrastructureError(
                f"{files.root}: the supervisor {why}; its log {f'ends with:{chr(10)}{said}' if said else 'is empty'}"
            )
        time.sleep(POLL_SECONDS / 5)
    return state


def _stop(files: SupervisorFiles, state: SupervisorState, timeout: float) -> None:
    files.stop.touch()
    deadline = time.monotonic() + timeout
    while is_alive(state.identity) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    send_signal(state.identity, signal.SIGKILL)
    _sweep(files, read_state(files) or state)
    files.stop.unlink(missing_ok=True)


def _sweep(files: SupervisorFiles, state: SupervisorState) -> None:
    """Ends the processes left by a supervisor that is gone."""
    leaders = [service.identity for service in state.services.values() if service.identity is not None]
    end_sessions(leaders, files.mark, grace=0.0)


@contextmanager
def _locked(files: SupervisorFiles) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        with file_lock(files.lock) as alone:
            if alone:
                yield
                return
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{files.lock}: held for more than {LOCK_SECONDS:g} s by another process that is starting or "
                "stopping the run's supervisor; end that process, then try again"
            )
        time.sleep(POLL_SECONDS)


class Heartbeat:
    """A thread that touches the driver's file every `interval` seconds; a context manager.

    A driver with a newer term takes over the file; the older driver then stops touching it. A touch that fails
    (for example, because the disk is full) is logged and retried at the next beat.
    """

    def __init__(self, folder: Path, term: int, interval: float = 2.0) -> None:
        self._files = SupervisorFiles.of(folder)
        self._term = term
        self._interval = interval
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="driver-heartbeat", daemon=True)

    def __enter__(self) -> Heartbeat:
        make_folder(self._files.root)
        self._beat()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._beat()
            except (OSError, InfrastructureError) as error:
                logger.warning("cannot touch %s: %s", self._files.driver, error)

    def _beat(self) -> None:
        recorded = driver_term(self._files)
        if recorded == self._term:
            os.utime(self._files.driver)
        elif recorded < self._term:
            write_json(self._files.driver, {"term": self._term, "pid": os.getpid()})
