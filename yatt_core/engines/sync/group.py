"""The connections of one process that takes part in transfers of weights: a group for each rank that sends.

A rank's group has the rank and all engines, so that the engines pass on among themselves what the rank sends once, and
no rank receives what another one sends. The groups are apart from the trainer's own, on gloo or on NCCL; an engine on
the rank's own GPU is in no group, but copies from the rank's memory (`routes`). Members meet at a store that the first
rank serves, at the address of its node. Before a transfer each member waits until all have come, and gives up when one
of them is gone or the driver has been replaced: a driver may die between its calls to two of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
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
from yatt_core.wire.transfer_plan import PlannedBucket

CONNECT_TIME = timedelta(seconds=30)
"""How long a connection may take: the store is served, and every member has come, before anybody connects."""

MEMORY = "memory"
"""The way of weights that an engine copies from a rank's memory."""

Check = Callable[[], None]
"""Raises an error if the transfer must not go on."""


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
    """

    def __init__(self, task: TransferTask, own: str, store: Any, device: torch.device) -> None:
        self.address = task.address
        self.own = own
        self.sources = len(task.ranks)
        self._names = [member.name for member in task.members]
        self._place = self._names.index(own)
        self._device = device
        self._buffers = device
        self._groups: dict[int, Any] = {}
        self._lendings: dict[int, Lending] = {}
        self._pending: dict[int, Any] = {}
        self._gpu = gpu_name(device)
        self._check = _nothing
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

    @property
    def buffer_device(self) -> torch.device:
        """Where the buffers that are sent or received must be; known once all have met."""
        return self._buffers

    def buffer(self, nbytes: int) -> torch.Tensor:
        """Returns a buffer that can be sent or received, of any content."""
        if self._buffers == HOST:
            return torch.frombuffer(large_pages(nbytes), dtype=torch.uint8, count=nbytes)
        return torch.empty(nbytes, dtype=torch.uint8, device=self._buffers)

    @property
    def source(self) -> int:
        """The number of this member, which is a rank."""
        return self._place

    def ways(self, source: int) -> list[str]:
        """Returns by which ways a rank's weights come to this member, or leave it: `memory`, `nccl`, `gloo`."""
        found = [MEMORY] if source in self._lendings else []
        return [*found, *([self._groups[source].name()] if source in self._groups else [])]

    def sends(self, bucket: PlannedBucket) -> bool:
        """Returns True if this member is the rank that sends a bucket."""
        return self._place == bucket.source

    def close(self) -> None:
        """Closes the connections, so that members in the middle of a transfer notice."""
        for lending in self._lendings.values():
            lending.close()
        self._pending.clear()
        self._groups.clear()
        self._lendings.clear()

    def meet(self, task: TransferTask, told: bytes, check: Check) -> list[bytes]:
        """Waits until all members have come to a transfer; returns what each rank has told.

        told: this member's information for the others; ignored for engines.

        Raises `InfrastructureError` if a member cannot be reached, and what `check` raises.
        """
        self._check = check
        try:
            self._store.set(f"told/{self.own}", told)
            self._await("come", task.name, check)
            found = [bytes(self._store.get(f"told/{name}")) for name in self._names[: self.sources]]
            if not self._opened:
                self._open(task.name, check)
        except RuntimeError as error:
            raise self._lost("the meeting", self._names, error) from error
        return found

    def _await(self, step: str, name: str, check: Check) -> None:
        """Waits until every member has come to a step of a transfer."""
        self._store.set(f"{step}/{self.own}", name)
        missing = list(self._names)
        pausing = pauses(check)
        while missing := [each for each in missing if not self._has_come(each, step, name)]:
            with waiting_for_actors(f"the meeting for {name}", missing):
                next(pausing)

    def _has_come(self, member: str, step: str, name: str) -> bool:
        key = f"{step}/{member}"
        return bool(self._store.check([key])) and bytes(self._store.get(key)).decode() == name

    def _open(self, name: str, check: Check) -> None:
        """Connects the members, rank by rank, in the same order everywhere."""
        self._store.set(f"gpu/{self.own}", self._gpu)
        self._await("connecting", name, check)
        routes = plan_routes([bytes(self._store.get(f"gpu/{each}")).decode() for each in self._names], self.sources)
        self._buffers = self._device if routes[0].backend == NCCL else HOST
        for source, route in enumerate(routes):
            if self._place in (source, *route.sharing) and route.sharing:
                self._lendings[source] = Lending(
                    store=self._store, source=source, borrowers=route.sharing, own=self._place, device=self._device
                )
            if self._place in (source, *route.grouped) and route.grouped:
                with waiting_for_actors(f"the connection to {self._names[source]}", self._others(source)):
                    self._groups[source] = self._group(source, route)
        self._opened = True

    def _group(self, source: int, route: Route) -> Any:
        """Connects a rank's group, in which the rank is the first."""
        members = (source, *route.grouped)
        place = members.index(self._place)
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

        number: that of the bucket.
        source: the rank that sends it.
        """
        options = distributed.BroadcastOptions()
        options.rootRank = 0
        options.timeout = time_limit(buffer.nbytes)
        try:
            if source in self._lendings:
                self._lendings[source].begin(number, buffer)
            if source in self._groups:
                self._pending[number] = self._groups[source].broadcast([buffer], options)
        except RuntimeError as error:
            raise self._lost(f"bucket {number}", self._others(source), error) from error

    def finish(self, number: int, source: int) -> None:
        """Waits until a buffer has been sent or received. Raises `InfrastructureError` if a member is lost."""
        others = self._others(source)
        try:
            with waiting_for_actors(f"bucket {number} of {self._names[source]}'s weights", others):
                if source in self._groups:
                    self._pending.pop(number).wait()
                if source in self._lendings:
                    self._lendings[source].finish(number, self._check)
        except RuntimeError as error:
            raise self._lost(f"bucket {number}", others, error) from error

    def _lost(self, what: str, others: list[str], error: RuntimeError) -> InfrastructureError:
        names = ", ".join(name for name in others if name != self.own)
        return InfrastructureError(f"{self.own} lost its connection in {what} of the weights with {names}: {error}")


def _nothing() -> None:
    """Has nothing to object to."""
