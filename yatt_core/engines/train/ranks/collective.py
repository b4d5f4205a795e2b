"""What the ranks of a trainer say to each other, on groups of its own: gloo, and NCCL for tensors on GPUs.

Sums and maxima of tensors of equal shape, and bytes that go once, from the rank that has them to those that need them.

The groups are objects, not the process-wide default, so that a trainer that lost a rank can join a new one. A
group of one rank needs no network. Every rank must make the same calls in the same order.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch import distributed

from yatt_core.engines.network import bind_libraries, own_address
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, split_address, take_listener
from yatt_core.engines.train.ranks.time_limits import SUM, time_limit
from yatt_core.engines.train.ranks.waiting import record_collectives, waiting_for
from yatt_core.errors import InfrastructureError

LONGEST_TEXT = 256
HOST = torch.device("cpu")
SEAT = struct.Struct("<q?")
"""A `Seat` as bytes."""
GATHERED_AT_ONCE = 2**24
"""Bytes of all ranks together that `gathered` receives in one operation."""
NO_GPU = "none"
"""What a rank tells the others if it has no GPU that NCCL could use."""

# torch's type stubs for process groups do not match the library's attributes.
GLOO: Any = distributed.ProcessGroupGloo
TCP_STORE: Any = vars(distributed)["TCPStore"]
PREFIX_STORE: Any = vars(distributed)["PrefixStore"]
REDUCE_OP: Any = distributed.ReduceOp
ALL_TO_ALL: Any = vars(distributed)["AllToAllOptions"]
ALL_GATHER: Any = vars(distributed.distributed_c10d)["AllgatherOptions"]


@dataclass(frozen=True, slots=True)
class Seat:
    """What a rank does in the group.

    part: the part of the samples on which it computes.
    speaks: as in `Collective`.
    """

    part: int
    speaks: bool


class Collective:
    """One rank's place in the group; alone until `connect`.

    speaks: whether this rank's results count. Among ranks with the same part of the samples only one speaks;
        the others contribute zeros.
    host: this machine's address on the network of the group.
    held: bytes that a rank may read or copy between two operations.
    store: where ranks meet for additional groups; None for a group of one.
    """

    def __init__(self) -> None:
        self.rank = 0
        self.ranks = 1
        self.speaks = True
        self.host = LOOPBACK
        self.held = 0
        self.store: Any = None
        self._groups: dict[str, Any] = {}

    def connect(self, rank: int, ranks: int, address: str, device: torch.device = HOST, held: int = 0) -> None:
        """Meets the other ranks at `tcp://host:port`, served by rank 0.

        device: where this rank's gradients are.

        Raises `InfrastructureError` if the ranks do not meet in time (`time_limits`).
        """
        self.rank = rank
        self.ranks = ranks
        self.held = held
        self.host = LOOPBACK
        self.store = None
        self._groups = {}
        if ranks == 1:
            return
        host, port = split_address(address)
        record_collectives()
        try:
            with waiting_for(f"the meeting at {address}", self.others):
                self.host = own_address(host, port)
                store = self._store(host, port)
                groups = {HOST.type: self._gloo(store)}
                if backend_of(self._told(store, "device", gpu_name(device))) == "nccl":
                    groups[device.type] = self._nccl(store)
            self.store = store
            self._groups = groups
        except (OSError, RuntimeError) as error:
            raise InfrastructureError(
                f"rank {rank} of {ranks} could not join the group at {address}: {error}"
            ) from error

    @property
    def others(self) -> tuple[int, ...]:
        """The other ranks."""
        return tuple(rank for rank in range(self.ranks) if rank != self.rank)

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

    @property
    def world(self) -> Collective:
        """All ranks, even if several of them have the same part of the samples."""
        return self

    def seats(self) -> tuple[Seat, ...]:
        """Returns the seats of all ranks of the world; every rank must ask."""
        return tuple(Seat(rank, speaks=True) for rank in range(self.ranks))

    def exchanged(self, outgoing: Sequence[bytes]) -> list[bytes]:
        """Sends each rank its own bytes, once; returns the bytes that each rank has sent to this one.

        outgoing: one entry for each rank of the world, in order, as in the result.
        """
        if not self._groups:
            return list(outgoing)
        sizes = [len(data) for data in outgoing]
        expected = torch.zeros(self.ranks, dtype=torch.int64)
        self._all_to_all(expected, torch.tensor(sizes), [1] * self.ranks, [1] * self.ranks)
        lengths = expected.tolist()
        received = torch.empty(sum(lengths), dtype=torch.uint8)
        sent = torch.empty(sum(sizes), dtype=torch.uint8)
        for data, size, end in zip(outgoing, sizes, accumulate(sizes), strict=True):
            _write(sent[end - size : end], data)
        self._all_to_all(received, sent, lengths, sizes)
        pieces = zip(lengths, accumulate(lengths), strict=True)
        return [received.numpy()[end - length : end].tobytes() for length, end in pieces]

    def gathered(self, data: bytes) -> Sequence[bytes | bytearray]:
        """Returns the bytes of every rank of the world, in the order of the ranks, on every rank.

        What all ranks send must be of one length. It is padded piece by piece, so that little more memory is taken than
        that of the result.
        """
        if not self._groups:
            return [data]
        sizes: list[int] = self._all_gathered(torch.tensor([len(data)])).flatten().tolist()
        found = [bytearray(size) for size in sizes]
        step = max(GATHERED_AT_ONCE // self.ranks, 1)
        longest = max(sizes)
        for start in range(0, longest, step):
            piece = torch.zeros(min(step, longest - start), dtype=torch.uint8)
            _write(piece, data[start : start + step])
            for whole, received in zip(found, self._all_gathered(piece), strict=True):
                part = memoryview(whole)[start : start + step]
                part[:] = received.numpy()[: len(part)].data
        return found

    def collected(self, data: bytes) -> list[bytes]:
        """Returns the bytes of each part of the samples, in order, on rank 0 of the world; nothing elsewhere.

        What ranks that do not speak have is ignored, and not sent.
        """
        seats = self.seats()
        world = self.world
        nothing = [b""] * (world.ranks - 1)
        received = world.exchanged([data if self.speaks else b"", *nothing])
        if world.rank:
            return []
        found = {seat.part: said for seat, said in zip(seats, received, strict=True) if seat.speaks}
        return [found[part] for part in range(self.ranks)]

    def barrier(self) -> None:
        """Waits until every rank has called this method."""
        self.sum(torch.zeros(1))

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if not self._groups:
            return tensor
        group = self._groups.get(tensor.device.type, self._groups[HOST.type])
        options = distributed.AllreduceOptions()
        options.reduceOp = operation
        options.timeout = limit = time_limit(SUM * tensor.nbytes, self.held)
        try:
            with waiting_for("a sum over all ranks", self.others):
                # With a limit, NCCL waits here as gloo does, instead of ending the process later.
                group.allreduce([tensor], options).wait(limit)
        except RuntimeError as error:
            raise InfrastructureError(f"rank {self.rank} of {self.ranks} lost its group: {error}") from error
        return tensor

    def _all_to_all(
        self, received: torch.Tensor, sent: torch.Tensor, expected: Sequence[int], sizes: Sequence[int]
    ) -> None:
        options = ALL_TO_ALL()
        options.timeout = limit = time_limit(received.nbytes + sent.nbytes, self.held)
        try:
            with waiting_for("an exchange between all ranks", self.others):
                self._groups[HOST.type].alltoall_base(received, sent, expected, sizes, options).wait(limit)
        except RuntimeError as error:
            raise InfrastructureError(f"rank {self.rank} of {self.ranks} lost its group: {error}") from error

    def _all_gathered(self, own: torch.Tensor) -> torch.Tensor:
        """Returns the tensors of all ranks, which are of equal length, [ranks, length]."""
        received = own.new_empty((self.ranks, len(own)))
        options = ALL_GATHER()
        options.timeout = limit = time_limit(received.nbytes + own.nbytes, self.held)
        try:
            with waiting_for("the bytes of all ranks", self.others):
                self._groups[HOST.type].allgather([list(received)], [own], options).wait(limit)
        except RuntimeError as error:
            raise InfrastructureError(f"rank {self.rank} of {self.ranks} lost its group: {error}") from error
        return received

    def _store(self, host: str, port: int) -> Any:
        """Opens the meeting's store; rank 0 serves it on the given address only, by default it would be on all."""
        limit = time_limit(0, self.held)
        if self.rank:
            return TCP_STORE(host_name=host, port=port, world_size=self.ranks, is_master=False, timeout=limit)
        with take_listener(host, port) as listener:
            return TCP_STORE(
                host_name=host,
                port=port,
                world_size=self.ranks,
                is_master=True,
                timeout=limit,
                master_listen_fd=os.dup(listener.fileno()),
            )

    def _gloo(self, store: Any) -> Any:
        options = GLOO._Options()
        options._timeout = time_limit(0, self.held)
        options._devices = [GLOO.create_device(hostname=self.host)]
        return GLOO(store, self.rank, self.ranks, options)

    def _nccl(self, store: Any) -> Any:
        bind_libraries(self.host)
        nccl: Any = vars(distributed)["ProcessGroupNCCL"]
        options = nccl.Options()
        options._timeout = time_limit(0, self.held)
        return nccl(PREFIX_STORE("nccl", store), self.rank, self.ranks, options)

    def _told(self, store: Any, question: str, answer: str) -> list[str]:
        """Returns every rank's answer, in the order of the ranks."""
        store.set(f"{question}/{self.rank}", answer)
        return [store.get(f"{question}/{rank}").decode() for rank in range(self.ranks)]


