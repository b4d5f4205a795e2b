"""A host that is lost in a transaction does not keep the run: PostgreSQL ends the transaction, or notices the loss."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import text

from db.core.engine import SERVER_SETTINGS, Fence
from db.core.errors import LedgerUnavailable
from db.ledger import Ledger
from db.write.events import lock_run
from db.write.metrics import Metric, write_points
from tests.db.conftest import LEDGER, empty_address
from tests.db.tools import holder
from tests.postgresql import Server


class Cable:
    """A connection to a server that can be cut: nothing reaches the server any more, and it is not told."""

    def __init__(self, server: Path) -> None:
        self._server = str(server)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open = [self._listener]
        self._left: int | None = None
        self.is_cut = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self, after: int) -> None:
        """Cuts the connection once the server has been sent that many more bytes."""
        self._left = after

    def close(self) -> None:
        """Has both ends notice."""
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server)
                self._open += [client, server]
                threading.Thread(target=self._pass, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._pass, args=(server, client, False), daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, to_server: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1024):
                if to_server and self._left is not None:
                    data = data[: self._left]
                    self._left -= len(data)
                target.sendall(data)
                if self._left == 0:
                    self.is_cut.set()
                    return


@pytest.mark.parametrize("known", [False, True], ids=["new-series", "points"])
def test_a_host_lost_between_rows_does_not_keep_the_run(postgresql: Server, known: bool) -> None:
    cable = Cable(postgresql.socket)
    with (
        Ledger.open(empty_address(postgresql)) as second,
        Ledger.open(f"postgresql://postgres@127.0.0.1:{cable.port}/{LEDGER}") as first,
    ):
        run = second.runs.create("toy", {}, "d", 1).id
        fence = first.leases.acquire(run, holder("first"), ttl_seconds=0)
        metrics = [Metric(f"metric_{number}", 1.0) for number in range(1000)]

        def write() -> None:
            with suppress(LedgerUnavailable), first._database.fenced(fence) as (connection, _):
                lock_run(connection, first._database, run)
                if known:
                    write_points(connection, run, 0, 1, metrics)
                cable.cut(after=3_000)
                write_points(connection, run, 0, 2, metrics)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            assert cable.is_cut.wait(60)
            assert second.leases.acquire(run, holder("second"), ttl_seconds=10) == Fence.of_run(run, fence.term + 1)
        finally:
            cable.close()
            writing.join()


def test_the_server_is_told_to_look_for_lost_hosts(postgresql: Server) -> None:
    with Ledger.open(empty_address(postgresql)) as ledger, ledger._database.read() as connection:
        query = text("SELECT name FROM pg_settings WHERE source = 'session' AND name LIKE 'tcp%'")
        assert set(connection.execute(query).scalars()) == set(SERVER_SETTINGS)
