"""MLflow's SQLite database: it has its name only once it is complete.

Consumes the address of a store; produces its database if it is an SQLite file that does not exist. MLflow makes tables and
migrates them in place, for a second, and can never use a database whose making was interrupted, such as by the end of a driver.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from sqlalchemy import make_url

from yatt_core.durable import make_folder, sync_folder, temporary_name, write_file

ARTIFACTS = "mlruns"
"""Where MLflow's default experiment, which no run uses, would keep artifacts."""


def begin_database(address: str) -> None:
    """Makes the database at an SQLite address unless it exists, whole or not at all; does nothing for other stores.

    Raises `InfrastructureError` if it cannot be written, and what MLflow raises.
    """
    url = make_url(address)
    if url.get_backend_name() != "sqlite" or not url.database or Path(url.database).exists():
        return
    database = Path(url.database)
    with tempfile.TemporaryDirectory() as place:
        made = Path(place, "mlflow.db")
        _make(made)
        data = made.read_bytes()
    make_folder(database.parent)
    own = temporary_name(database)
    write_file(own, data)
    # A link replaces nothing: another process may have been sooner, and keep runs there already.
    with suppress(FileExistsError):
        os.link(own, database)
    own.unlink()
    sync_folder(database.parent)


def _make(database: Path) -> None:
    """Has MLflow make a database."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(f"sqlite:///{database}", ARTIFACTS).engine.dispose()
