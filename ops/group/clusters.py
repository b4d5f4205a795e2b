"""The member `clusters` of the service group: keeps Ray heads warm, and lends them to the drivers of runs.

`python -m ops.group.clusters` owns as many clusters of the home (`flows.run.shared_cluster`) as `YATT_WARM_HEADS` says, with one
unless it is set. Each has a supervisor of its own, which is not the group's: a run goes on, with its head, when this process or
the group ends. Drivers ask for one on a socket (`flows.run.lending`). A cluster is lent to one driver at a time, so whatever a
run leaves behind ends with its cluster, and no other run meets it. SIGTERM ends the clusters that nobody uses.
"""

from __future__ import annotations

import logging
import os
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType

from flows.run.home import Home
from flows.run.lending import Ask, Ended, HeadNeeds, Reply, Request, ending, is_own, line_of, received, socket_path
from flows.run.shared_cluster import SharedCluster, taken_cluster
from flows.run.shared_environment import environment_digests
from ops.group.members import CLUSTERS_READY, secrets, warm_heads
from ops.group.places import Place, Use, choice
from yatt_core.cluster.ray_head import DEFAULT_OBJECT_STORE_BYTES, SERVICE_NAME, ray_head_service
from yatt_core.engines.ahead import USUAL_TORCH_MODULES
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.client import current_state, ensure_supervisor
from yatt_core.supervisor.services import ServiceState

GRACE_SECONDS = 600.0
"""For which a head waits for another driver once this process and its driver are gone. A driver takes over a head that waits at
least as long as the run's spec says."""
ROUND_SECONDS = 1.0
RECEIVE_SECONDS = 2.0
FREE_SECONDS = 60.0
"""How long a cluster is free before its head is replaced by one that suits the newest run better: a run that has just begun to
start needs the cores."""
SHARED_MEMORY = Path("/dev/shm")
"""Where Ray's object store lies. It takes memory only as objects come."""
LARGEST_STORE = 4 << 30
SHARE_OF_MEMORY = 4
"""A store may have one in so many bytes that are free there."""

log = logging.getLogger("yatt.clusters")


@dataclass(slots=True)
class _Owned:
    """A cluster that this process owns.

    held: ends the cluster unless somebody else uses it.
    head: what its head is started for.
    asked: what its supervisor was last asked to start a head for, and nothing beside it; None if a driver may have asked since.
    borrower: the connection of the driver that has it.
    free_since: on the monotonic clock.
    """

    place: Place
    cluster: SharedCluster
    held: ExitStack
    head: HeadNeeds
    borrower: socket.socket | None
    free_since: float
    asked: HeadNeeds | None = None


