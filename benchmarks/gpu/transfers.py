"""Sends weights from a trainer to rollout engines on given GPUs, each in a process of its own, the product's direct way.

Consumes a spec, a model's folder, and the devices. Produces what each process measured and holds: used by the checks of
`benchmarks.gpu`, and by tests that compare the digests. Where there is no GPU, host memory can take the place of a GPU's memory
that its processes share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.courses import CORES, VISIBLE, Alone, started, updated
from benchmarks.gpu.lent_memory import lend_host_memory
from benchmarks.gpu.work import Work
from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.spec import RunSpec
from yatt_core.wire.parts import Rectangle

__all__ = ["CORES", "VISIBLE", "Taken", "transfers_between"]


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process did.

    way: `memory`, `nccl` or `gloo`; for the trainer, the ways of all engines.
    seconds: of each transfer but the first, which connects.
    nbytes: bytes of a transfer.
    digests: of what it holds at the end, rounded to the engines' type.
    changed_bytes: bytes of the transfer of changes; 0 if there was none.
    """

    way: str
    seconds: tuple[float, ...]
    nbytes: int
    digests: Mapping[Rectangle, str]
    changed_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Options:
    """What else is done.

    rounds: transfers of all weights, after the one that connects.
    learns: the work of an update after them, whose changes alone are sent; None for no update.
    lends_host_memory: whether host memory takes the place of the memory of a GPU that all members are on.
    """

    rounds: int = 2
    learns: Work | None = None
    lends_host_memory: bool = False


def transfers_between(
    devices: Sequence[str], folder: Path, model: Path, spec: RunSpec, options: Options | None = None
) -> tuple[Taken, ...]:
    """Returns what the trainer did, then what each engine did.

    devices: the trainer's and each engine's, as in `CUDA_VISIBLE_DEVICES`; `CORES` for cores.
    spec: of a trainer of one rank, and of torch engines.
    """
    return tuple(on_ranks(len(devices), _take_part, tuple(devices), folder, model, spec, options or Options()))


def _take_part(rank: Rank, devices: Sequence[str], folder: Path, model: Path, spec: RunSpec, options: Options) -> Taken:
    os.environ[VISIBLE] = devices[rank.rank]  # before anything touches a GPU
    if options.lends_host_memory:
        _lend_host_memory()
    from yatt_core.engines.device import own_device
    from yatt_core.engines.sync.group import SyncGroup, serve_meeting
    from yatt_core.engines.train.ranks.rendezvous import LOOPBACK
    from yatt_core.protocols.transfers import SyncMember, TransferTask
    from yatt_core.spec.weights import type_sent

    names = ["trainer-0", *(f"rollout-{number}" for number in range(len(devices) - 1))]
    members = tuple(SyncMember(name, name) for name in names)
    end: _Trainer | _Engine = _Trainer(folder, model, spec) if rank.rank == 0 else _Engine(model, spec)
    address, store = serve_meeting(LOOPBACK) if rank.rank == 0 else ("", None)
    address = rank.shared(address)
    group: SyncGroup | None = None
    seconds = list[float]()
    nbytes = 0

    def task_of(version: int, base: str = "") -> TransferTask:
        return TransferTask(
            term=1,
            version=version,
            name=f"{version}",
            address=address,
            ranks=members[:1],
            engines=members[1:],
            base=base,
        )

    for version in range(1, options.rounds + 2):
        task = task_of(version)
        group = group or SyncGroup(task, names[rank.rank], store, own_device())
        rank.shared(None)
        begun = time.perf_counter()
        nbytes = end.take(group, task, spec.trainer.sync_bucket_bytes, type_sent(spec))
        seconds.append(time.perf_counter() - begun)
    assert group is not None
    changed = 0
    if options.learns is not None:
        end.learn(options.learns)
        task = task_of(options.rounds + 2, f"{options.rounds + 1}")
        rank.shared(None)
        changed = end.take(group, task, spec.trainer.sync_bucket_bytes, type_sent(spec))
    wanted = rank.shared(end.rectangles(type_sent(spec)))
    return Taken(
        way="+".join(group.ways(0)),
        seconds=tuple(seconds[1:]),
        nbytes=nbytes,
        digests=end.digests(wanted, type_sent(spec)),
        changed_bytes=changed,
    )


def _lend_host_memory() -> None:
    """Has this process report the same GPU as all others, and share host memory with them in place of the GPU's."""
    from yatt_core.engines.sync import group

    lend_host_memory()
    vars(group)["gpu_name"] = lambda device: "host memory"


class _Trainer:
    """The rank that sends."""

    def __init__(self, folder: Path, model: Path, spec: RunSpec) -> None:
        from yatt_core.engines.sync.sent_weights import SentWeights

        self._folder = folder
        self._engine = started(Alone(), spec, folder, model)
        self._sent = SentWeights()

    def take(self, group: Any, task: Any, size: int, kind: str | None) -> int:
        from yatt_core.engines.sync.sending import send_weights

        return send_weights(
            group=group,
            task=task,
            parts=self._engine.sync_parts,
            rounded_to=kind,
            most_bytes=size,
            sent=self._sent,
        )

    def learn(self, work: Work) -> None:
        updated(Alone(), self._engine, self._folder, work)

    def rectangles(self, kind: str | None) -> list[Rectangle]:
        return list(self.digests([], kind))

    def digests(self, _: Sequence[Rectangle], kind: str | None) -> dict[Rectangle, str]:
        from yatt_core.engines.rectangles import part_digests

        return part_digests(self._engine.sync_parts(), kind)


class _Engine:
    """An engine that receives."""

    def __init__(self, model: Path, spec: RunSpec) -> None:
        from yatt_core.engines.registry import build_rollout_engine

        self._engine = build_rollout_engine(spec, str(model), model)

    def take(self, group: Any, task: Any, size: int, _: str | None) -> int:
        from yatt_core.engines.sync.receiving import received_weights

        buckets = received_weights(group, task, size, self._engine.buffers)
        received = 0
        for bucket in buckets:
            if not bucket.number:
                self._engine.begin_update(task.version)
            self._engine.take(bucket)
            received += bucket.nbytes
        self._engine.end_update()
        return received

    def learn(self, _: Work) -> None:
        """Does nothing: engines do not learn."""

    def rectangles(self, _: str | None) -> list[Rectangle]:
        return []

    def digests(self, wanted: Sequence[Rectangle], _: str | None) -> dict[Rectangle, str]:
        return dict(zip(wanted, self._engine.rectangle_digests(wanted) or (), strict=True))
