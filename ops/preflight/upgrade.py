"""What this version of YATT and of its libraries would change of a home: its ledger, and what is under way or recurs in it.

Consumes a home folder, whose files stay as they are: a ledger of an older version is looked at in a migrated copy. Produces
`PendingChange`s.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from db.core.errors import LedgerVersionError
from db.core.migrate import HEAD, migrations_after
from db.ledger import Ledger
from flows.prefect_io.prefect_migrations import check_database
from flows.prefect_io.prefect_server import own_database
from flows.run.changed_versions import versions_since
from flows.run.creation import current_spec
from flows.run.home import Home
from ops.preflight.home_folder import ledger_file
from ops.preflight.pending_change import PendingChange
from ops.preflight.pending_work import changes_of_work
from ops.queries.run_list import run_list
from yatt_core.errors import ConfigurationError

MOST_RUNS = 1_000_000
FINISHED = frozenset({"completed"})


def pending_changes(home: Home) -> list[PendingChange]:
    """Returns what would change: the ledger first, then run by run, then what runs belong to or recurs."""
    with _looked_at(home) as (ledger, changes):
        if ledger is None:
            return changes
        runs = [run.id for run in run_list(ledger, "", None, MOST_RUNS).runs if run.state not in FINISHED]
        of_runs = [change for run in sorted(runs) for change in _of_run(home, ledger, run)]
        return [*changes, *of_runs, *changes_of_work(home, ledger)]


@contextmanager
def _looked_at(home: Home) -> Iterator[tuple[Ledger | None, list[PendingChange]]]:
    """Yields the ledger as this version would have it, and what would change of it; None if that cannot be seen before."""
    file = ledger_file(home)
    if file is None:
        try:
            ledger = Ledger.open(home.ledger, migrate=False)
        except LedgerVersionError as error:
            yield (
                None,
                [
                    PendingChange(
                        what="ledger",
                        run=None,
                        before="",
                        after=HEAD,
                        effect=f"{error}; its runs are listed once it is migrated",
                    )
                ],
            )
            return
        with ledger:
            yield ledger, []
        return
    if not file.exists():
        raise ConfigurationError(f"{file}: there is no ledger; the first run makes one")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / file.name
        with (
            closing(sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy)) as target,
        ):
            source.backup(target)
        with Ledger.open(copy) as ledger:
            before = ledger.migration.before
            new = migrations_after(before)
            effect = "; ".join(new)
            yield (
                ledger,
                [PendingChange(what="ledger", run=None, before=before or "", after=HEAD, effect=effect)] if new else [],
            )


def _of_run(home: Home, ledger: Ledger, run: str) -> Iterator[PendingChange]:
    try:
        current_spec(ledger, run)
    except ConfigurationError as error:
        yield PendingChange(what="spec", run=run, before="", after="", effect=str(error), blocks=True)
        return
    since = versions_since(ledger, run)
    for changed in since.changed if since else ():
        yield PendingChange(
            what=changed.name, run=run, before=changed.before, after=changed.now, effect=f"may change {changed.effect}"
        )
    try:
        check_database(run, own_database(home.run_folder(run)))
    except ConfigurationError as error:
        yield PendingChange(what="prefect", run=run, before="", after="", effect=str(error), blocks=True)
