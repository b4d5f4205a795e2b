"""The processes that take part in the measure of transfers: the trainer's ranks, and the rollout engines.

Consumes a model folder; each process returns what it measured.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.grow.models import FSDP2, SEED, spec_of
from benchmarks.grow.ranks import Rank, private_growth
from benchmarks.grow.receivers import ENGINE_TYPE, KINDS, RETURNED_AT_ONCE, EngineKind, Receiver
from yatt_core.spec import RunSpec

RANKS = 2
ROUNDS = 6
BUCKET = 32 << 20
STEPS = 5
RATE = 1e-6


def sent_spec(sizes: dict[str, Any]) -> RunSpec:
    """Returns the spec of the ranks that send."""
    return spec_of({**FSDP2, "ranks": RANKS}, sizes, prompts=2, prompt=8, response=8)


def take_part(rank: Rank, folder: Path, sizes: dict[str, Any], kind: str = "torch") -> dict[str, Any]:
    """Sends or receives several times; returns what this process measured.

    kind: of the engines.
    """
    member = _Member(rank, folder, sizes, kind)
    seconds = list[float]()
    received = 0
    for version in range(1, ROUNDS + 1):
        took, received = member.timed(version)
        seconds.append(took)
    # Measured apart, because looking at the memory takes time.
    found = {"peak": member.peak(ROUNDS + 1), "seconds": seconds[1:], "bytes": received}  # the first one connects
    if kind == "torch":
        found["delta"] = member.changes(ROUNDS + 2)
        found["copy"], found["both"] = member.copies(ROUNDS + 3)
    size = _model_bytes(folder)
    found |= {"model": size, "broadcast": _broadcasts(rank, size, RANKS + KINDS[kind].count)}
    member.close()
    return found


def take_changes(rank: Rank, folder: Path, sizes: dict[str, Any], kind: str) -> dict[str, Any]:
    """Sends or receives all weights, and then what has changed; returns the bytes of the changes.

    Apart from other measures, because a vLLM engine keeps a copy of its weights for it.
    """
    member = _Member(rank, folder, sizes, kind, takes_changes=True)
    member.timed(1)
    found = {"delta": member.changes(2), "model": _model_bytes(folder)}
    member.close()
    return found


def take_memory(rank: Rank, folder: Path, sizes: dict[str, Any], kind: str) -> dict[str, Any]:
    """Sends or receives twice; returns the growth of private memory in the second transfer."""
    os.environ.update(RETURNED_AT_ONCE)
    member = _Member(rank, folder, sizes, kind)
    member.timed(1)
    found = {"peak": member.peak(2)}
    member.close()
    return found


class _Member:
    """A rank or an engine in its group."""

    def __init__(self, rank: Rank, folder: Path, sizes: dict[str, Any], kind: str, takes_changes: bool = False) -> None:
        from yatt_core.engines.sync.group import SyncGroup, serve_meeting
        from yatt_core.engines.train.ranks.collective import HOST
        from yatt_core.engines.train.ranks.rendezvous import LOOPBACK
        from yatt_core.protocols.transfers import SyncMember

        self._rank = rank
        names = [f"trainer-{n}" for n in range(RANKS)] + [f"rollout-{n}" for n in range(KINDS[kind].count)]
        self._members = tuple(SyncMember(name, name) for name in names)
        self._work: _Sender | _Taker = (
            _Sender(rank, folder, sizes) if rank.rank < RANKS else _Taker(rank, folder, KINDS[kind], takes_changes)
        )
        address, store = serve_meeting(LOOPBACK) if rank.rank == 0 else ("", None)
        self._address = rank.shared(address)
        self._group = SyncGroup(self._task(1), names[rank.rank], store, HOST)

    def _task(self, version: int, base: str = "") -> Any:
        from yatt_core.protocols.transfers import TransferTask

        senders = self._members[:RANKS]
        receivers = self._members[RANKS:]
        return TransferTask(
            term=1,
            version=version,
            name=f"{version}",
            address=self._address,
            ranks=senders,
            engines=receivers,
            base=base,
        )

    def timed(self, version: int) -> tuple[float, int]:
        """Returns the seconds of a transfer, and its bytes."""
        task = self._task(version)
        self._rank.shared(None)
        begun = time.perf_counter()
        moved = self._work.whole(self._group, task)
        return time.perf_counter() - begun, moved

    def peak(self, version: int) -> int:
        """Returns the growth of private memory during a transfer, in bytes."""
        task = self._task(version)
        self._rank.shared(None)
        return self._work.growth(partial(self._work.whole, self._group, task))

    def changes(self, version: int) -> int:
        """Returns the bytes of a transfer of changes."""
        task = self._task(version, "kept")
        self._rank.shared(None)
        return self._work.changes(self._group, task)

    def copies(self, version: int) -> tuple[list[float], list[float]]:
        """Returns the seconds of copies for a checkpoint, and of transfers beside such a copy, round by round."""
        copies = list[float]()
        both = list[float]()
        for turn in range(ROUNDS + 1):
            self._rank.shared(None)
            begun = time.perf_counter()
            self._work.copy()
            copies.append(time.perf_counter() - begun)
            task = self._task(version + turn)
            self._rank.shared(None)
            begun = time.perf_counter()
            with ThreadPoolExecutor(1) as thread:
                copying = thread.submit(self._work.copy)
                self._work.whole(self._group, task)
                copying.result()
            both.append(time.perf_counter() - begun)
        return copies[1:], both[1:]  # the first copy allocates its memory

    def close(self) -> None:
        """Ends an engine once nobody measures any more."""
        self._rank.shared(None)
        self._work.close()


class _Sender:
    """A rank of the trainer."""

    growth = staticmethod(private_growth)

    def __init__(self, rank: Rank, folder: Path, sizes: dict[str, Any]) -> None:
        from yatt_core.engines.registry import build_train_engine
        from yatt_core.engines.sync.sent_weights import SentWeights
        from yatt_core.engines.train.ranks.rendezvous import hold_address
        from yatt_core.protocols.engines import RankContext

        context = RankContext(folder, folder / "inputs", str(folder / "model"), 0)
        self._engine: Any = build_train_engine(sent_spec(sizes), context)
        self._engine.connect(rank.rank, RANKS, rank.shared(hold_address() if rank.rank == 0 else None))
        self._engine.initialise()
        self._sent = SentWeights()

    def whole(self, group: Any, task: Any) -> int:
        """Sends all weights; returns the bytes sent."""
        return self._send(group, task, None)

    def _send(self, group: Any, task: Any, sent: Any) -> int:
        from yatt_core.engines.sync.sending import send_weights

        return send_weights(
            group=group,
            task=task,
            parts=self._engine.sync_parts,
            rounded_to=ENGINE_TYPE,
            most_bytes=BUCKET,
            sent=sent,
        )

    def copy(self) -> None:
        """Copies what a checkpoint needs."""
        self._engine.freeze_state()

    def close(self) -> None:
        """Does nothing: a rank ends with its process."""

    def changes(self, group: Any, task: Any) -> int:
        """Takes optimizer steps with made-up gradients, and sends what they have changed; returns the bytes sent."""
        import torch

        for part in self._engine.sync_parts():
            self._sent.of(part, ENGINE_TYPE).copy_(part.values)
        noise = torch.Generator().manual_seed(SEED)
        optimizer = self._engine.policy.optimizer
        for _ in range(STEPS):
            for parameter in optimizer.named.values():
                parameter.grad = torch.zeros_like(parameter)
                parameter.grad.to_local().normal_(generator=noise)
            optimizer.apply(RATE, 1.0)
        self._sent.name = task.base
        return self._send(group, task, self._sent)


class _Taker:
    """A rollout engine."""

    def __init__(self, rank: Rank, folder: Path, kind: EngineKind, takes_changes: bool) -> None:
        rank.shared(None)  # the address of the trainer's ranks
        self._receiver = Receiver(kind, folder / "model", takes_changes)
        self.growth = self._receiver.growth
        self.close = self._receiver.close

    def whole(self, group: Any, task: Any) -> int:
        """Takes what is sent; returns the bytes received."""
        from yatt_core.engines.sync.receiving import received_weights

        buckets = received_weights(group, task, BUCKET, self._receiver.buffers)
        return self._receiver.take(task.version, buckets)

    def copy(self) -> None:
        """Does nothing: engines have no part in checkpoints."""

    changes = whole


def _model_bytes(folder: Path) -> int:
    """Returns the bytes of the model in the engine's type; its file is in float32."""
    from yatt_core.engines.rollout.tensor_layout import read_layout

    return sum(2 * int(np.prod(shape)) for shape in read_layout(folder / "model").shapes.values())


def _broadcasts(rank: Rank, size: int, members: int) -> list[float]:
    """Returns the seconds of plain broadcasts of as many bytes between the same processes."""
    import torch
    from torch import distributed

    from yatt_core.engines.train.ranks.collective import Collective
    from yatt_core.engines.train.ranks.rendezvous import hold_address

    plain = Collective()
    plain.connect(rank.rank, members, rank.shared(hold_address() if rank.rank == 0 else None))
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    buffer = torch.ones(BUCKET, dtype=torch.uint8)
    seconds = list[float]()
    for _ in range(ROUNDS):
        plain.barrier()
        begun = time.perf_counter()
        for start in range(0, size, BUCKET):
            plain._groups["cpu"].broadcast([buffer[: min(BUCKET, size - start)]], options).wait()
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]
