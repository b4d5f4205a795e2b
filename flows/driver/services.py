"""The services that a driver session uses: the run's own Ray head or an external cluster, and a Prefect server.

Consumes the environment and a function that finds a Prefect server which runs share: one that the environment names, or
the service group's. Where there is none, the run's supervisor starts a server of the run's own. A shared server is
looked for again at each attempt to start, so a session never depends on a group that has been stopped.

If the environment names the cluster of a command that drives several runs (`flows.run.shared_cluster`), or the service group
lends one whose head suits the run (`flows.run.lending`), the run's services are there, under a supervisor that outlives the
session.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from db.ledger import Ledger
from flows.driver.attachment import RAY_VARIABLE, attached
from flows.driver.context import RunContext
from flows.driver.warm_heads import covers, head_of, needs_of, obstacle_of
from flows.prefect_io import prefect_server
from flows.prefect_io.prefect_migrations import check_database
from flows.prefect_io.prefect_server import ServerVariables, SharedServer, named_server
from flows.run.home import STARTS
from flows.run.lending import Ended, LentCluster, borrow, leave_kept
from flows.run.owner import owner_of
from flows.run.shared_cluster import given_cluster, use_folder
from yatt_core.cluster.connect import connect_ray
from yatt_core.cluster.ray_head import SERVICE_NAME, ray_environment
from yatt_core.errors import ConfigurationError, InfrastructureError
from yatt_core.planning.start import WARM_RAY
from yatt_core.supervisor.client import (
    current_state,
    ensure_alive,
    ensure_supervisor,
    stop_supervisor,
    wait_address,
    wait_ready,
)
from yatt_core.supervisor.services import ServiceSpec
from yatt_core.supervisor.state import ServiceReport
from yatt_core.variables import set_variables

log = logging.getLogger("yatt_core.flow")
START_SECONDS = 330.0
"""Somewhat longer than a service may take until it is ready (`ServiceSpec.start_seconds`)."""
ADDRESS_SECONDS = 10.0
"""How long a supervisor may take to choose the ports of its services."""
STOP_SECONDS = 20.0
RETRY_SECONDS = 0.5
OWNER_DIGITS = 12

FindServer = Callable[[Callable[[str], None]], SharedServer | None]
"""Returns the shared Prefect server, or None if there is none; the argument reports progress to the user."""


def server_of_environment(say: Callable[[str], None]) -> SharedServer | None:
    """Returns the Prefect server that the environment names; None if it names none."""
    return named_server()


def ray_namespace(ledger: Ledger, run: str) -> str:
    """Returns the run's own namespace on a cluster; a run of another ledger that has the same name has another one."""
    return f"{run}.{owner_of(ledger, run)[:OWNER_DIGITS]}"


def check_surroundings(find_server: FindServer) -> None:
    """Raises `ConfigurationError` if the environment names an external Ray cluster, but there is no Prefect server."""
    if attached():
        _required(find_server(log.info))


def check_own_server(find_server: FindServer, run: str, folder: Path) -> None:
    """Raises `ConfigurationError` if a run would start a server of its own, whose database a newer Prefect has migrated.

    folder: the run's.
    """
    if attached() or given_cluster() is not None:
        return
    try:
        check_database(run, prefect_server.own_database(folder))
    except ConfigurationError:
        if find_server(log.info) is None:
            raise


def _required(server: SharedServer | None) -> SharedServer:
    if server is None:
        raise ConfigurationError(
            f"{RAY_VARIABLE} is set, so a Prefect server is needed as well: start one with `yatt up`, or name one in "
            f"{prefect_server.PREFECT_VARIABLE}, such as http://127.0.0.1:4200/api"
        )
    return server


