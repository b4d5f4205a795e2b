"""Whether the installed Prefect can open a database: an older one dies at each start over one that a newer one has migrated.

Consumes Prefect's SQLite file and the migrations of the installed Prefect, without importing it. Raises
`ConfigurationError`, which says what to do.
"""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from yatt_core.errors import ConfigurationError

_REVISION = re.compile(r"^revision\b[^=\n]*=\s*[\"'](\w+)[\"']", re.MULTILINE)
_MIGRATIONS = Path("server", "database", "_migrations", "versions", "sqlite")


def check_database(run: str, database: Path) -> None:
    """Raises `ConfigurationError` if a newer Prefect than the installed one has migrated a run's database.

    database: an SQLite file; one that does not exist, or that Prefect has not set up yet, is in order.
    """
    revision = revision_of(database)
    if revision is None or revision in known_revisions():
        return
    folder = database.parent
    raise ConfigurationError(
        f"run {run}: {database} was migrated by a newer Prefect than the installed {version('prefect')}, which does not "
        f"know its revision {revision} and could not start its server. Install the newer Prefect again, or move the "
        f"folder aside: `mv {folder} {folder}.newer`. Nothing of the run is lost by that, since its ledger holds all of "
        "it; only Prefect's own pages begin anew"
    )


def revision_of(database: Path) -> str | None:
    """Returns the revision of a database of Prefect; None if it has none yet, or if there is no such file."""
    if not database.exists():
        return None
    # Not opened for writing: that would create files beside it, which its server may own.
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as connection:
        tables = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone() if tables else None
    return None if row is None else str(row[0])


@cache
def known_revisions() -> frozenset[str]:
    """Returns the revisions of SQLite databases that the installed Prefect knows."""
    found = find_spec("prefect")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [file for folder in folders for file in (Path(folder) / _MIGRATIONS).glob("*.py")]
    return frozenset(match[1] for file in files if (match := _REVISION.search(file.read_text())))
