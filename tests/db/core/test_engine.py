"""Transactions of the ledger's connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import text

from db.core.engine import IDLE_IN_TRANSACTION_MS
from db.ledger import Ledger
from tests.db.conftest import empty_address
from tests.postgresql import Server

LONG_MS = 600_000
IDLE_TIME = text("SELECT setting::bigint FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'")


def test_the_patience_of_a_read_ends_with_its_transaction(postgresql: Server) -> None:
    with Ledger.open(empty_address(postgresql)) as ledger:
        database = ledger._database
        with database.read(patience_ms=LONG_MS) as connection:
            assert connection.execute(IDLE_TIME).scalar_one() == LONG_MS
        with database.read() as connection:
            assert connection.execute(IDLE_TIME).scalar_one() == IDLE_IN_TRANSACTION_MS


def test_transactions_run_inside_what_measures_them(tmp_path: Path) -> None:
    told: list[str] = []

    @contextmanager
    def measured(kind: str) -> Iterator[None]:
        told.append(f"{kind} begins")
        yield
        told.append(f"{kind} ends")

    with Ledger.open(tmp_path / "ledger.db") as ledger:
        ledger.measure(measured)
        with ledger._database.write():
            told.append("inside")
        with ledger._database.read():
            told.append("inside")
    assert told == ["write begins", "inside", "write ends", "read begins", "inside", "read ends"]
