"""Sums and maxima over the ranks of a trainer, on a gloo group of its own.

The group is an object, not the process-wide default, so that a trainer that lost a rank can join a new one. A
group of one rank needs no network. Every rank must make the same calls in the same order.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
from torch import distributed

from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, own_address, split_address, take_listener
from yatt_core.errors import InfrastructureError

TIMEOUT = timedelta(seconds=60)
"""Maximum time that a rank waits for the others."""
LONGEST_TEXT = 256

# torch's type stubs for process groups do not match the library's attributes.
GLOO: Any = distributed.ProcessGroupGloo
TCP_STORE: Any = vars(distributed)["TCPStore"]
REDUCE_OP: Any = distributed.ReduceOp


class Collective:
    """One rank's place in the group; alone until `connect`.

    speaks: whether this rank's results count. Among ranks with the same part of the samples only one speaks;
        the others contribute zeros.
    host: this machine's address on the network of the group.
    store: where ranks meet for additional groups; None for a group of one.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.ranks = 1
        self.speaks = True
        self.host = LOOPBACK
        self.store: Any = None
        self._group: Any = None

    def connect(self, rank: int, ranks: int, address: str) -> None:
        """Meets the other ranks at `tcp://host:port`, served by rank 0.

        Raises `InfrastructureError` if they do not meet within a minute.
        """
        self.rank, self.ranks, self.host, self._group, self.store = rank, ranks, LOOPBACK, None, None
        if ranks == 1:
            return
        host, port = split_address(address)
        options = GLOO._Options()
        options._timeout = TIMEOUT
        try:
            self.host = own_address(host, port)
            options._devices = [GLOO.create_device(hostname=self.host)]
            store = _store(host, port, ranks) if rank == 0 else TCP_STORE(host, port, ranks, False, TIMEOUT)
            self._group, self.store = GLOO(store, rank, ranks, options), store
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(
                f"rank {rank} of {ranks} could not join the group at {address}: {error}"
            ) from error

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sums a tensor over the ranks, in place, with the same bits on every rank. Returns the tensor."""
        return self._reduce(tensor, REDUCE_OP.SUM)

    def maximum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Takes the elementwise maximum over the ranks, in place. Returns the tensor."""
        return self._reduce(tensor, REDUCE_OP.MAX)

    def tell(self, text: str) -> str:
        """Returns rank 0's text on every rank; the other ranks' text is ignored. At most `LONGEST_TEXT` bytes."""
        data = torch.zeros(LONGEST_TEXT, dtype=torch.uint8)
        if self.rank == 0:
            said = text.encode()
            data[: len(said)] = torch.frombuffer(bytearray(said), dtype=torch.uint8)
        return bytes(self.sum(data).tolist()).rstrip(b"\0").decode()

    def barrier(self) -> None:
        """Waits until every rank has called this method."""
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
    """A collective over replicas of the model, each of which is held by several ranks.

    `rank` and `ranks` are the replica's number and the number of replicas. All ranks get the sums over the
    ranks that speak.
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
    """Opens the store of a meeting on the given address only; by default it would listen on all addresses."""
    with take_listener(host, port) as listener:
        return TCP_STORE(host, port, ranks, True, TIMEOUT, master_listen_fd=os.dup(listener.fileno()))
