"""Checks before the group is started: environment, installed servers, ports, databases.

Consumes home, ports and the environment. Raises `ConfigurationError` with the problem, its place and what is
expected; `InfrastructureError` for a database that does not answer, because it may answer at the next start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import psutil

from flows.prefect_io.prefect_server import DATABASE_VARIABLE
from flows.run.home import LEDGER_VARIABLE, Home
from ops.group.members import DASHBOARD, MLFLOW, PREFECT, Ports, databases, warm_heads
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import redact
from yatt_core.supervisor.runner import is_free

TRIGRAMS = "pg_trgm"
RIGHT = (
    "\nexpected the address of a running server, as postgresql://user:password@host:5432/database, or unset for SQLite"
)


def check_before_start(home: Home, ports: Ports) -> None:
    """Raises the errors that would otherwise end a member seconds later."""
    check_installed()
    check_surroundings(ports, os.environ)
    warm_heads(os.environ)
    check_ports(ports)
    for variable, address in databases(home).items():
        check_database(variable, address)


def check_installed() -> None:
    """Checks that MLflow's server is installed; it is an extra, because training needs only the client."""
    try:
        version("mlflow")
    except PackageNotFoundError:
        raise ConfigurationError("MLflow's server is not installed; install it: pip install 'yatt[server]'") from None


def check_surroundings(ports: Ports, surroundings: Mapping[str, str]) -> None:
    """Checks that the environment names no servers other than the group's.

    Otherwise, runs would report to servers that the group does not know.
    """
    own = {"MLFLOW_TRACKING_URI": ports.address(MLFLOW), "PREFECT_API_URL": f"{ports.address(PREFECT)}/api"}
    for variable, address in own.items():
        given = surroundings.get(variable)
        if given and given.rstrip("/").replace("localhost", "127.0.0.1") != address:
            raise ConfigurationError(
                f"{variable} is {redact(given)}, but the group has its own server at {address}: "
                f"unset {variable}, or set it to that address"
            )


def check_ports(ports: Ports) -> None:
    """Checks that each port is free; if not, the error names the process that listens there."""
    wanted = {PREFECT: ports.prefect, MLFLOW: ports.mlflow, DASHBOARD: ports.dashboard}
    by_port: dict[int, str] = {}
    for member, port in wanted.items():
        if port in by_port:
            raise ConfigurationError(
                f"--{member}-port and --{by_port[port]}-port are both {port}; choose different ports"
            )
        by_port[port] = member
        if not is_free(port):
            raise ConfigurationError(
                f"--{member}-port {port}: in use by {listener(port)}; stop it, or choose another port (0: any free one)"
            )


def listener(port: int) -> str:
    """Describes the process that listens on a TCP port, as far as this user can see it."""
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
    """Checks that a database can be used: PostgreSQL must answer, and have the extension that Prefect's tables need.

    The ledger's database is opened instead, which creates the ledger or migrates it.
    """
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
            f"{variable}: the server lacks the extension {TRIGRAMS}, which Prefect needs; "
            f"install PostgreSQL's contrib package there, or unset {variable} for SQLite"
        )
