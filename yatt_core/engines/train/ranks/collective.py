"""Sums and maxima over the ranks of a trainer, on a gloo group of its own.

The group is an object, not the process-wide default, so that a trainer that lost a rank can join a new one. A group of
one rank needs no network. Every rank has to make the same calls in the same order.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import distributed

from yatt_core.engines.train.ranks.rendezvous import take_listener
from yatt_core.errors import ConfigurationError, InfrastructureError

TIMEOUT = timedelta(seconds=60)
"""Longest wait of a rank for the others."""
LONGEST_TEXT = 256

# torch's type stubs of its process groups name other attributes than the library has.
GLOO: Any = distributed.ProcessGroupGloo
TCP_STORE: Any = vars(distributed)["TCPStore"]
REDUCE_OP: Any = distributed.ReduceOp


class Collective:
    """One rank's place in the group; alone until `connect`.

    speaks: what this rank found counts; of several that have the same share of the samples only one speaks, and the others
    bring zeros. store: where ranks meet for groups besides; none for a group of one.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.ranks = 1
        self.speaks = True
        self.store: Any = None
        self._group: Any = None

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Meets the other ranks at `tcp://host:port`, served by rank 0. Raises `InfrastructureError` after a minute."""
        self.rank, self.ranks, self._group, self.store = rank, ranks, None, None
        if ranks == 1:
            return
        parts = urlsplit(address)
        if parts.scheme != "tcp" or not parts.hostname or not parts.port:
            raise ConfigurationError(f"rendezvous {address!r}: write tcp://host:port")
        options = GLOO._Options()
        options._timeout = TIMEOUT
        options._devices = [_device(parts.hostname)]
        try:
            store = (
                _store(parts.hostname, parts.port, ranks)
                if rank == 0
                else TCP_STORE(parts.hostname, parts.port, ranks, False, TIMEOUT)
            )
            self._group, self.store = GLOO(store, rank, ranks, options), store
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(f"rank {rank} of {ranks} met no group at {address}: {error}") from error

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Adds a tensor up over the ranks, in place; every rank gets the same bits. Returns it."""
        return self._reduce(tensor, REDUCE_OP.SUM)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Takes the largest of each entry over the ranks, in place. Returns it."""
        return self._reduce(tensor, REDUCE_OP.MAX)

    def tell(self, text: str) -> str:
        """What rank 0 says; the others' text counts for nothing. At most `LONGEST_TEXT` bytes."""
        data = torch.zeros(LONGEST_TEXT, dtype=torch.uint8)
        if self.rank == 0:
            said = text.encode()
            data[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        return bytes(self.sum(data).tolist()).rstrip(b"\0").decode()

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self.sum(torch.zeros(1))

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if self._group is None:
            return tensor
        options = distributed.AllreduceOptions()
        options.reduceOp = operation
        try:
            self._group.allreduce([tensor], options).wait()
        except RuntimeError as error:
            raise InfrastructureError(f"rank {self.rank} of {self.ranks} lost its group: {error}") from error
        return tensor


class ReplicaCollective(Collective):
    """Counts replicas of the model, each held by several ranks: `rank` and `ranks` are the replica's number and their count. All
    ranks get the sums over those that speak.
    """

    def __init__(self, world: Collective, replica: int, replicas: int, speaks: bool) -> None:
        super().__init__()
        self.rank, self.ranks, self.speaks = replica, replicas, speaks
        self._world = world

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if not self.speaks:
            tensor.fill_(-torch.inf if operation == REDUCE_OP.MAX else 0)
        return self._world._reduce(tensor, operation)


def _store(host: str, port: int, ranks: int) -> Any:
    """The store of a meeting, listening on the given address alone; left to itself it would listen on all of the machine's."""
    with take_listener(host, port) as listener:
        return TCP_STORE(host, port, ranks, True, TIMEOUT, master_listen_fd=os.dup(listener.fileno()))


def _device(host: str) -> Any:
    """The network device of the group: the loopback one where the rendezvous is on it."""
    loopback = host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
    if loopback:
        return GLOO.create_device(hostname="127.0.0.1")
    return GLOO.create_default_device()


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
