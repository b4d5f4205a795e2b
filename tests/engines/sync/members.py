"""Transfers of weights between members that are threads of this process, over real connections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from yatt_core.engines.rollout.incoming import WeightTaker
from yatt_core.engines.sync.group import SyncGroup, serve_meeting
from yatt_core.engines.sync.receiving import received_weights
from yatt_core.engines.sync.sending import send_weights
from yatt_core.engines.sync.sent_weights import SentWeights
from yatt_core.engines.train.ranks.collective import NO_GPU
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK
from yatt_core.protocols.transfers import SyncMember, TransferTask
from yatt_core.wire.parts import TensorPart

CPU = torch.device("cpu")
Parts = Sequence[TensorPart[torch.Tensor]]


def nothing_is_wrong() -> None:
    """Lets a transfer go on."""


@dataclass
class Members:
    """Ranks and engines that have met.

    most_bytes: maximum size of a bucket.
    gpus: names of the GPUs on which members claim to be.
    """

    ranks: int
    engines: Sequence[WeightTaker]
    most_bytes: int = 4096
    groups: dict[str, SyncGroup] = field(default_factory=dict)
    check: Callable[[], None] = nothing_is_wrong
    on_bucket: Callable[[str, int], None] = lambda name, number: None
    transfers: int = 0
    gpus: Mapping[str, str] = field(default_factory=dict)
    sent: dict[int, SentWeights] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.address, self.store = serve_meeting(LOOPBACK)
        names = [f"trainer-{rank}" for rank in range(self.ranks)]
        self.members = tuple(SyncMember(name, name) for name in names)
        self.takers = {f"rollout-{place}": engine for place, engine in enumerate(self.engines)}

    def task(self, version: int, base: str = "") -> TransferTask:
        self.transfers += 1
        receivers = tuple(SyncMember(name, name) for name in self.takers)
        return TransferTask(1, version, f"transfer {self.transfers}", self.address, self.members, receivers, base)

    def group(self, task: TransferTask, name: str) -> SyncGroup:
        if name not in self.groups:
            self.groups[name] = SyncGroup(
                task=task,
                own=name,
                store=self.store if name == "trainer-0" else None,
                device=CPU,
                check=lambda task: self.check(),
            )
            self.groups[name]._gpu = self.gpus.get(name, NO_GPU)
        return self.groups[name]

    def send(self, task: TransferTask, rank: int, parts: Parts, kind: str | None, delta: bool = False) -> int:
        def given(outlines: bool) -> Iterator[TensorPart[torch.Tensor]]:
            return iter(parts)

        group = self.group(task, f"trainer-{rank}")
        sent = self.sent.setdefault(rank, SentWeights()) if delta else None
        try:
            return send_weights(
                group=group, task=task, parts=given, rounded_to=kind, most_bytes=self.most_bytes, sent=sent
            )
        except BaseException:
            group.close()
            raise

    def receive(self, task: TransferTask, name: str) -> int:
        """Returns the number of bytes received."""
        taker = self.takers[name]
        group = self.group(task, name)
        received = 0
        try:
            for bucket in received_weights(group, task, self.most_bytes, taker.buffers):
                if not bucket.number:
                    taker.begin_update(task.version)
                self.on_bucket(name, bucket.number)
                taker.take(bucket)
                received += bucket.nbytes
            taker.end_update()
        except BaseException:
            group.close()
            raise
        return received

    def transfer(
        self, version: int, parts: Sequence[Parts], kind: str | None = None, delta: bool = False
    ) -> list[Future[int]]:
        """Has all members take part; returns what became of the engines, then of the ranks.

        delta: whether the ranks keep what they send, and send only changes from the second transfer on.
        """
        task = self.task(version, f"transfer {self.transfers}" if delta and self.transfers else "")
        with ThreadPoolExecutor(len(self.takers) + self.ranks) as threads:
            found: list[Future[Any]] = [threads.submit(self.receive, task, name) for name in self.takers]
            found += [threads.submit(self.send, task, rank, each, kind, delta) for rank, each in enumerate(parts)]
        return found
