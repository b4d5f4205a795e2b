"""How a driver borrows a warm Ray head from the service group: messages over a socket in the group's folder.

The member `clusters` of the group (`ops.group.clusters`) owns clusters as a sweep does (`flows.run.shared_cluster`), and starts
their heads before they are needed. A driver asks for one and receives its folder with the open lock, which it then holds like a
driver of a sweep: the cluster lives for as long as either of them does. The connection stays open meanwhile. Its end without a
last message says that the driver was killed; the cluster is then kept for the run's next driver, as its own services would be.

Each message is one line of JSON. Consumes a home; produces a `LentCluster`.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from flows.run.home import Home
from flows.run.shared_cluster import NO_TERM, SharedCluster, left, noted_folder
from flows.run.shared_environment import differing, environment_digests
from yatt_core.errors import InfrastructureError
from yatt_core.supervisor.client import Heartbeat

SOCKET = "clusters"
"""The socket's name in the group's folder."""
ANSWER_SECONDS = 10.0
"""How long an owner may take to say whether a cluster is free. One that is ending another cluster may take longer; a head of
one's own is up sooner then."""
LEAVE_SECONDS = 120.0
"""How long it may take to end a cluster, and others before it: each has `shared_cluster.STOP_SECONDS` before it is killed."""
LONGEST_MESSAGE = 1 << 20

log = logging.getLogger("yatt_core.flow")


class Ask(StrEnum):
    """What is asked for: BORROW a cluster; LOOK whether one is free; LEAVE the one that is kept for a run."""

    BORROW = "borrow"
    LOOK = "look"
    LEAVE = "leave"


class Ended(StrEnum):
    """How a cluster is given back.

    WELL: its actors have ended. BADLY: it may have some left. UNUSED: nothing was started in it.
    """

    WELL = "well"
    BADLY = "badly"
    UNUSED = "unused"


@dataclass(frozen=True, slots=True)
class HeadNeeds:
    """What a run needs of a head, by which the owner chooses the next one.

    modules, torch_modules, store_bytes: as for `ray_head_service`.
    """

    modules: tuple[str, ...] = ()
    torch_modules: tuple[str, ...] = ()
    store_bytes: int = 0

    def with_those_of(self, other: HeadNeeds) -> HeadNeeds:
        """Returns the needs of runs of both kinds."""
        return HeadNeeds(
            modules=tuple(dict.fromkeys((*self.modules, *other.modules))),
            torch_modules=tuple(dict.fromkeys((*self.torch_modules, *other.torch_modules))),
            store_bytes=max(self.store_bytes, other.store_bytes),
        )


@dataclass(frozen=True, slots=True)
class Request:
    """The first message on a connection.

    run: whom a cluster is for.
    grace: seconds for which it is kept for the run's next driver if this one is killed.
    """

    ask: Ask
    run: str
    grace: float = 0.0
    needs: HeadNeeds = field(default_factory=HeadNeeds)

    @classmethod
    def decode(cls, line: bytes) -> Request:
        """Reads a message. Raises `InfrastructureError` if it is not one."""
        try:
            return _REQUEST.validate_json(line)
        except ValueError as error:
            raise InfrastructureError(f"a request of {len(line)} bytes is not one: {error}") from None


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer.

    folder: the cluster's; empty if none is free.
    was_kept: whether it was kept for this run, so that actors of its last driver may be in it.
    environment: digests of the variables that workers have there.
    """

    folder: str = ""
    was_kept: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


_REQUEST = TypeAdapter(Request)
_REPLY = TypeAdapter(Reply)
_LAST = TypeAdapter(dict[str, Ended])
_ENDED = "ended"


@dataclass(slots=True)
class LentCluster:
    """A cluster that this process has borrowed.

    cluster: with the lock, which the owner holds too.
    """

    cluster: SharedCluster
    reply: Reply
    _connection: socket.socket
    _held: ExitStack

    @property
    def folder(self) -> Path:
        """The cluster's folder."""
        return self.cluster.folder

    def give_back(self, ended: Ended) -> None:
        """Gives the cluster back; ends it if the owner is gone and nobody else uses it."""
        if ended is Ended.BADLY:
            self.cluster.has_failed = True
        said = Ended.BADLY if self.cluster.has_failed else ended
        with suppress(OSError):  # the owner is gone, or has lent the cluster to the run's next driver
            self._connection.sendall(line_of({_ENDED: said}))
        self._held.close()
        left(self.cluster)


def borrow(home: Home, run: str, grace: float, needs: HeadNeeds) -> LentCluster | None:
    """Borrows a cluster; returns None if the home has no owner of clusters, or none is free. Its head may still be starting."""
    connection = _connected(home, ANSWER_SECONDS)
    if connection is None:
        return None
    answer = _answer(connection, Request(Ask.BORROW, run, grace, needs))
    if answer is None or answer.lock is None:
        connection.close()
        return None
    folder = Path(answer.reply.folder)
    held = ExitStack()
    held.enter_context(connection)
    held.enter_context(Heartbeat(folder, NO_TERM))
    return LentCluster(SharedCluster(folder, answer.lock), answer.reply, connection, held)


