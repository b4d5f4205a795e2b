"""An empty database of Prefect's server: a new one begins as a copy of it, since Prefect's migrations take seconds of a core.

`begin_database` consumes the path of a new database, which must be the one of Prefect's settings, and a folder for templates;
it produces the database, migrated. `python -m flows.prefect_io.prefect_template` makes the template that comes with an
environment. Templates are named after Prefect's version.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
import sys
import tempfile
from contextlib import closing
from importlib.metadata import version
from pathlib import Path

from flows.prefect_io.prefect_server import DATABASE_VARIABLE, own_paths, sqlite_address, sqlite_file
from yatt_core.durable import make_folder, write_file
from yatt_core.errors import InfrastructureError

INSTALLED = Path(sys.prefix, "share", "yatt")
"""The folder of the template that comes with this environment."""

log = logging.getLogger(__name__)


def template_name() -> str:
    """Returns the name of a template of the installed Prefect."""
    return f"prefect-{version('prefect')}.db"


def has_template(templates: Path) -> bool:
    """Returns True if a new database can begin as a copy: the environment or the folder has a template."""
    name = template_name()
    return any((folder / name).exists() for folder in (INSTALLED, templates))


def begin_database(database: Path, templates: Path) -> None:
    """Creates a database unless it exists, as a copy if the environment or the folder has a template.

    Otherwise it is migrated, and leaves a template in the folder.
    """
    if database.exists():
        return
    name = template_name()
    make_folder(database.parent)
    for folder in (INSTALLED, templates):
        if _copied(folder / name, database):
            return
    _migrate()
    try:
        make_folder(templates)
        _keep(database, templates / name)
    except (InfrastructureError, OSError, sqlite3.Error) as error:
        log.warning("%s: no template for the databases of further servers: %s", templates / name, error)


def _migrate() -> None:
    """Has Prefect make the database of its settings."""
    # Prefect takes a second to import.
    from prefect.server.database import provide_database_interface

    asyncio.run(provide_database_interface().run_migrations_upgrade())


def _copied(template: Path, database: Path) -> bool:
    """Copies a template; returns False if there is none, or it cannot be read."""
    try:
        data = template.read_bytes()
    except OSError as error:
        if template.exists():
            log.warning("%s: %s", template, error)
        return False
    write_file(database, data)
    database.chmod(0o600)
    return True


def _keep(database: Path, template: Path) -> None:
    """Copies a database that nobody uses yet; servers that start at the same time keep equal ones."""
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place, "copy.db")
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("VACUUM INTO ?", (os.fspath(copy),))
        write_file(template, copy.read_bytes())


def main() -> None:
    """Makes the template of this environment anew."""
    with tempfile.TemporaryDirectory() as place:
        address = sqlite_address(Path(place))
        os.environ |= own_paths(Path(place)) | {DATABASE_VARIABLE: address}
        _migrate()
        make_folder(INSTALLED)
        _keep(sqlite_file(address), INSTALLED / template_name())


if __name__ == "__main__":
    main()