class ReplicaCollective(Collective):
    """A collective over replicas of the model, each of which is held by several ranks.

    `rank` and `ranks` are the replica's number and the number of replicas. All ranks get the sums over the
    ranks that speak.
    """

    def __init__(self, world: Collective, replica: int, replicas: int, speaks: bool) -> None:
        super().__init__()
        self.rank = replica
        self.ranks = replicas
        self.speaks = speaks
        self._world = world
        self._seats: tuple[Seat, ...] = ()

    @property
    def world(self) -> Collective:
        """All ranks of all replicas."""
        return self._world

    def seats(self) -> tuple[Seat, ...]:
        """Returns the seats of all ranks of the world; every rank must ask."""
        if not self._seats:
            own = SEAT.pack(self.rank, self.speaks)
            self._seats = tuple(Seat(*SEAT.unpack(said)) for said in self._world.gathered(own))
        return self._seats

    def exchanged(self, outgoing: Sequence[bytes]) -> list[bytes]:
        """See `Collective`."""
        return self._world.exchanged(outgoing)

    def gathered(self, data: bytes) -> Sequence[bytes | bytearray]:
        """See `Collective`."""
        return self._world.gathered(data)

    def _reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        if not self.speaks:
            tensor.fill_(-torch.inf if operation == REDUCE_OP.MAX else 0)
        return self._world._reduce(tensor, operation)


def _write(tensor: torch.Tensor, data: bytes) -> None:
    """Writes bytes to the beginning of a tensor of bytes."""
    tensor.numpy()[: len(data)] = np.frombuffer(data, dtype=np.uint8)


def backend_of(gpus: Sequence[str]) -> str:
    """Returns the backend that sums tensors on GPUs: `nccl` if every rank has a GPU of its own, otherwise `gloo`.

    gpus: each rank's GPU, as `gpu_name` returns it. NCCL refuses two ranks on one GPU.
    """
    return "nccl" if NO_GPU not in gpus and len(set(gpus)) == len(gpus) else "gloo"


def gpu_name(device: torch.device) -> str:
    """Returns a name that no other GPU has; `NO_GPU` for a core, or if torch lacks NCCL."""
    if device.type != "cuda" or not distributed.is_nccl_available():
        return NO_GPU
    return str(torch.cuda.get_device_properties(device).uuid)