@contextmanager
def borrowed_for_command(home: Home) -> Iterator[SharedCluster | None]:
    """Provides a cluster for the drivers that a command starts one after another; None if none is free that suits them.

    If the command is killed, interrupted or ends with an error, its drivers may go on in the cluster. It is not lent again, so
    others do not meet them.
    """
    lent = borrow(home, f"command {os.getpid()}", 0.0, HeadNeeds())
    if lent is not None and differing(lent.reply.environment, environment_digests()):
        lent.give_back(Ended.UNUSED)
        lent = None
    if lent is None:
        yield None
        return
    ended = Ended.BADLY
    try:
        yield lent.cluster
        ended = Ended.WELL
    finally:
        lent.give_back(ended)


def free_cluster(home: Home, run: str = "") -> Reply | None:
    """Returns what is known of a cluster that is free for a run, which stays free; None if there is none."""
    connection = _connected(home, ANSWER_SECONDS)
    if connection is None:
        return None
    with connection:
        answer = _answer(connection, Request(Ask.LOOK, run))
    return None if answer is None or not answer.reply.folder else answer.reply


def leave_kept(home: Home, run: str) -> None:
    """Has what the last driver of a run has left in a borrowed cluster ended, unless another driver of the run uses it.

    Raises `InfrastructureError` if the owner does not end it in time: actors of the run may then be alive.
    """
    folder = noted_folder(home.run_folder(run))
    if folder is None:
        return
    connection = _connected(home, LEAVE_SECONDS)
    if connection is None:
        return
    with connection:
        try:
            connection.sendall(line_of(asdict(Request(Ask.LEAVE, run))))
            received(connection)
        except TimeoutError:
            raise InfrastructureError(
                f"{folder}: the service group has not ended within {LEAVE_SECONDS:g} s what the last driver of {run} left there; "
                "restart it with `yatt down` and `yatt up`, then try again"
            ) from None
        except (OSError, InfrastructureError) as error:
            # The owner has ended the cluster, or is gone: whoever finds the cluster unused ends it.
            log.warning("the service group does not say what became of %s: %s", folder, error)


def line_of(tree: Mapping[str, Any]) -> bytes:
    """Returns a message as it is sent."""
    return json.dumps(tree).encode() + b"\n"


@contextmanager
def socket_path(home: Home) -> Iterator[str]:
    """Provides the socket's path in a form that is short enough however deep the home is."""
    folder = os.open(home.group, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def is_own(connection: socket.socket) -> bool:
    """Returns True if the process at the other end is one of this user's."""
    _, user, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return bool(user == os.getuid())


def received(connection: socket.socket) -> bytes:
    """Returns one message; descriptors that come with it are closed by the system.

    Raises `InfrastructureError` if it is cut, and `OSError`.
    """
    return _whole(connection, connection.recv(LONGEST_MESSAGE))


def ending(line: bytes) -> Ended:
    """Returns what the last message of a driver says. Raises `InfrastructureError` if it is not one."""
    try:
        return _LAST.validate_json(line)[_ENDED]
    except (ValueError, KeyError) as error:
        raise InfrastructureError(f"a last message of {len(line)} bytes is not one: {error}") from None


def _whole(connection: socket.socket, data: bytes) -> bytes:
    """Returns a message whose beginning has been received. Raises `InfrastructureError` if it is cut, and `OSError`."""
    while not data.endswith(b"\n"):
        more = connection.recv(LONGEST_MESSAGE)
        if not more or len(data) > LONGEST_MESSAGE:
            raise InfrastructureError(f"a message was cut after {len(data)} bytes")
        data += more
    return data


@dataclass(frozen=True, slots=True)
class _Answer:
    """A reply, with the open lock of a cluster that was lent."""

    reply: Reply
    lock: IO[str] | None


def _connected(home: Home, seconds: float) -> socket.socket | None:
    """Returns a connection to the home's owner of clusters; None if nobody listens, or another user does.

    seconds: how long the owner may take to answer.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(seconds)
    try:
        with socket_path(home) as path:
            connection.connect(path)
    except OSError:
        connection.close()
        return None
    if not is_own(connection):
        connection.close()
        return None
    return connection


def _answer(connection: socket.socket, request: Request) -> _Answer | None:
    """Asks for something; returns None if there is no answer, and says so."""
    with ExitStack() as stack:
        try:
            connection.sendall(line_of(asdict(request)))
            data, descriptors, _, _ = socket.recv_fds(connection, LONGEST_MESSAGE, 1)
            locks = [stack.enter_context(os.fdopen(each, "a")) for each in descriptors]
            for lock in locks:
                os.set_inheritable(lock.fileno(), False)
            reply = _REPLY.validate_json(_whole(connection, data))
        except (OSError, InfrastructureError, ValueError) as error:
            log.warning("the service group does not say whether it has a warm Ray head: %s", error)
            return None
        stack.pop_all()
        return _Answer(reply, locks[0] if locks else None)