@dataclass(slots=True)
class SessionServices:
    """The services of one session.

    in_flow_run: True if this process is already a flow run, whose Prefect server it uses.
    shared: the Prefect server of the current attempt to start; None if it is the run's own or the flow run's.
    """

    context: RunContext
    find_server: FindServer
    in_flow_run: bool
    shared: SharedServer | None = None
    _given: ServerVariables = field(default_factory=ServerVariables.current, init=False)
    _cluster: Path | None = field(default_factory=given_cluster, init=False)
    _lent: LentCluster | None = field(default=None, init=False)
    _settled: bool = field(default=False, init=False)

    def choose_server(self) -> None:
        """Decides which Prefect server the session uses, regardless of an earlier attempt to start.

        Raises `ConfigurationError` if an external Ray cluster is named but there is no Prefect server.
        """
        if self.in_flow_run:
            return
        self._given.restore()
        found = self.find_server(self.context.observer.stage)
        self.shared = _required(found) if attached() else found

    @property
    def _own_server(self) -> bool:
        return not self.in_flow_run and self.shared is None

    @property
    def own(self) -> tuple[str, ...]:
        """The names of the services that only this run uses; known once the server is chosen and a head may be borrowed."""
        if self._lent is not None:
            return (WARM_RAY,)
        if attached() or self._cluster is not None:
            return ()
        return (SERVICE_NAME, prefect_server.NAME) if self._own_server else (SERVICE_NAME,)

    @property
    def folder(self) -> Path:
        """The folder of the supervisor and its services: the run's, or that of a shared cluster."""
        return self._cluster or self.context.folder

    def borrow(self) -> None:
        """Takes over a warm Ray head of the home's service group, if one is free that suits the run.

        Does nothing if the session has services already, or the run's last driver has left some of the run's own, with its
        actors.
        """
        context = self.context
        if attached() or self._cluster is not None or self._settled or current_state(context.folder) is not None:
            return
        spec = context.spec
        lent = borrow(context.home, context.run, spec.recovery.grace_seconds, needs_of(spec))
        if lent is None:
            return
        obstacle = obstacle_of(lent.reply, spec, self._others(lent.folder))
        if obstacle is None:
            context.observer.stage("using a warm Ray head of the service group")
            self._lent = lent
            self._cluster = lent.folder
            return
        lent.give_back(Ended.BADLY if lent.reply.was_kept else Ended.UNUSED)
        context.observer.stage(f"starting a Ray head: {obstacle}")

    def _others(self, folder: Path) -> tuple[ServiceSpec, ...]:
        """Returns the services that the run needs in a folder beside a Ray head."""
        if not self._own_server:
            return ()
        return (prefect_server.server_service(folder, self.context.home.folder / STARTS),)

    def keep(self) -> None:
        """Starts the services under a supervisor that outlives this process; replaces one that was killed.

        Does nothing if all services are external. Does not wait for the services.
        """
        if attached():
            return
        context = self.context
        folder = self.folder
        if not self._settled:
            if self._lent is None:
                leave_kept(context.home, context.run)
            use_folder(context.folder, self._cluster, context.fence.term)
            self._settled = True
        if self._own_server:
            check_database(context.run, prefect_server.own_database(folder))
        ensure_alive(folder)
        ensure_supervisor(
            folder,
            (head_of(context.spec, folder), *self._others(folder)),
            context.spec.recovery.grace_seconds,
            covers=None if self._cluster is None else covers,
        )

    def set_environment(self) -> None:
        """Sets what Ray's and Prefect's clients read from the environment, as far as it is known, before Ray has threads.

        Call it after `keep`, and before another thread connects.
        """
        if not attached():
            set_variables(ray_environment(self.folder))
        if self.in_flow_run:
            return
        run_folder = self.context.folder
        if self.shared is not None:
            prefect_server.use_server(run_folder, self.shared.address, self.shared.password)
        elif address := wait_address(self.folder, prefect_server.NAME, ADDRESS_SECONDS):
            prefect_server.use_server(run_folder, f"http://{address}")

    def connect(self, check: Callable[[], None]) -> None:
        """Connects this process to Ray, in the run's own namespace, once the head is up; replaces a lost supervisor.

        A head that dies meanwhile is waited for again: the supervisor is restarting it, so this is no failure yet.

        check: raises once the session is ending, after which no service may be started.
        """
        context = self.context
        namespace = ray_namespace(context.ledger, context.run)
        if attached():
            connect_ray(os.environ[RAY_VARIABLE], namespace)
            return
        give_up = time.monotonic() + START_SECONDS
        while True:
            check()
            head = self._ready(SERVICE_NAME)
            try:
                connect_ray(head.address, namespace, self.folder)
            except InfrastructureError as error:
                if time.monotonic() > give_up:
                    raise
                log.warning("the Ray head was lost while connecting: %s", error)
                time.sleep(RETRY_SECONDS)
            else:
                return

    def use_prefect(self) -> None:
        """Points Prefect's client at the session's server, once that answers.

        Raises `AwayError` if a shared one does not, and `InfrastructureError` if the run's own one does not start: no flow
        can start without one.
        """
        if self.in_flow_run:
            return
        context = self.context
        say = self.context.observer.stage
        if self.shared is not None:
            say(f"using {self.shared.text}")
            prefect_server.use_server(context.folder, self.shared.address, self.shared.password)
            require_prefect()
            return
        say("starting the Prefect server")
        prefect_server.use_server(context.folder, f"http://{self._ready(prefect_server.NAME).address}")

    def _ready(self, name: str) -> ServiceReport:
        """Starts the run's own services and waits for one of them.

        If the supervisor is killed meanwhile, it is replaced and the wait goes on: this is no failure yet.
        """
        folder = self.folder
        give_up = time.monotonic() + START_SECONDS
        while True:
            self.keep()
            try:
                return wait_ready(folder, [name], START_SECONDS).service(name)
            except InfrastructureError as error:
                if current_state(folder) is not None or time.monotonic() > give_up:
                    raise
                log.warning("the supervisor was lost while %s was starting: %s", name, error)

    def stop(self, *, in_order: bool) -> None:
        """Stops the run's own services, unless the next driver already uses them, and restores the environment.

        in_order: whether the session has ended without an error; otherwise a borrowed cluster ends too.
        """
        self._given.restore()
        if self._lent is not None:
            self._lent.give_back(Ended.WELL if in_order else Ended.BADLY)
            self._lent = None
        elif not attached() and self._cluster is None:
            self.context.observer.stage("stopping the run's cluster")
            stop_supervisor(self.context.folder, STOP_SECONDS, self.context.fence.term)


def require_prefect() -> None:
    """Raises `AwayError` if the Prefect server does not answer, and `InfrastructureError` if it refuses."""
    # Imported late: prefect reads its settings on first import.
    from prefect.client.orchestration import get_client

    from flows.prefect_io.prefect_client import start_trouble

    with get_client(sync_client=True) as client:
        error = client.api_healthcheck()
    if error is not None:
        raise start_trouble(error) from error
