"""Starts Ray's worker processes as copies of one process that has already imported what they need.

`python -m yatt_core.cluster.fork_server --socket FILE [--import MODULE ...]` imports the modules, then forks a worker for each
request on the socket (`worker_start.py` sends them). A fresh process would spend seconds of a core on imports, and seven start at
the same time. The server runs nothing of any run: workers only share the code that is installed. It ends with the process that
started it, whose end of the pipe on standard input closes then.

Ray itself is imported by each worker: its native part reads the worker's job and the process id of its raylet from the
environment when it is loaded, and a worker that has none crashes.

A request is one line of JSON, a `WorkerStart`, with the worker's standard streams as file descriptors. The worker answers with
its process id once it has become what was asked for. Who gets no answer may start the worker in another way: a worker that
cannot answer ends.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import logging
import os
import runpy
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from yatt_core.code_revision import code_revision
from yatt_core.errors import InfrastructureError

LONGEST_REQUEST = 1 << 20
"""Bytes of a request; a command line and an environment have a few thousand."""
STREAMS = 3
ONE_THREAD = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Settings during the imports: native libraries read them when they are loaded. The first is what Ray sets in its workers; the
second keeps Arrow's allocator from starting a thread, which a copy would lack."""
OWN_ADJUSTMENT = Path("/proc/self/oom_score_adj")
ADJUSTMENT_VARIABLE = "RAY_worker_oom_score_adjustment"
ADJUSTMENT = "1000"
"""Ray has the kernel end workers before other processes."""

log = logging.getLogger("yatt.fork_server")


@dataclass(frozen=True, slots=True)
class WorkerStart:
    """A worker process to start.

    arguments: the worker's script and its arguments.
    group: the process group that Ray made for the worker, and which it signals when the worker is to end. While the worker is
        in it, no other process can get its number.
    niceness, blocked: what Ray has set for the worker: its scheduling, and the signals that it does not receive.
    """

    arguments: Sequence[str]
    environment: Mapping[str, str]
    folder: str
    group: int
    niceness: int
    blocked: Sequence[int]

    def encode(self) -> bytes:
        """Returns the request as it is sent."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> WorkerStart:
        """Reads a request. Raises `InfrastructureError` if it is not one."""
        try:
            return cls(**json.loads(data))
        except (ValueError, TypeError) as error:
            raise InfrastructureError(f"a request of {len(data)} bytes is not one: {error}") from error


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request that was received.

    connection: where the answer is expected.
    """

    start: WorkerStart
    streams: Sequence[int]
    connection: socket.socket

    def close(self) -> None:
        """Closes the connection and the streams."""
        self.connection.close()
        for stream in self.streams:
            os.close(stream)


def serve(path: Path, modules: Sequence[str]) -> WorkerRequest | None:
    """Listens on the socket, imports the modules, and serves requests until standard input ends.

    Requests that come during the imports wait for them. Returns None in the server, and in a worker the request for it.

    Raises `InfrastructureError` if the imports leave something that a copy cannot have.
    """
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, selectors.DefaultSelector() as selector:
        listener.bind(os.fspath(path))
        path.chmod(0o600)
        listener.listen(128)
        import_ahead(modules)
        # Copies that collect garbage would otherwise write to every page.
        gc.collect()
        gc.freeze()
        # Workers are reaped by the kernel.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in selector.select()):
            asked = _accept(listener)
            if asked is None:
                continue
            try:
                is_worker = os.fork() == 0
            except OSError as error:
                log.warning("no worker was started: %s", error)
                is_worker = False
            if is_worker:
                return asked
            asked.close()
    return None