class ClusterOwner:
    """Owns the clusters of a home and answers requests, in one thread.

    ended: set to end it.
    """

    def __init__(self, home: Home, count: int, ended: threading.Event) -> None:
        self._home = home
        self._count = count
        self._ended = ended
        self._owned: list[_Owned] = []
        self._usual = HeadNeeds(torch_modules=USUAL_TORCH_MODULES, store_bytes=usual_store_bytes())
        self._wanted = self._usual
        self._environment: Mapping[str, str] = environment_digests()
        self._selector = selectors.DefaultSelector()
        self._said = ""

    def run(self) -> None:
        """Serves until told to end, then ends what nobody uses."""
        with _listening(self._home) as listener, self._selector:
            self._selector.register(listener, selectors.EVENT_READ)
            log.info(CLUSTERS_READY)
            try:
                while not self._ended.is_set():
                    self._keep()
                    for key, _ in self._selector.select(ROUND_SECONDS):
                        self._hear(listener, key.fileobj)
            finally:
                for owned in self._owned:
                    owned.held.close()

    def _hear(self, listener: socket.socket, source: object) -> None:
        if source is listener:
            connection, _ = listener.accept()
            self._answer(connection)
            return
        for owned in self._owned:
            if owned.borrower is source:
                self._ended_driver(owned)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _answer(self, connection: socket.socket) -> None:
        """Answers a request; what is wrong with one must not end the others."""
        connection.settimeout(RECEIVE_SECONDS)
        is_kept_open = False
        try:
            if is_own(connection):
                is_kept_open = self._carry_out(connection, Request.decode(received(connection)))
        except (InfrastructureError, OSError) as error:
            log.warning("a request was not answered: %s", error)
        finally:
            if not is_kept_open:
                connection.close()

    def _carry_out(self, connection: socket.socket, request: Request) -> bool:
        """Does what was asked for; returns True if the connection stays open."""
        number = choice([owned.place for owned in self._owned], request.run)
        if request.ask is Ask.BORROW:
            if request.needs != HeadNeeds():
                self._wanted = request.needs.with_those_of(self._usual)
            return self._lend(connection, request, number)
        folder = ""
        if request.ask is Ask.LOOK and number is not None:
            folder = str(self._owned[number].cluster.folder)
        if request.ask is Ask.LEAVE:
            self._end_kept(request.run)
        connection.sendall(line_of(asdict(Reply(folder=folder, environment=self._environment))))
        return False

    def _lend(self, connection: socket.socket, request: Request, number: int | None) -> bool:
        if number is None:
            connection.sendall(line_of(asdict(Reply())))
            return False
        owned = self._owned[number]
        reply = Reply(str(owned.cluster.folder), owned.place.is_of_a_run, self._environment)
        socket.send_fds(connection, [line_of(asdict(reply))], [owned.cluster.lock.fileno()])
        self._forget_borrower(owned)
        owned.place = owned.place.lent(request.run, request.grace)
        owned.asked = None
        owned.borrower = connection
        self._selector.register(connection, selectors.EVENT_READ)
        log.info("%s: lent to %s", owned.cluster.folder.name, request.run)
        return True

    def _end_kept(self, run: str) -> None:
        """Ends the cluster that is kept for a run."""
        for owned in list(self._owned):
            if owned.place.use is Use.KEPT and owned.place.run == run:
                self._replace(owned)

    def _ended_driver(self, owned: _Owned) -> None:
        """Notes how a driver has ended."""
        assert owned.borrower is not None
        run = owned.place.run
        try:
            ended = ending(received(owned.borrower))
        except (InfrastructureError, OSError):
            owned.place = owned.place.abandoned(time.monotonic())
            owned.cluster.has_failed = True
            log.info("%s: the driver of %s is gone; kept for %g s", owned.cluster.folder.name, run, owned.place.grace)
        else:
            owned.place = owned.place.given_back(ended)
            owned.cluster.has_failed = ended is Ended.BADLY
            owned.free_since = time.monotonic()
            log.info("%s: given back by %s: %s", owned.cluster.folder.name, run, ended)
        self._forget_borrower(owned)

    def _forget_borrower(self, owned: _Owned) -> None:
        if owned.borrower is not None:
            self._selector.unregister(owned.borrower)
            owned.borrower.close()
            owned.borrower = None

    # -- clusters -----------------------------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Takes what is missing, and has a head in each cluster that is free; what fails is tried again in the next round."""
        try:
            for owned in list(self._owned):
                owned.place = owned.place.at(time.monotonic())
                if owned.place.use is Use.SPENT:
                    self._replace(owned)
            while len(self._owned) < self._count:
                self._owned.append(self._taken())
            for owned in self._owned:
                if owned.place.use is Use.FREE:
                    self._warm(owned)
            self._said = ""
        except InfrastructureError as error:
            if str(error) != self._said:
                log.warning("%s", error)
            self._said = str(error)

    def _taken(self) -> _Owned:
        with ExitStack() as stack:
            cluster = stack.enter_context(taken_cluster(self._home))
            return _Owned(
                place=Place(),
                cluster=cluster,
                held=stack.pop_all(),
                head=self._wanted,
                borrower=None,
                free_since=time.monotonic(),
            )

    def _replace(self, owned: _Owned) -> None:
        """Ends a cluster, after another folder is taken: logs of a run that failed stay until its folder is needed again.

        If none can be taken, it ends all the same, since actors may be alive in it; the next round tries again.
        """
        self._owned.remove(owned)
        try:
            self._owned.append(self._taken())
        finally:
            self._forget_borrower(owned)
            owned.held.close()

    def _warm(self, owned: _Owned) -> None:
        """Starts the head of a free cluster unless it is up, and another one if that suits the newest run better."""
        if time.monotonic() - owned.free_since > FREE_SECONDS:
            owned.head = owned.head.with_those_of(self._wanted)
        folder = owned.cluster.folder
        state = current_state(folder)
        if state is None or state.ending or owned.asked != owned.head:
            head = ray_head_service(
                folder,
                object_store_bytes=owned.head.store_bytes,
                modules=owned.head.modules,
                torch_modules=owned.head.torch_modules,
            )
            state = ensure_supervisor(folder, [head], GRACE_SECONDS)
            owned.asked = owned.head
        service = state.services.get(SERVICE_NAME)
        if service is not None and service.state is ServiceState.FAILED:
            log.warning("%s: its head has failed: %s; the log is %s", folder.name, service.reason, service.log_file)
            owned.cluster.has_failed = True
            owned.place = Place(use=Use.SPENT)


def usual_store_bytes() -> int:
    """Returns the size of the object store with which a head begins as long as nobody has asked for more."""
    if not SHARED_MEMORY.exists():
        return DEFAULT_OBJECT_STORE_BYTES
    free = shutil.disk_usage(SHARED_MEMORY).free
    return max(DEFAULT_OBJECT_STORE_BYTES, min(LARGEST_STORE, free // SHARE_OF_MEMORY))


@contextmanager
def _listening(home: Home) -> Iterator[socket.socket]:
    """Provides the socket on which drivers ask."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, socket_path(home) as path:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        Path(path).chmod(0o600)
        listener.listen()
        yield listener
        Path(path).unlink(missing_ok=True)


def main() -> int:
    """Serves the home that the environment names until SIGTERM."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    ended = threading.Event()

    def end(number: int, frame: FrameType | None) -> None:
        ended.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    home = Home.locate()
    count = warm_heads(os.environ)
    for name in secrets(home):
        os.environ.pop(name, None)  # workers run code of users
    ClusterOwner(home, count, ended).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
