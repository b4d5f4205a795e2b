"""The context of a driver session: phases only read it, and it is replaced only when the branch changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from db.core.engine import Fence
from db.ledger import Ledger
from flows.run.clock import Clock, SystemClock
from flows.run.home import Home
from flows.run.pages import NO_PAGES, Pages
from flows.run.protocols import Observer
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import RunStore, open_store


@dataclass(frozen=True, slots=True)
class RunContext:
    """A run, as seen by its driver.

    spec: the revision in force.
    fence: the lease's fencing token, which every write carries.
    folder: the run's folder on this host.
    store: the run's durable tier.
    branch: the current branch; a rollback replaces the context (`flows.driver.session.DriverSession.enter_branch`).
    accept_drift: whether updates may be replayed in an environment that differs from the recorded one.
    pages: the servers whose pages show runs.
    """

    home: Home
    run: str
    spec: RunSpec
    ledger: Ledger
    fence: Fence
    observer: Observer
    clock: Clock
    folder: Path
    store: RunStore
    branch: int
    accept_drift: bool
    pages: Pages = NO_PAGES

    @classmethod
    def of(
        cls,
        home: Home,
        spec: RunSpec,
        ledger: Ledger,
        fence: Fence,
        observer: Observer,
        clock: Clock | None = None,
        accept_drift: bool = False,
        pages: Pages | None = None,
    ) -> RunContext:
        """Builds the context of the driver that holds the lease `fence`, on the run's current branch."""
        folder = home.run_folder(fence.run)
        return cls(
            home=home,
            run=fence.run,
            spec=spec,
            ledger=ledger,
            fence=fence,
            observer=observer,
            clock=clock or SystemClock(),
            folder=folder,
            store=open_store(spec, folder),
            branch=ledger.runs.find(fence.run).current_branch,
            accept_drift=accept_drift,
            pages=pages or NO_PAGES,
        )

    @property
    def committed_iteration(self) -> int:
        """The last committed iteration; 0 before the first commit as well."""
        return max(0, self.last_commit)

    @property
    def last_commit(self) -> int:
        """The last committed iteration; -1 before the first commit."""
        return self.ledger.runs.find(self.run).iteration
