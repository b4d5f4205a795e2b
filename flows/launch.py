"""Drives a session from a command: takes the lease, starts services, Ray and actors in parallel, then runs the flow.

Imports prefect only after its server's address has been put into the environment.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from db.core.engine import Fence
from db.ledger import Ledger
from flows.billing.price_file import check_prices
from flows.driver.context import RunContext
from flows.driver.run_status import SessionOutcome
from flows.driver.services import (
    FindServer,
    SessionServices,
    check_own_server,
    check_surroundings,
    server_of_environment,
)
from flows.driver.session import DriverSession
from flows.driver.session_claims import ended_unless_claimed, offered
from flows.driver.start_retries import with_retries
from flows.driver.stopping import ended_in_order
from flows.driver.windows import Window
from flows.files.storage import claim_store
from flows.prefect_io.secret_blocks import read_block
from flows.run.callbacks import End, with_callbacks
from flows.run.changed_versions import said_of_versions
from flows.run.creation import OpenedRun, first_entries, opened_run
from flows.run.home import Home
from flows.run.lease import DRIVER, give_back, take_lease
from flows.run.pages import Pages
from flows.run.protocols import Notifier, Observer, Tracker
from flows.run.repositories import require_repositories
from yatt_core.cluster.connect import disconnect_ray
from yatt_core.code_files import fetch_code, settle_code
from yatt_core.errors import AwayError, ConfigurationError
from yatt_core.logs import actor_logs
from yatt_core.spec import RunSpec
from yatt_core.storage.run_store import open_store
from yatt_core.tracing.settings import tracing_settings

log = logging.getLogger("yatt_core.flow")


def run_session(
    home: Home,
    name: str,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
    pages: Pages | None = None,
    find_server: FindServer = server_of_environment,
    until: int | None = None,
    opened: OpenedRun | None = None,
) -> SessionOutcome:
    """Drives one session in this process and returns once it has ended.

    accept_drift: replay updates even if the environment differs from the recorded one.
    trackers: the trackers by name; those that the spec does not name are not used.
    notifier: sends notifications if the spec asks for them.
    window: set if this process is a scheduled flow run. The session then belongs to that flow run, uses its Prefect
        server and stops at the end of the window.
    pages: the servers whose pages show runs, for links.
    find_server: finds a Prefect server that runs share; where there is none, the run starts a server of its own.
    until: the iteration after which the session stops; None for the run's target.
    opened: the run, if its ledger is open already. The session closes the ledger's connections when it ends; a later read opens
        one anew.

    Raises `ConfigurationError` if an external Ray cluster is named but there is no Prefect server, or if a newer Prefect
    has migrated the database of the run's own one,
    `db.core.errors.LeaseHeld` if another driver holds the run, and any error that ended the session.
    """
    if window is None:
        check_surroundings(find_server)
    with ExitStack() as stack:
        opened = opened or stack.enter_context(opened_run(home, name))
        run = opened.run
        spec = opened.spec
        if window is None:
            check_own_server(find_server, run, home.run_folder(run))
        check_prices(home, spec)
        tracing_settings(os.environ)
        folder = _with_callbacks_files(home, run, spec)
        observer, tell_end = stack.enter_context(
            with_callbacks(observer=observer, run=run, specs=spec.callbacks, ledger=home.ledger, run_folder=folder)
        )
        session = open_session(
            home=home,
            run=run,
            spec=spec,
            observer=observer,
            trackers={name: trackers[name] for name in spec.tracking.names if name in trackers},
            accept_drift=accept_drift,
            notifier=notifier,
            window=window,
            pages=pages,
            until=until,
            ledger=opened.ledger,
        )
        services = SessionServices(session.context, find_server, in_flow_run=window is not None)
        in_order = False
        try:
            with ended_in_order():
                outcome = _over_before_it_begins(session) or _drive(session, services)
            in_order = True
        finally:
            services.stop(in_order=in_order)
        tell_end(End(run, outcome.state, outcome.reason))
    return outcome


def _over_before_it_begins(session: DriverSession) -> SessionOutcome | None:
    """Returns how a session ends for which nothing needs to start; None if there is work."""
    return session.already_finished() or session.reached_until() or session.obstructed()


def _with_callbacks_files(home: Home, run: str, spec: RunSpec) -> Path:
    """Returns the run's folder, into which the files of its callbacks are fetched if they are elsewhere only."""
    folder = home.run_folder(run)
    if any(callback.file is not None for callback in spec.callbacks):
        fetch_code(spec, folder, open_store(spec, folder))
    return folder


