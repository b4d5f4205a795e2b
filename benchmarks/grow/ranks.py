"""Runs a function on every rank of a trainer, each in a fresh process, with the trainer's ranks connected.

Consumes a function that can be imported; produces what each rank returned. A rank measures its own memory.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

import torch
from torch.distributed.tensor import DTensor

from benchmarks.payload.memory import PeakGrowth
from yatt_core.engines import host_memory
from yatt_core.engines.host_memory import give_back_freed_memory
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.base.policy import Policy
from yatt_core.engines.train.base.policy_engine import PolicyTrainEngine
from yatt_core.engines.train.ranks.rendezvous import hold_address
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.spec import RunSpec

# Parameters of mallopt(3).
TRIM_THRESHOLD = -1
MMAP_THRESHOLD = -3
SMALLEST_MAPPED = 1 << 16
FRESH = multiprocessing.get_context("spawn")


class Rank:
    """One rank, in its own process, with a connection to the process that started all of them."""

    def __init__(self, rank: int, ranks: int, peer: Connection) -> None:
        self.rank = rank
        self.ranks = ranks
        self._peer = peer

    def engine(self, spec: RunSpec, context: RankContext) -> TrainEngine:
        """Returns the spec's train engine, connected to those of the other ranks."""
        engine = build_train_engine(spec, context)
        engine.connect(self.rank, self.ranks, self.shared(hold_address() if self.rank == 0 else None))
        return engine

    def shared(self, given: Any) -> Any:
        """Returns what rank 0 gives, on every rank; all ranks must call it."""
        return self.shared_by(0, given)

    def shared_by(self, rank: int, given: Any) -> Any:
        """Returns what a rank gives, on every rank; all ranks must call it."""
        self._peer.send((rank, given))
        return self._peer.recv()


def policy_of(engine: TrainEngine) -> Policy:
    """Returns the model that a train engine holds, with its type, so that mypy notices when one of its methods moves."""
    assert isinstance(engine, PolicyTrainEngine)
    return engine.policy


def local_part(parameter: torch.Tensor) -> torch.Tensor:
    """Returns what this rank holds of a parameter: its shard, or all of it if it is not sharded."""
    return parameter.to_local() if isinstance(parameter, DTensor) else parameter


def private_growth(call: Callable[[], object]) -> int:
    """Returns the bytes by which a call lets this process's private memory grow at its peak.

    Memory that was freed before is given back first, since the engines keep it.
    """
    gc.collect()
    give_back_freed_memory()
    with PeakGrowth() as memory:
        call()
    return round(memory.growth.private * 1e6)


def return_freed_memory() -> None:
    """Makes this process return each freed tensor to the system at once, so that its private memory is what it holds.

    Otherwise engines keep freed memory for the next tensor, and what lies between two tensors in use counts as well.
    Call it before an engine is built.
    """
    library = ctypes.CDLL(None)
    for parameter in (MMAP_THRESHOLD, TRIM_THRESHOLD):
        library.mallopt(parameter, SMALLEST_MAPPED)
    # Fails if the function has another name by now, which a plain assignment would hide.
    mock.patch.object(host_memory, "_glibc", lambda: None).start()


Job = Callable[..., Any]
"""(rank, *arguments) -> something that can be pickled."""


def on_ranks(ranks: int, job: Job, *arguments: Any) -> list[Any]:
    """Returns what the job returned on each rank. Raises `RuntimeError` if a rank dies."""
    pairs = [FRESH.Pipe() for _ in range(ranks)]
    workers = [
        FRESH.Process(target=_work, args=(rank, ranks, theirs, job, arguments), daemon=True)
        for rank, (_, theirs) in enumerate(pairs)
    ]
    for worker, (_, theirs) in zip(workers, pairs, strict=True):
        worker.start()
        theirs.close()
    try:
        return _answers([mine for mine, _ in pairs])
    except EOFError:
        raise RuntimeError(f"{job.__module__}: a rank died; see its error above") from None
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()


def _answers(peers: Sequence[Connection]) -> list[Any]:
    while True:
        asked = [peer.recv() for peer in peers]
        if (giver := asked[0][0]) is None:
            return [answer for _, answer in asked]
        for peer in peers:
            peer.send(asked[giver][1])


def _work(rank: int, ranks: int, peer: Connection, job: Job, arguments: tuple[Any, ...]) -> None:
    peer.send((None, job(Rank(rank, ranks, peer), *arguments)))
