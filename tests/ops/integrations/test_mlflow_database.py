"""The making of MLflow's database: a process that is killed meanwhile leaves none, and none is replaced."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from ops.integrations import mlflow_database
from ops.integrations.mlflow_database import begin_database

KILLED = """
import os, signal, sys
from sqlalchemy import Engine, event

def kill(connection, cursor, statement, *_):
    if "CREATE TABLE tags" in statement:
        os.kill(os.getpid(), signal.SIGKILL)

event.listen(Engine, "before_cursor_execute", kill)
from ops.integrations.mlflow_database import begin_database
begin_database(sys.argv[1])
"""


def test_a_process_that_is_killed_while_tables_are_made_leaves_a_database_for_the_next_one_to_make(
    tmp_path: Path,
) -> None:
    database = tmp_path / "mlflow.db"
    address = f"sqlite:///{database}"
    killed = subprocess.run([sys.executable, "-c", KILLED, address], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert killed.returncode == -9 and not database.exists()
    begin_database(address)
    client = MlflowClient(tracking_uri=address)
    experiment = client.create_experiment("toy")
    begin_database(address)
    assert client.get_experiment(experiment).name == "toy", "one that exists is left alone"


def test_a_process_that_was_sooner_keeps_its_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "mlflow.db"

    def make_beside_another(made: Path) -> None:
        made.write_bytes(b"")
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("CREATE TABLE of_another (id)")

    monkeypatch.setattr(mlflow_database, "_make", make_beside_another)
    begin_database(f"sqlite:///{database}")
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("of_another",)]
    assert list(tmp_path.iterdir()) == [database]


@pytest.mark.parametrize("address", ["postgresql+psycopg://db:5432/mlflow", "sqlite://"])
def test_other_stores_are_left_to_mlflow(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlflow_database, "_make", lambda database: pytest.fail(f"{database} is made"))
    begin_database(address)
