"""A home at the oldest released schema, migration 0001, as that version's own code has written it.

`0001.json` has the rows of its ledger, table by table, with the kinds of their columns (`db.portable.values`);
`0001.tar.xz` the folder of its run `toy-1`, which has committed three of four iterations, with two checkpoints.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from db.core.engine import Database, DatabaseTime, database_url, open_engine
from db.core.migrate import upgrade
from db.portable.cut import TableHead
from db.portable.load import insert_rows, reset_sequences

OLDEST = "0001"
FOLDER = Path(__file__).parent


def rows() -> Iterator[tuple[TableHead, list[list[Any]]]]:
    """Yields the tables of the oldest schema with their rows, in an order in which they can be loaded."""
    for name, table in json.loads((FOLDER / f"{OLDEST}.json").read_text()).items():
        yield TableHead(name, table["columns"]), table["rows"]


def fill(address: str | Path, tables: Iterator[tuple[TableHead, list[list[Any]]]] | None = None) -> None:
    """Makes an empty database a ledger of the oldest schema, through that schema's tables."""
    database = Database(open_engine(database_url(address)), DatabaseTime)
    with database.write() as connection:
        upgrade(connection, "the test's ledger", OLDEST)
        loaded = list(tables or rows())
        for head, lines in loaded:
            insert_rows(connection, head, lines)
        if connection.dialect.name == "postgresql":
            reset_sequences(connection, [head.name for head, _ in loaded])
    database.engine.dispose()


def unpack_run(home: Path) -> None:
    """Unpacks the folder of the run into a home."""
    with tarfile.open(FOLDER / f"{OLDEST}.tar.xz") as archive:
        archive.extractall(home, filter="data")
