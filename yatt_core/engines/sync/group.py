"""The connections of one process that takes part in transfers of weights: a group for each rank that sends.

A rank's group has the rank and all engines, so that the engines pass on among themselves what the rank sends once, and
no rank receives what another one sends. The groups are apart from the trainer's own, on gloo or on NCCL; an engine on
the rank's own GPU is in no group, but copies from the rank's memory (`routes`). Members meet at a store that the first
rank serves, at the address of its node. Before a transfer each member waits until all have come, and gives up when one
of them is gone or the driver has been replaced: a driver may die between its calls to two of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from yatt_core.engines.host_memory import large_pages
from yatt_core.engines.network import bind_libraries, own_address
from yatt_core.engines.sync.lending import Lending, pauses
from yatt_core.engines.sync.routes import NCCL, Route, plan_routes
from yatt_core.engines.train.ranks.collective import GLOO, HOST, PREFIX_STORE, TCP_STORE, gpu_name
from yatt_core.engines.train.ranks.rendezvous import hold_address, split_address, take_listener
from yatt_core.engines.train.ranks.time_limits import time_limit
from yatt_core.engines.train.ranks.waiting import waiting_for_actors
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.transfers import TransferTask

CONNECT_TIME = timedelta(seconds=30)
"""How long a connection may take: the store is served, and every member has come, before anybody connects."""

MEMORY = "memory"
"""The way of weights that an engine copies from a rank's memory."""


def serve_meeting(host: str) -> tuple[str, Any]:
    """Starts a store at one of this machine's addresses; returns its address, and the store, which ends with it."""
    address = hold_address(host)
    own, port = split_address(address)
    limit = time_limit(0)
    with take_listener(own, port) as listener:
        descriptor = os.dup(listener.fileno())
        store = TCP_STORE(
            host_name=own,
            port=port,
            is_master=True,
            timeout=limit,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )
        return address, store


