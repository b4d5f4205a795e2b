"""What is looked at before the group is started: surroundings, installed servers, ports, databases.

Consumes home, ports and the environment. Raises `ConfigurationError`, which says what is wrong, where, and what would be right;
`InfrastructureError` for a database that does not answer, since it may when the group is started again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil

from flows.prefect_io.prefect_server import DATABASE_VARIABLE
from flows.run.home import LEDGER_VARIABLE, Home
from ops.group.members import DASHBOARD, MLFLOW, PREFECT, Ports, databases
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import redact
from yatt_core.supervisor.runner import is_free

TRIGRAMS = "pg_trgm"
RIGHT = "\nright would be postgresql://user:password@host:5432/database of a server that runs, or unset for SQLite"


def check_before_start(home: Home, ports: Ports) -> None:
    """Raises what would otherwise end a member seconds later."""
    check_installed()
    check_surroundings(ports, os.environ)
    check_ports(ports)
    for variable, address in databases(home).items():
        check_database(variable, address)


def check_installed() -> None:
    """MLflow's server is an extra: training needs its client alone."""
    try:
        version("mlflow")
    except PackageNotFoundError:
        raise ConfigurationError(
            "MLflow's server is not installed; right would be: pip install 'yatt[server]'"
        ) from None


def check_surroundings(ports: Ports, surroundings: Mapping[str, str]) -> None:
    """The group brings servers of its own: variables that name others would have runs reported elsewhere than it looks."""
    own = {"MLFLOW_TRACKING_URI": ports.address(MLFLOW), "PREFECT_API_URL": f"{ports.address(PREFECT)}/api"}
    for variable, address in own.items():
        given = surroundings.get(variable)
        if given and given.rstrip("/").replace("localhost", "127.0.0.1") != address:
            raise ConfigurationError(
                f"{variable} names {redact(given)}, but the group has a server of its own at {address}: "
                f"unset {variable}, or set it to that"
            )


def check_ports(ports: Ports) -> None:
    """Each port has to be free; else the message says who listens there."""
    wanted = {PREFECT: ports.prefect, MLFLOW: ports.mlflow, DASHBOARD: ports.dashboard}
    by_port: dict[int, str] = {}
    for member, port in wanted.items():
        if port in by_port:
            raise ConfigurationError(f"--{member}-port and --{by_port[port]}-port are both {port}; give each its own")
        by_port[port] = member
        if not is_free(port):
            raise ConfigurationError(
                f"--{member}-port {port}: taken by {listener(port)}; end that, or choose another port (0: any free one)"
            )


def listener(port: int) -> str:
    """Who listens on a TCP port, as far as this user may know."""
    for connection in psutil.net_connections("tcp"):
        listens = connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,)
        if listens and connection.pid is not None:
            try:
                words = psutil.Process(connection.pid).cmdline()
            except psutil.Error:
                continue
            return f"pid {connection.pid} ({redact(' '.join(words))[:120]})"
    return "a process of another user"


def check_database(variable: str, address: str) -> None:
    """A PostgreSQL has to answer, and Prefect's to have the extension that its tables need. A ledger is made or migrated."""
    from db.core.engine import dsn_url
    from db.core.errors import LedgerError, LedgerReadOnly, LedgerUnavailable
    from db.ledger import Ledger

    try:
        if variable == LEDGER_VARIABLE:
            Ledger.open(address).close()
        elif dsn_url(address).get_backend_name() == "postgresql":
            _check_postgresql(variable, address)
    except LedgerReadOnly as error:
        raise ConfigurationError(redact(f"{variable}: {error}")) from None
    except LedgerError as error:
        said = redact(f"{variable}: {error}".replace("the ledger", "the database")) + RIGHT
        away = isinstance(error, LedgerUnavailable)
        raise (InfrastructureError if away else ConfigurationError)(said) from None


def _check_postgresql(variable: str, address: str) -> None:
    from sqlalchemy import text

    from db.core.engine import Database, DatabaseTime, dsn_url, open_engine

    engine = open_engine(dsn_url(address))
    try:
        with Database(engine, DatabaseTime).read() as connection:
            query = text("SELECT count(*) FROM pg_available_extensions WHERE name = :name")
            found = connection.execute(query, {"name": TRIGRAMS}).scalar_one()
    finally:
        engine.dispose()
    if variable == DATABASE_VARIABLE and not found:
        raise ConfigurationError(
            f"{variable}: that server has no extension {TRIGRAMS}, which Prefect needs; install PostgreSQL's contrib package "
            f"there, or unset {variable} for SQLite"
        )
