"""Creates runs and drives sessions from a command: services, Ray, lease and actors come up side by side, then the flow runs.

Nothing here imports prefect before its server's address is in the environment.
"""

from __future__ import annotations

import logging
import os

from db.ledger import Ledger
from flows.driver.context import RunContext
from flows.driver.run_status import Outcome
from flows.driver.session import DriverSession
from flows.driver.session_claims import ended_on_error, offered
from flows.driver.stopping import ended_in_order
from flows.driver.windows import Window
from flows.files.storage import claim_store
from flows.prefect_io import prefect_server
from flows.run.creation import first_entries, load_run
from flows.run.home import Home
from flows.run.lease import take_lease
from flows.run.protocols import Notifier, Observer, Tracker
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import actor_logs
from yatt_core.spec import RunSpec
from yatt_core.supervisor.client import ensure_alive, ensure_supervisor, stop_supervisor, wait_ready

log = logging.getLogger("yatt_core.flow")
RAY_VARIABLE = "YATT_RAY_ADDRESS"
START_SECONDS = 180.0
STOP_SECONDS = 20.0


def run_session(
    home: Home,
    name: str,
    observer: Observer,
    tracker: Tracker | None,
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
) -> Outcome:
    """Drives one session in this process; returns when it has ended.

    accept_drift: updates are replayed even where the environment is not the recorded one. notifier: tells people, where the
    spec wants it. window: this process is a scheduled flow run, which then is the session: it goes on with the Prefect server
    that it has, and stops at the window's end. Raises `ConfigurationError` where Ray is given and no Prefect server,
    `db.core.errors.LeaseHeld` when somebody else drives the run, and what ended the session.
    """
    if window is None:
        check_surroundings()
    run, spec = load_run(home, name)
    tracker = tracker if spec.tracking.enabled else None
    session = open_session(home, run, spec, observer, tracker, accept_drift, notifier, window)
    try:
        with ended_in_order():
            return session.already_finished() or session.out_of_budget() or _drive(home, run, spec, session)
    finally:
        _end_services(home, session)


def _drive(home: Home, run: str, spec: RunSpec, session: DriverSession) -> Outcome:
    """Brings up the services and runs the flow, which claims the session and ends it."""
    try:
        with ended_on_error(session):
            own_prefect = session.window is None
            start_services(home, run, spec, own_prefect)
            session.start.begin(lambda: connect(home, run, spec, own_prefect))
            if own_prefect:
                session.context.observer.stage("starting the Prefect server")
                prefect_server.use_server(home.run_folder(run), prefect_address(home, run))
                if attached():  # one of the run's own was ready just now
                    _require_prefect()
        with offered(session):
            return _run_flow(session)
    finally:
        disconnect_ray()


def _require_prefect() -> None:
    """Raises `InfrastructureError` where Prefect's server does not answer: without it no flow begins."""
    # Only now: prefect reads its settings when it is first imported.
    from prefect.client.orchestration import get_client

    from flows.prefect_io.prefect_client import server_needed

    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise InfrastructureError(server_needed(error)) from error


def _run_flow(session: DriverSession) -> Outcome:
    """Runs the flow to its end, inside the flow run that a scheduled session is; else it is a flow run of its own.

    A Prefect server that is away by then has nothing to say on how it ended.
    """
    # Only now: prefect reads its settings when it is first imported.
    from flows.prefect_io.prefect_client import AWAY, server_trouble
    from flows.train import train

    try:
        return train(session.context.run) if session.window is None else train.fn(session.context.run)
    except AWAY as error:
        if session.failure is not None:
            raise session.failure from error
        if session.outcome is None:
            raise
        session.context.observer.warned(f"Prefect was not told how the session ended: {server_trouble(error)}")
        return session.outcome


def _end_services(home: Home, session: DriverSession) -> None:
    """Stops the run's cluster, unless a driver that took over, or came after this one gave the lease back, uses it."""
    if not attached():
        session.context.observer.stage("stopping the run's cluster")
        stop_supervisor(home.run_folder(session.context.run), STOP_SECONDS, session.context.fence.term)


def open_session(
    home: Home,
    run: str,
    spec: RunSpec,
    observer: Observer,
    tracker: Tracker | None,
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
) -> DriverSession:
    """Takes the lease and books the session; from here on it has to be ended."""
    ledger = Ledger.open(home.ledger)
    try:
        claim_store(ledger, run, spec, home.run_folder(run))
        fence = take_lease(ledger, run, f"yatt driver of {run}", spec.recovery.lease_seconds)
    except BaseException:
        ledger.close()
        raise
    actor_logs(home.run_folder(run), "driver", fence.term)
    if spec.tracking.enabled:
        ledger.outbox.enqueue(fence, first_entries(run, spec))
    context = RunContext.of(home, spec, ledger, fence, observer, accept_drift=accept_drift)
    session = DriverSession(context, tracker, notifier, window)
    session.threads.start()
    return session


def attached() -> bool:
    """True where Ray and Prefect are given by the surroundings and are not the run's own."""
    return bool(os.environ.get(RAY_VARIABLE))


def check_surroundings() -> None:
    """Raises `ConfigurationError` where Ray is given by the surroundings and Prefect is not."""
    if attached():
        _given_server()


def _given_server() -> str:
    named = prefect_server.named_server()
    if named is None:
        raise ConfigurationError(
            f"{RAY_VARIABLE} is set, so {prefect_server.PREFECT_VARIABLE} has to name a Prefect server too, such as "
            "http://127.0.0.1:4200/api"
        )
    return named


def start_services(home: Home, run: str, spec: RunSpec, own_prefect: bool = True) -> None:
    """The run's own Ray head and Prefect server, under a supervisor that outlives this process; nothing where both are given.

    own_prefect: False where this process is a flow run of another server already.
    """
    if attached():
        return
    folder = home.run_folder(run)
    services = [ray_head_service(folder), *([prefect_server.server_service(folder)] if own_prefect else [])]
    ensure_supervisor(folder, services, spec.recovery.grace_seconds)


def connect(home: Home, run: str, spec: RunSpec, own_prefect: bool = True) -> None:
    """Connects this process to Ray, in a namespace of the run's own, once its head is up; a lost supervisor is replaced."""
    if attached():
        connect_ray(os.environ[RAY_VARIABLE], run)
    else:
        ensure_alive(home.run_folder(run))
        start_services(home, run, spec, own_prefect)
        head = wait_ready(home.run_folder(run), [SERVICE_NAME], START_SECONDS).service(SERVICE_NAME)
        connect_ray(head.address, run, home.run_folder(run))


def prefect_address(home: Home, run: str) -> str:
    """Address of the Prefect server, once it is up."""
    if attached():
        return _given_server()
    service = wait_ready(home.run_folder(run), [prefect_server.NAME], START_SECONDS).service(prefect_server.NAME)
    return f"http://{service.address}"
