"""Drives a session from a command: takes the lease, starts services, Ray and actors in parallel, then runs the flow.

Imports prefect only after its server's address has been put into the environment.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping

from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.driver.run_status import Outcome
from flows.driver.session import DRIVER, DriverSession
from flows.driver.session_claims import ended_unless_claimed, offered
from flows.driver.start_retries import with_retries
from flows.driver.stopping import ended_in_order
from flows.driver.windows import Window
from flows.files.storage import claim_store
from flows.prefect_io import prefect_server
from flows.run.creation import first_entries, load_run
from flows.run.home import Home
from flows.run.lease import take_lease
from flows.run.pages import Pages
from flows.run.protocols import Notifier, Observer, Tracker
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import actor_logs
from yatt_core.rewards.code_files import settle_code
from yatt_core.spec import RunSpec
from yatt_core.supervisor.client import ensure_alive, ensure_supervisor, stop_supervisor, wait_ready

log = logging.getLogger("yatt_core.flow")
RAY_VARIABLE = "YATT_RAY_ADDRESS"
START_SECONDS = 180.0
STOP_SECONDS = 20.0
RETRY_SECONDS = 0.5


def run_session(
    home: Home,
    name: str,
    observer: Observer,
    trackers: Mapping[str, Tracker],
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
    pages: Pages | None = None,
) -> Outcome:
    """Drives one session in this process and returns once it has ended.

    accept_drift: replay updates even if the environment differs from the recorded one.
    trackers: the trackers by name; those that the spec does not name are not used.
    notifier: sends notifications if the spec asks for them.
    window: set if this process is a scheduled flow run. The session then belongs to that flow run, uses its Prefect
        server and stops at the end of the window.
    pages: the servers whose pages show runs, for links.

    Raises `ConfigurationError` if an external Ray cluster is named but no Prefect server,
    `db.core.errors.LeaseHeld` if another driver holds the run, and any error that ended the session.
    """
    if window is None:
        check_surroundings()
    run, spec = load_run(home, name)
    trackers = {name: trackers[name] for name in spec.tracking.names if name in trackers}
    session = open_session(home, run, spec, observer, trackers, accept_drift, notifier, window, pages)
    try:
        with ended_in_order():
            return session.already_finished() or session.out_of_budget() or _drive(home, run, spec, session)
    finally:
        _end_services(home, session)


def _drive(home: Home, run: str, spec: RunSpec, session: DriverSession) -> Outcome:
    """Starts the services and runs the flow, which claims the session and ends it."""
    own_prefect = session.window is None

    def start() -> Outcome:
        keep_services(home, run, spec, own_prefect)
        if not session.start.begun:
            session.start.begin(lambda: connect(home, run, spec, session.start.give_up_at_the_end, own_prefect))
        if own_prefect:
            session.context.observer.stage("starting the Prefect server")
            prefect_server.use_server(home.run_folder(run), prefect_address(home, run))
            if attached():  # the run's own server has just reported that it is ready
                _require_prefect()
        return _run_flow(session)

    try:
        with ended_unless_claimed(session):
            return with_retries(session, start)
    finally:
        disconnect_ray()


def _require_prefect() -> None:
    """Raises `InfrastructureError` if the Prefect server does not answer: no flow can start without it."""
    # Imported late: prefect reads its settings on first import.
    from prefect.client.orchestration import get_client

    from flows.prefect_io.prefect_client import server_needed

    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise InfrastructureError(server_needed(error)) from error


def _run_flow(session: DriverSession) -> Outcome:
    """Runs the flow to its end: in the current flow run if the session is scheduled, else in a new one.

    A Prefect server that is unreachable at the end does not change the session's outcome. Raises `InfrastructureError`
    if it is unreachable at the beginning.
    """
    # Imported late: prefect reads its settings on first import.
    from flows.prefect_io.prefect_client import AWAY, is_unreachable, server_needed, server_trouble
    from flows.train import train

    try:
        with offered(session):
            return train(session.context.run) if session.window is None else train.fn(session.context.run)
    except (*AWAY, RuntimeError) as error:
        if not isinstance(error, AWAY) and not is_unreachable(error):
            raise
        if not session.claimed:
            raise InfrastructureError(server_needed(error)) from error
        if session.failure is not None:
            raise session.failure from error
        if session.outcome is None:
            raise
        session.context.observer.warned(f"could not report the end of the session to Prefect: {server_trouble(error)}")
        return session.outcome


def _end_services(home: Home, session: DriverSession) -> None:
    """Stops the run's cluster, unless it is external or already in use by the next driver."""
    if not attached():
        session.context.observer.stage("stopping the run's cluster")
        stop_supervisor(home.run_folder(session.context.run), STOP_SECONDS, session.context.fence.term)


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
) -> DriverSession:
    """Takes the lease and opens the session; the caller must end it."""
    ledger = Ledger.open(home.ledger)
    try:
        store = claim_store(ledger, run, spec, home.run_folder(run))
        settle_code(spec.rewards, home.run_folder(run), store)
        fence = take_lease(ledger, run, f"{DRIVER}{run}", spec.recovery.lease_seconds)
    except BaseException:
        ledger.close()
        raise
    actor_logs(home.run_folder(run), "driver", fence.term)
    ledger.outbox.enqueue(fence, first_entries(run, spec))
    context = RunContext.of(home, spec, ledger, fence, observer, accept_drift=accept_drift, pages=pages)
    session = DriverSession(context, trackers, notifier, window)
    session.threads.start()
    return session


