"""Sends weights from a trainer to rollout engines on given GPUs, each in a process of its own, the product's direct way.

Consumes a spec, a model's folder, and the devices. Produces what each process measured and holds: used by `benchmarks.gpu`,
and by tests that compare the digests.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.spec import RunSpec
from yatt_core.wire.transfer_plan import Rectangle

CORES = ""
"""A device that is none of the GPUs."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True)
class Taken:
    """What a process did.

    way: `memory`, `nccl` or `gloo`; for the trainer, the ways of all engines.
    seconds: of each transfer but the first, which connects.
    nbytes: bytes of a transfer.
    digests: of what it holds at the end, rounded to the engines' type.
    """

    way: str
    seconds: tuple[float, ...]
    nbytes: int
    digests: Mapping[Rectangle, str]


def transfers_between(
    devices: Sequence[str], folder: Path, model: Path, spec: RunSpec, rounds: int = 2
) -> tuple[Taken, ...]:
    """Returns what the trainer did, then what each engine did.

    devices: the trainer's and each engine's, as in `CUDA_VISIBLE_DEVICES`; `CORES` for cores.
    spec: of a trainer of one rank, and of torch engines.
    """
    return tuple(on_ranks(len(devices), _take_part, tuple(devices), folder, model, spec, rounds))


def _take_part(rank: Rank, devices: Sequence[str], folder: Path, model: Path, spec: RunSpec, rounds: int) -> Taken:
    os.environ[VISIBLE] = devices[rank.rank]  # before anything touches a GPU
    from yatt_core.engines.device import own_device
    from yatt_core.engines.sync.group import SyncGroup, serve_meeting
    from yatt_core.engines.train.ranks.rendezvous import LOOPBACK
    from yatt_core.protocols.transfers import SyncMember, TransferTask
    from yatt_core.spec.weights import type_sent

    names = ["trainer-0", *(f"rollout-{number}" for number in range(len(devices) - 1))]
    members = tuple(SyncMember(name, name) for name in names)
    end = _Trainer(folder, model, spec) if rank.rank == 0 else _Engine(model, spec)
    address, store = serve_meeting(LOOPBACK) if rank.rank == 0 else ("", None)
    address = rank.shared(address)
    group: SyncGroup | None = None
    seconds = list[float]()
    nbytes = 0
    for version in range(1, rounds + 2):
        task = TransferTask(
            term=1, version=version, name=f"{version}", address=address, ranks=members[:1], engines=members[1:]
        )
        group = group or SyncGroup(task, names[rank.rank], store, own_device())
        rank.shared(None)
        begun = time.perf_counter()
        nbytes = end.take_part(group, task, spec.trainer.sync_bucket_bytes, type_sent(spec))
        seconds.append(time.perf_counter() - begun)
    assert group is not None
    wanted = rank.shared(end.rectangles(type_sent(spec)))
    return Taken("+".join(group.ways(0)), tuple(seconds[1:]), nbytes, end.digests(wanted, type_sent(spec)))


class _Trainer:
    """The rank that sends."""

    def __init__(self, folder: Path, model: Path, spec: RunSpec) -> None:
        from yatt_core.engines.registry import build_train_engine
        from yatt_core.protocols.engines import RankContext

        self._engine = build_train_engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
        self._engine.connect(0, 1, "")
        self._engine.initialise()

    def take_part(self, group: Any, task: Any, size: int, kind: str | None) -> int:
        from yatt_core.engines.sync.sending import send_weights

        return send_weights(
            group=group, task=task, parts=self._engine.sync_parts, rounded_to=kind, most_bytes=size, check=_unobjected
        )

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

    def take_part(self, group: Any, task: Any, size: int, _: str | None) -> int:
        from yatt_core.engines.sync.receiving import received_weights

        received = 0
        for bucket in received_weights(
            group=group, task=task, most_bytes=size, check=_unobjected, places=self._engine.buffers
        ):
            if not bucket.number:
                self._engine.begin_update(task.version)
            self._engine.take(bucket)
            received += bucket.nbytes
        self._engine.end_update()
        return received

    def rectangles(self, _: str | None) -> list[Rectangle]:
        return []

    def digests(self, wanted: Sequence[Rectangle], _: str | None) -> dict[Rectangle, str]:
        return dict(zip(wanted, self._engine.rectangle_digests(wanted) or (), strict=True))


def _unobjected() -> None:
    """Lets a transfer go on."""