def _drive(session: DriverSession, services: SessionServices) -> SessionOutcome:
    """Starts the services and runs the flow, which claims the session and ends it."""
    _say_changed_versions(session)

    def start() -> SessionOutcome:
        if not session.store_is_ready:
            require_repositories(session.context.home.folder, session.context.folder, session.context.spec, read_block)
            _settle(session.context.ledger, session.context.run, session.context.spec, session.context.folder)
            session.store_is_ready = True
        services.choose_server()
        services.borrow()
        session.own_services = services.own
        services.keep()
        services.set_environment()
        # Prefect here and Ray in the thread import it too; its modules import each other in a circle, of which one thread
        # would see what the other has only begun.
        importlib.import_module("pydantic.v1")
        session.start.begin(lambda: services.connect(session.start.give_up_at_the_end))
        services.use_prefect()
        return _run_flow(session)

    try:
        with ended_unless_claimed(session):
            return with_retries(session, start)
    finally:
        disconnect_ray()


def _say_changed_versions(session: DriverSession) -> None:
    """Says which libraries that decide prompts or results differ from those of the run's last commit."""
    said = said_of_versions(session.context.ledger, session.context.run)
    if said is not None:
        log.warning("%s", said)
        session.context.observer.warned(said)


def _run_flow(session: DriverSession) -> SessionOutcome:
    """Runs the flow to its end: in the current flow run if the session is scheduled, else in a new one.

    A Prefect server that is unreachable at the end does not change the session's outcome. Raises `AwayError` if
    it is unreachable at the beginning.
    """
    # Imported late: prefect reads its settings on first import.
    from prefect import tags

    from flows.prefect_io.prefect_client import AWAY, RUN_TAG, is_unreachable, server_trouble, start_trouble
    from flows.prefect_io.prefect_events import sent_events
    from flows.train import train

    try:
        with offered(session), sent_events(), tags(RUN_TAG + session.context.run):
            return train(session.context.run) if session.window is None else train.fn(session.context.run)
    except (*AWAY, RuntimeError) as error:
        if not is_unreachable(error):
            raise
        if not session.claimed:
            raise start_trouble(error) from error
        if session.failure is not None:
            raise session.failure from error
        if session.outcome is None:
            raise
        session.context.observer.warned(f"could not report the end of the session to Prefect: {server_trouble(error)}")
        return session.outcome


def open_session(
    home: Home,
    run: str,
    spec: RunSpec,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
    pages: Pages | None = None,
    until: int | None = None,
    ledger: Ledger | None = None,
) -> DriverSession:
    """Takes the lease and opens the session; the caller must end it, which closes the ledger.

    ledger: the home's if it is open already.
    """
    ledger = ledger or Ledger.open(home.ledger)
    store_is_ready = True
    try:
        try:
            _settle(ledger, run, spec, home.run_folder(run))
        except AwayError as error:
            log.warning("%s; it is waited for once the session has begun", error)
            store_is_ready = False
        fence = take_lease(ledger, run, f"{DRIVER}{run}", spec.recovery.lease_seconds)
        _require_current(ledger, fence, spec)
    except BaseException:
        ledger.close()
        raise
    actor_logs(home.run_folder(run), "driver", fence.term)
    ledger.outbox.enqueue(fence, first_entries(run, spec))
    context = RunContext.of(
        home=home, spec=spec, ledger=ledger, fence=fence, observer=observer, accept_drift=accept_drift, pages=pages
    )
    session = DriverSession(context, trackers, notifier, window, until=until)
    session.store_is_ready = store_is_ready
    session.threads.start()
    session.machine.start()
    return session


def _require_current(ledger: Ledger, fence: Fence, spec: RunSpec) -> None:
    """Gives the lease back and raises `ConfigurationError` if the spec was changed before the lease was taken."""
    current = ledger.runs.revision(fence.run)
    if current.digest == spec.digest:
        return
    give_back(ledger, fence)
    raise ConfigurationError(
        f"run {fence.run}: its spec was changed (revision {current.revision}) while this command was starting; run the command "
        "again"
    )


def _settle(ledger: Ledger, run: str, spec: RunSpec, folder: Path) -> None:
    """Claims the run's durable tier, and puts the run's copies of code on both tiers; may be repeated."""
    settle_code(spec, folder, claim_store(ledger, run, spec, folder))
