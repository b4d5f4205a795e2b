"""Creates runs and drives segments from a command: services, Ray, lease and actors come up side by side, then the flow runs.

Nothing here imports prefect before its server's address is in the environment.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path

import yaml

from db.ledger import Ledger
from db.outbox import OutboxEntry
from flows import prefect_server
from flows.claims import ended_on_error, offered
from flows.flat import flatten
from flows.home import Home
from flows.lease import take_lease
from flows.protocols import Notifier, Observer, Tracker
from flows.segment import Outcome, Segment
from flows.stopping import ended_in_order
from flows.storage import claim_store
from flows.windows import Window
from yatt_core import durable
from yatt_core.cluster.client import ensure_alive, ensure_supervisor, stop_supervisor, wait_ready
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
from yatt_core.environment import code_revision
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.logs import actor_logs
from yatt_core.spec import RunSpec, parse_spec

log = logging.getLogger("yatt_core.flow")
RAY_VARIABLE = "YATT_RAY_ADDRESS"
START_SECONDS = 180.0
STOP_SECONDS = 20.0


def create_run(home: Home, spec: RunSpec) -> str:
    """A new run: its rows in the ledger, its folder, and what the tracker is to be told of it first."""
    home.folder.mkdir(parents=True, exist_ok=True)
    with Ledger.open(home.ledger) as ledger:
        document = spec.model_dump(mode="json")
        run = ledger.runs.create(spec.name, document, spec.digest, spec.iterations).id
    folder = home.run_folder(run)
    durable.make_folder(folder)
    write_spec(folder, spec)
    return run


def write_spec(folder: Path, spec: RunSpec) -> None:
    """The spec in force, for people to read in the run's folder; the ledger's is the one that counts."""
    text = yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False)
    durable.write_file(folder / "spec.yaml", text.encode())


def current_spec(ledger: Ledger, run: str) -> RunSpec:
    """The newest revision of a run's spec."""
    return parse_spec(ledger.runs.revision(run).spec, f"the spec of run {run}")


def load_run(home: Home, name: str) -> tuple[str, RunSpec]:
    """A run's id and the newest revision of its spec."""
    with Ledger.open(home.ledger) as ledger:
        run = ledger.runs.find(name).id
        return run, current_spec(ledger, run)


def run_segment(
    home: Home,
    name: str,
    observer: Observer,
    tracker: Tracker | None,
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
) -> Outcome:
    """Drives one segment in this process; returns when it has ended.

    accept_drift: updates are replayed even where the environment is not the recorded one. notifier: tells people, where the
    spec wants it. window: this process is a scheduled flow run, which then is the segment: it goes on with the Prefect server
    that it has, and stops at the window's end. Raises `ConfigurationError` where Ray is given and no Prefect server,
    `db.errors.LeaseHeld` when somebody else drives the run, and what ended the segment.
    """
    if window is None:
        check_surroundings()
    run, spec = load_run(home, name)
    tracker = tracker if spec.tracking.enabled else None
    segment = open_segment(home, run, spec, observer, tracker, accept_drift, notifier, window)
    try:
        with ended_in_order():
            return segment.already_finished() or segment.out_of_budget() or _drive(home, run, spec, segment)
    finally:
        _end_services(home, segment)


def _drive(home: Home, run: str, spec: RunSpec, segment: Segment) -> Outcome:
    """Brings up the services and runs the flow, which claims the segment and ends it."""
    try:
        with ended_on_error(segment):
            own_prefect = segment.window is None
            start_services(home, run, spec, own_prefect)
            segment.start.begin(lambda: connect(home, run, spec, own_prefect))
            if own_prefect:
                segment.observer.stage("starting the Prefect server")
                prefect_server.use_server(home.run_folder(run), prefect_address(home, run))
                if attached():  # one of the run's own was ready just now
                    _require_prefect()
        with offered(segment):
            return _run_flow(segment)
    finally:
        disconnect_ray()


def _require_prefect() -> None:
    """Raises `InfrastructureError` where Prefect's server does not answer: without it no flow begins."""
    # Only now: prefect reads its settings when it is first imported.
    from prefect.client.orchestration import get_client

    from flows.prefect_client import server_needed

    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise InfrastructureError(server_needed(error)) from error


def _run_flow(segment: Segment) -> Outcome:
    """Runs the flow to its end, inside the flow run that a scheduled segment is; else it is a flow run of its own.

    A Prefect server that is away by then has nothing to say on how it ended.
    """
    # Only now: prefect reads its settings when it is first imported.
    from flows.prefect_client import AWAY, server_trouble
    from flows.train import train

    try:
        return train(segment.run) if segment.window is None else train.fn(segment.run)
    except AWAY as error:
        if segment.failure is not None:
            raise segment.failure from error
        if segment.outcome is None:
            raise
        segment.observer.warned(f"Prefect was not told how the segment ended: {server_trouble(error)}")
        return segment.outcome


def _end_services(home: Home, segment: Segment) -> None:
    """Stops the run's cluster, unless a driver that took over, or came after this one gave the lease back, uses it."""
    if not attached():
        segment.observer.stage("stopping the run's cluster")
        stop_supervisor(home.run_folder(segment.run), STOP_SECONDS, segment.fence.epoch)


def open_segment(
    home: Home,
    run: str,
    spec: RunSpec,
    observer: Observer,
    tracker: Tracker | None,
    accept_drift: bool = False,
    notifier: Notifier | None = None,
    window: Window | None = None,
) -> Segment:
    """Takes the lease and books the segment; from here on it has to be ended."""
    ledger = Ledger.open(home.ledger)
    try:
        claim_store(ledger, run, spec, home.run_folder(run))
        fence = take_lease(ledger, run, f"yatt driver of {run}", spec.recovery.lease_seconds)
    except BaseException:
        ledger.close()
        raise
    actor_logs(home.run_folder(run), "driver", fence.epoch)
    if spec.tracking.enabled:
        ledger.outbox.enqueue(fence, first_entries(run, spec))
    segment = Segment(home, run, spec, ledger, fence, observer, tracker, accept_drift, notifier=notifier, window=window)
    segment.start_threads()
    return segment


def first_entries(run: str, spec: RunSpec) -> list[OutboxEntry]:
    """What creates and describes the run in the tracker; the same rows whenever they are written."""
    now = int(time.time() * 1000)
    document = spec.model_dump(mode="json")
    tags = {"yatt.run": run, "yatt.spec_digest": spec.digest, "yatt.code_revision": code_revision(), "yatt.branch": "0"}
    return [
        OutboxEntry(f"{run}/run", "run", {"experiment": spec.tracking.experiment, "name": run}, now),
        OutboxEntry(f"{run}/params", "params", flatten(document), now),
        OutboxEntry(f"{run}/tags", "tags", tags, now),
        OutboxEntry(f"{run}/spec", "artifact", {"name": "spec.json", "text": json.dumps(document, indent=1)}, now),
    ]


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