def import_ahead(modules: Sequence[str]) -> None:
    """Imports modules; one that fails is left to the workers, which say why.

    Raises `InfrastructureError` if Ray was imported, or a thread was started, which a copy would lack.
    """
    code_revision()  # what workers record is the code that they have, though the files may change
    given = {name: os.environ.get(name) for name in ONE_THREAD}
    os.environ |= {name: value for name, value in ONE_THREAD.items() if given[name] is None}
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - whatever a library raises when it is imported
            log.warning("%s: not imported ahead: %s: %s", name, type(error).__name__, error)
    for name in (name for name, value in given.items() if value is None):
        del os.environ[name]
    if "ray" in sys.modules:
        raise InfrastructureError("the modules to import ahead have imported Ray, which only workers may")
    if (threads := len(list(Path("/proc/self/task").iterdir()))) > 1:
        raise InfrastructureError(f"the modules to import ahead have started threads: there are {threads}")


def _accept(listener: socket.socket) -> WorkerRequest | None:
    """Receives a request; returns None if there is none."""
    connection, _ = listener.accept()
    streams = list[int]()
    try:
        data = _receive(connection, streams)
        if len(streams) != STREAMS:
            raise InfrastructureError(f"a request had {len(streams)} streams; expected {STREAMS}")
        return WorkerRequest(WorkerStart.decode(data), streams, connection)
    except (InfrastructureError, OSError) as error:
        log.warning("no worker was started: %s", error)
        connection.close()
        for stream in streams:
            os.close(stream)
        return None


def _receive(connection: socket.socket, streams: list[int]) -> bytes:
    """Returns the line of a process of the same user, and adds the file descriptors that come with it.

    Raises `InfrastructureError` for another user's, or if it is cut.
    """
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if user != os.getuid():
        raise InfrastructureError(f"user {user} asked for it")
    connection.settimeout(10.0)
    data, found, _, _ = socket.recv_fds(connection, LONGEST_REQUEST, STREAMS)
    streams += found
    while not data.endswith(b"\n"):
        more = connection.recv(LONGEST_REQUEST)
        if not more or len(data) > LONGEST_REQUEST:
            raise InfrastructureError("a request was cut")
        data += more
    return data


def become(asked: WorkerRequest) -> None:
    """Turns this process, a copy of the server, into a worker, and runs it.

    Raises `OSError` if that is not possible, or if nobody waits for the worker any more, and `SystemExit` as the worker does.
    """
    start = asked.start
    os.setpgid(0, start.group)
    for number, stream in enumerate(asked.streams):
        os.dup2(stream, number)
    os.setpriority(os.PRIO_PROCESS, 0, start.niceness)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, start.blocked)
    os.environ.clear()
    os.environ |= start.environment
    os.chdir(start.folder)
    with suppress(OSError):  # not everywhere may a process say so
        OWN_ADJUSTMENT.write_text(os.environ.get(ADJUSTMENT_VARIABLE, ADJUSTMENT))
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # else all copies would draw the same numbers; Python itself sees to its own
    asked.connection.sendall(f"{os.getpid()}\n".encode())
    asked.close()
    sys.argv = list(start.arguments)
    if not sys.flags.safe_path:
        sys.path.insert(0, os.fspath(Path(sys.argv[0]).parent))
    runpy.run_path(sys.argv[0], run_name="__main__")


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves until the process that started this one ends; becomes a worker in each copy."""
    parser = argparse.ArgumentParser(description="Starts Ray's workers with their modules imported.")
    parser.add_argument("--socket", type=Path, required=True, help="where requests come in")
    parser.add_argument("--import", dest="modules", action="append", default=[], help="a module to import ahead")
    given = parser.parse_args(arguments)
    if not sys.flags.safe_path:
        del sys.path[0]  # the working folder, from which no worker imports
    said = logging.StreamHandler(sys.stderr)
    said.setFormatter(logging.Formatter("%(asctime)s %(levelname)s fork server: %(message)s"))
    log.addHandler(said)
    log.propagate = False
    asked = serve(given.socket, given.modules)
    if asked is not None:
        log.removeHandler(said)
        become(asked)


if __name__ == "__main__":
    main()