def attached() -> bool:
    """Returns True if the environment names an external Ray cluster and Prefect server."""
    return bool(os.environ.get(RAY_VARIABLE))


def check_surroundings() -> None:
    """Raises `ConfigurationError` if the environment names an external Ray cluster but no Prefect server."""
    if attached():
        _given_server()


def _given_server() -> str:
    named = prefect_server.named_server()
    if named is None:
        raise ConfigurationError(
            f"{RAY_VARIABLE} is set, so {prefect_server.PREFECT_VARIABLE} must name a Prefect server as well, such as "
            "http://127.0.0.1:4200/api"
        )
    return named


def start_services(home: Home, run: str, spec: RunSpec, own_prefect: bool = True) -> None:
    """Starts the run's own Ray head and Prefect server under a supervisor that outlives this process.

    Does nothing if both are external.

    own_prefect: False if this process is already a flow run of another Prefect server.
    """
    if attached():
        return
    folder = home.run_folder(run)
    services = [ray_head_service(folder), *([prefect_server.server_service(folder)] if own_prefect else [])]
    ensure_supervisor(folder, services, spec.recovery.grace_seconds)


def keep_services(home: Home, run: str, spec: RunSpec, own_prefect: bool = True) -> None:
    """Starts the run's own services as `start_services` does, after replacing a supervisor that was killed."""
    if not attached():
        ensure_alive(home.run_folder(run))
        start_services(home, run, spec, own_prefect)


def connect(home: Home, run: str, spec: RunSpec, check: Callable[[], None], own_prefect: bool = True) -> None:
    """Connects this process to Ray, in the run's own namespace, once the head is up; replaces a lost supervisor.

    A head that dies meanwhile is waited for again: the supervisor is restarting it, so this is no failure yet.

    check: raises once the session is ending, after which no service may be started.
    """
    if attached():
        connect_ray(os.environ[RAY_VARIABLE], run)
        return
    give_up = time.monotonic() + START_SECONDS
    while True:
        check()
        keep_services(home, run, spec, own_prefect)
        head = wait_ready(home.run_folder(run), [SERVICE_NAME], START_SECONDS).service(SERVICE_NAME)
        try:
            connect_ray(head.address, run, home.run_folder(run))
        except InfrastructureError as error:
            if time.monotonic() > give_up:
                raise
            log.warning("the Ray head was lost while connecting: %s", error)
            time.sleep(RETRY_SECONDS)
        else:
            return


def prefect_address(home: Home, run: str) -> str:
    """Waits for the Prefect server and returns its address."""
    if attached():
        return _given_server()
    service = wait_ready(home.run_folder(run), [prefect_server.NAME], START_SECONDS).service(prefect_server.NAME)
    return f"http://{service.address}"