class SyncGroup:
    """One member's connections.

    task: the first transfer of the group.
    own: this member's name.
    store: the store that this process serves; None to connect to that of the first rank.
    device: where this member's tensors are.
    check: raises an error if a transfer must not go on.
    """

    def __init__(
        self,
        task: TransferTask,
        own: str,
        store: Any,
        device: torch.device,
        check: Callable[[TransferTask], None] = lambda task: None,
    ) -> None:
        self.address = task.address
        self.own = own
        self.sources = len(task.ranks)
        self._names = [member.name for member in task.members]
        self.place = self._names.index(own)
        """The number of this member among all, ranks first."""
        self._device = device
        self.buffer_device = device
        """Where the buffers that are sent or received must be; known once all have met."""
        self._groups: dict[int, Any] = {}
        self._lendings: dict[int, Lending] = {}
        self._pending: dict[int, Any] = {}
        self._gpu = gpu_name(device)
        self._check = check
        self._task = task
        self._opened = False
        host, port = split_address(task.address)
        try:
            self._host = own_address(host, port)
            with waiting_for_actors(f"the connection to {task.address}", self._names[:1]):
                self._store = store or TCP_STORE(
                    host_name=host, port=port, is_master=False, timeout=CONNECT_TIME, wait_for_workers=False
                )
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(f"{own} cannot reach {self._names[0]} at {task.address}: {error}") from error

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Returns a buffer that can be sent or received, of any content."""
        if self.buffer_device == HOST:
            return torch.frombuffer(large_pages(nbytes), dtype=torch.uint8, count=nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=self.buffer_device)

    def ways(self, source: int) -> list[str]:
        """Returns by which ways a rank's weights come to this member, or leave it: `memory`, `nccl`, `gloo`."""
        found = [MEMORY] if source in self._lendings else []
        return [*found, *([self._groups[source].name()] if source in self._groups else [])]

    def close(self) -> None:
        """Closes the connections, so that members in the middle of a transfer notice."""
        for lending in self._lendings.values():
            lending.close()
        self._pending.clear()
        self._groups.clear()
        self._lendings.clear()

    def meet(self, task: TransferTask, told: bytes) -> list[bytes]:
        """Waits until all members have come to a transfer; returns what each rank has told.

        told: this member's information for the others; ignored for engines.

        Raises `InfrastructureError` if a member cannot be reached, and what the check raises.
        """
        self._task = task
        with self._connected("the meeting", self._names):
            self._store.set(f"told/{self.own}", told)
            self._await("come")
            found = [bytes(self._store.get(f"told/{name}")) for name in self._names[: self.sources]]
            if not self._opened:
                self._open()
        return found

    def _await(self, step: str) -> None:
        """Waits until every member has come to a step of the transfer."""
        name = self._task.name
        self._store.set(f"{step}/{self.own}", name)
        missing = list(self._names)
        pausing = pauses(self._require_going)
        while missing := [each for each in missing if not self._has_come(each, step, name)]:
            with waiting_for_actors(f"the meeting for {name}", missing):
                next(pausing)

    def _has_come(self, member: str, step: str, name: str) -> bool:
        key = f"{step}/{member}"
        return bool(self._store.check([key])) and bytes(self._store.get(key)).decode() == name

    def _require_going(self) -> None:
        """Raises an error if the transfer must not go on."""
        self._check(self._task)

    def _open(self) -> None:
        """Connects the members, rank by rank, in the same order everywhere."""
        self._store.set(f"gpu/{self.own}", self._gpu)
        self._await("connecting")
        routes = plan_routes([bytes(self._store.get(f"gpu/{each}")).decode() for each in self._names], self.sources)
        self.buffer_device = self._device if routes[0].backend == NCCL else HOST
        for source, route in enumerate(routes):
            if self.place in (source, *route.sharing) and route.sharing:
                self._lendings[source] = Lending(
                    store=self._store,
                    source=source,
                    borrowers=route.sharing,
                    own=self.place,
                    device=self._device,
                    check=self._require_going,
                )
            if self.place in (source, *route.grouped) and route.grouped:
                with waiting_for_actors(f"the connection to {self._names[source]}", self._others(source)):
                    self._groups[source] = self._group(source, route)
        self._opened = True

    def _group(self, source: int, route: Route) -> Any:
        """Connects a rank's group, in which the rank is the first."""
        members = (source, *route.grouped)
        place = members.index(self.place)
        size = len(members)
        store = PREFIX_STORE(f"source-{source}", self._store)
        return (self._nccl if route.backend == NCCL else self._gloo)(store, place, size)

    def _others(self, source: int) -> list[str]:
        return [name for name in (self._names[source], *self._names[self.sources :]) if name != self.own]

    def _gloo(self, store: Any, place: int, size: int) -> Any:
        options = GLOO._Options()
        options._timeout = CONNECT_TIME
        options._devices = [GLOO.create_device(hostname=self._host)]
        return GLOO(store, place, size, options)

    def _nccl(self, store: Any, place: int, size: int) -> Any:
        bind_libraries(self._host)
        nccl: Any = vars(distributed)["ProcessGroupNCCL"]
        options = nccl.Options()
        options._timeout = time_limit(0)
        return nccl(store, place, size, options)

    def begin(self, number: int, source: int, buffer: torch.Tensor) -> None:
        """Begins to send a buffer, or to receive one, without waiting; `finish` waits.

        number: twice that of the bucket that is in it, and one more for the sizes of the bucket's changes.
        source: the rank that sends it.
        """
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        options.timeout = time_limit(buffer.nbytes)
        with self._connected(f"bucket {number // 2}", self._others(source)):
            if source in self._lendings:
                self._lendings[source].begin(number, buffer)
            if source in self._groups:
                self._pending[number] = self._groups[source].broadcast([buffer], options)

    def finish(self, number: int, source: int) -> None:
        """Waits until a buffer has been sent or received. Raises `InfrastructureError` if a member is lost."""
        what = f"bucket {number // 2}"
        others = self._others(source)
        with self._connected(what, others), waiting_for_actors(f"{what} of {self._names[source]}'s weights", others):
            if source in self._groups:
                self._pending.pop(number).wait()
            if source in self._lendings:
                self._lendings[source].finish(number)

    @contextmanager
    def _connected(self, what: str, others: Sequence[str]) -> Iterator[None]:
        """Has errors of a connection name those with whom it was lost."""
        try:
            yield
        except RuntimeError as error:
            names = ", ".join(name for name in others if name != self.own)
            raise InfrastructureError(
                f"{self.own} lost its connection in {what} of the weights with {names}: {error}"
            ) from error
