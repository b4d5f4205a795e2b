"""The ledger's entry point: one object with a part for each kind of record.

    ledger = Ledger.open(home / "ledger.sqlite")
    run = ledger.runs.create("quickstart", spec, digest, target_iterations=100)
    fence = ledger.leases.acquire(run.id, this_process("my flow run"), ttl_seconds=10)
    attempt = ledger.phases.plan(fence, branch=0, iteration=1, phase="collect")
    ledger.commits.commit(fence, IterationCommit(...))

Every write by a driver takes its fence. Once another process has taken the lease, such a write raises `Fenced`
and changes nothing. So do the writes of whoever drives a pipeline, a sweep or a soup, schedules the queue or maintains
the home (`ledger.leases.take`).
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from db.core.engine import Clock, Database, DatabaseTime, Measured, database_url, open_engine
from db.core.errors import LedgerUnavailable
from db.core.migrate import Migration, ensure_current
from db.portable.cut import LedgerExports
from db.read.audit import Audits
from db.read.browse import Browser
from db.read.lines import IterationLines
from db.read.overview import Overviews
from db.read.queueing import QueueReader
from db.read.run_list import RunListReader
from db.read.series import SeriesReader
from db.write.alarms import Alarms
from db.write.aliases import Aliases
from db.write.annotations import Annotations
from db.write.approvals import Approvals
from db.write.checkpoint_requests import CheckpointRequests
from db.write.commit import Commits
from db.write.deletions import Deletions
from db.write.events import Events
from db.write.home_events import HomeEvents
from db.write.lease import Leases
from db.write.metrics import Metrics
from db.write.outbox import Deliveries
from db.write.phases import Phases
from db.write.pipeline_triggers import PipelineTriggers
from db.write.pipelines import Pipelines
from db.write.queueing import Submissions
from db.write.records import Records
from db.write.runs import Runs
from db.write.scheduling import Scheduling
from db.write.suites import Suites
from db.write.upkeep import Upkeep
from db.write.waits import Waits


class Ledger:
    """The system of record. Threads may share it; a forked process must open its own.

    migration: what opening it has done to the database.
    """

    def __init__(self, database: Database, migration: Migration) -> None:
        self._database = database
        self.migration = migration
        self.runs = Runs(database)
        self.leases = Leases(database)
        self.phases = Phases(database)
        self.records = Records(database)
        self.commits = Commits(database)
        self.lines = IterationLines(database)
        self.audit = Audits(database)
        self.metrics = Metrics(database)
        self.outbox = Deliveries(database)
        self.events = Events(database)
        self.checkpoint_requests = CheckpointRequests(database)
        self.aliases = Aliases(database)
        self.alarms = Alarms(database)
        self.annotations = Annotations(database)
        self.approvals = Approvals(database)
        self.suites = Suites(database)
        self.pipelines = Pipelines(database)
        self.pipeline_triggers = PipelineTriggers(database)
        self.deletions = Deletions(database)
        self.queue = QueueReader(database)
        self.submissions = Submissions(database)
        self.scheduling = Scheduling(database)
        self.overview = Overviews(database)
        self.run_list = RunListReader(database)
        self.series = SeriesReader(database)
        self.browse = Browser(database)
        self.exports = LedgerExports(database)
        self.upkeep = Upkeep(database)
        self.waits = Waits(database)
        self.home_events = HomeEvents(database)

    @classmethod
    def open(cls, address: str | Path, migrate: bool = True, clock: Clock = DatabaseTime) -> Ledger:
        """Opens the ledger at a DSN or in an SQLite file.

        migrate: whether to migrate an older or empty database; if not, a missing file is not created.
        clock: for tests.

        Raises `LedgerVersionError` for a database at an unknown version, and `LedgerUnavailable`.
        """
        url = database_url(address)
        if url.get_backend_name() == "sqlite":
            _check_file(Path(url.database or ""), migrate)
        database = Database(open_engine(url), clock)
        try:
            migration = ensure_current(database, migrate)
        except BaseException:
            database.engine.dispose()
            raise
        return cls(database, migration)

    @property
    def address(self) -> str:
        """The DSN with which another connection to this ledger is opened; it may contain a password."""
        return self._database.engine.url.render_as_string(hide_password=False)

    def measure(self, measured: Measured) -> None:
        """Has each transaction run inside what `measured` returns for `read` or `write`."""
        self._database.measured = measured

    def close(self) -> None:
        """Closes all connections."""
        self._database.engine.dispose()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_file(path: Path, migrate: bool) -> None:
    if not path.parent.is_dir():
        raise LedgerUnavailable(f"the ledger {path}: its folder does not exist")
    if not migrate and not path.exists():
        raise LedgerUnavailable(f"the ledger {path} does not exist")
