"""What do new weights cost on their way to the rollout engines, relative to the model and to a plain broadcast?

Consumes nothing. Two ranks of FSDP2 send over 100 million parameters to two torch engines in bfloat16, each in a process
of its own, with the product's own transfer. The figures are those of the worse engine or the worst process:

- `sync_bytes_over_model`: bytes that an engine receives, divided by the bytes of the model in the engine's type;
- `sync_peak_over_bucket`: growth of private (anonymous) memory during a transfer, divided by the size of a bucket;
- `sync_seconds_over_broadcast`: seconds of a transfer, divided by those of a broadcast of the same bytes from the first
  rank to the three other processes, with gloo, in pieces of the size of a bucket; each at its best of several rounds;
- `delta_bytes_over_model`: bytes of a transfer of changes (`trainer.sync: delta`) after five optimizer steps at a learning
  rate of 1e-6, divided by the bytes of the model in the engine's type; a step has the size that AdamW gives it;
- `sync_beside_copy_over_sum`: seconds in which the ranks send their weights and copy weights and moments for a checkpoint
  at the same time, divided by the sum of the seconds of each alone, each at its best;
- `spilled_bytes`: bytes that the object store of a run's own Ray head spills when the same weights go through it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import progress
from benchmarks.grow.models import FSDP2, SEED, spec_of, write_model
from benchmarks.grow.ranks import Rank, on_ranks, private_growth
from yatt_core.spec import RunSpec
from yatt_core.wire.buckets import WeightBucket

SIZES: dict[str, Any] = {
    "hidden_size": 1024, "layers": 8, "heads": 16, "key_value_heads": 8, "intermediate_size": 2816,
    "max_positions": 256,
}  # fmt: skip
VOCABULARY = 32_000
RANKS, ENGINES, ROUNDS = 2, 2, 3
BUCKET = 32 << 20
STEPS, RATE = 5, 1e-6
ENGINE_TYPE = "bfloat16"


def transfer_figures(folder: Path, sizes: dict[str, Any] = SIZES) -> tuple[dict[str, float | None], dict[str, Any]]:
    """Returns the figures and, for each process, what it measured.

    sizes: of the model.
    """
    maker = get_context("spawn").Process(target=write_model, args=(folder / "model", VOCABULARY, sizes))
    maker.start()
    maker.join()
    if maker.exitcode:
        raise RuntimeError("the model could not be made; see the error above")
    progress("transfers: ranks to engines")
    found = on_ranks(RANKS + ENGINES, take_part, folder, sizes)
    engines = found[RANKS:]
    seconds = _best(found, "seconds")
    broadcast, copy, both = (_best(found, name) for name in ("broadcast", "copy", "both"))
    progress("transfers: through the object store of a run's own head")
    figures: dict[str, float | None] = {
        "sync_bytes_over_model": max(each["bytes"] / each["model"] for each in engines),
        "delta_bytes_over_model": sum(each["delta"] for each in found[:RANKS]) / engines[0]["model"],
        "sync_peak_over_bucket": max(each["peak"] for each in found) / BUCKET,
        "sync_seconds_over_broadcast": seconds / broadcast,
        "sync_beside_copy_over_sum": both / (seconds + copy),
        "spilled_bytes": float(_spilled(folder, sent_spec(sizes), engines[0]["model"])),
    }
    measured = {"seconds": seconds, "broadcast_seconds": broadcast, "copy_seconds": copy, "both_seconds": both}
    hidden = seconds + copy - both
    return figures, {"processes": found, "bucket_bytes": BUCKET, **measured, "hidden_seconds": hidden}


def _best(found: list[dict[str, Any]], name: str) -> float:
    """Returns the seconds of the best round, in which the slowest process counts."""
    return float(min(max(round_) for round_ in zip(*(each[name] for each in found), strict=True)))


def sent_spec(sizes: dict[str, Any]) -> RunSpec:
    """Returns the spec of the ranks that send."""
    return spec_of({**FSDP2, "ranks": RANKS}, sizes, prompts=2, prompt=8, response=8)


def take_part(rank: Rank, folder: Path, sizes: dict[str, Any]) -> dict[str, Any]:
    """Sends or receives several times; returns what this process measured."""
    from yatt_core.engines.sync.group import SyncGroup, serve_meeting
    from yatt_core.engines.train.ranks.collective import HOST
    from yatt_core.engines.train.ranks.rendezvous import LOOPBACK
    from yatt_core.protocols.transfers import Member, TransferTask

    names = [f"trainer-{n}" for n in range(RANKS)] + [f"rollout-{n}" for n in range(ENGINES)]
    members = tuple(Member(name, name) for name in names)
    work: _Sender | _Receiver = (_Sender if rank.rank < RANKS else _Receiver)(rank, folder, sizes)
    size = _model_bytes(folder)
    address, store = serve_meeting(LOOPBACK) if rank.rank == 0 else ("", None)
    address = rank.shared(address)
    group: list[SyncGroup] = []
    seconds, peak, received = list[float](), 0, 0
    for version in range(1, ROUNDS + 2):
        task = TransferTask(1, version, f"{version}", address, members[:RANKS], members[RANKS:])
        if not group:
            group.append(SyncGroup(task, names[rank.rank], store, HOST))
        rank.shared(None)
        begun = time.perf_counter()
        if version <= ROUNDS:
            received = work.whole(group[0], task)
            seconds.append(time.perf_counter() - begun)
        else:  # measured apart, because looking at the memory takes time
            peak = private_growth(partial(work.whole, group[0], task))
    rank.shared(None)
    task = TransferTask(1, ROUNDS + 2, "changes", address, members[:RANKS], members[RANKS:], "kept")
    delta = work.changes(group[0], task)
    copies, both = _copies(rank, work, group[0], replace(task, base=""))
    return {
        "delta": delta,
        "copy": copies,
        "both": both,
        "seconds": seconds[1:],  # the first one connects
        "peak": peak,
        "bytes": received,
        "model": size,
        "broadcast": _broadcasts(rank, size),
    }


def _copies(rank: Rank, work: _Sender | _Receiver, group: Any, task: Any) -> tuple[list[float], list[float]]:
    """Returns the seconds of copies for a checkpoint, and of transfers beside such a copy, round by round."""
    copies, both = list[float](), list[float]()
    for turn in range(ROUNDS + 1):
        rank.shared(None)
        begun = time.perf_counter()
        work.copy()
        copies.append(time.perf_counter() - begun)
        rank.shared(None)
        begun = time.perf_counter()
        with ThreadPoolExecutor(1) as thread:
            copying = thread.submit(work.copy)
            work.whole(group, replace(task, name=f"beside copy {turn}"))
            copying.result()
        both.append(time.perf_counter() - begun)
    return copies[1:], both[1:]  # the first copy allocates its memory


class _Sender:
    """A rank of the trainer."""

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
        from yatt_core.engines.sync.sending import send_weights

        return send_weights(group, task, self._engine.sync_parts, ENGINE_TYPE, BUCKET, lambda: None)

    def copy(self) -> None:
        """Copies what a checkpoint needs."""
        self._engine.freeze_state()

    def changes(self, group: Any, task: Any) -> int:
        """Takes optimizer steps with made-up gradients, and sends what they have changed; returns the bytes sent."""
        import torch

        from yatt_core.engines.sync.delta import send_changes

        for part in self._engine.sync_parts():
            self._sent.of(part, ENGINE_TYPE).copy_(part.values)
        noise = torch.Generator().manual_seed(SEED)
        optimizer = self._engine._optimizer
        for _ in range(STEPS):
            for parameter in optimizer.named.values():
                parameter.grad = torch.zeros_like(parameter)
                parameter.grad.to_local().normal_(generator=noise)
            optimizer.apply(RATE, 1.0)
        return send_changes(group, task, self._engine.sync_parts, ENGINE_TYPE, BUCKET, lambda: None, self._sent)


class _Receiver:
    """A rollout engine."""

    def __init__(self, rank: Rank, folder: Path, sizes: dict[str, Any]) -> None:
        from yatt_core.engines.rollout.torch.engine import TorchRolloutEngine

        rank.shared(None)  # the address of the trainer's ranks
        self._engine = TorchRolloutEngine(str(folder / "model"), ENGINE_TYPE, 64, 8, folder)

    def whole(self, group: Any, task: Any) -> int:
        """Takes all weights; returns the bytes received."""
        from yatt_core.engines.sync.receiving import received_weights

        return self._take(task, received_weights(group, task, BUCKET, lambda: None))

    def copy(self) -> None:
        """Does nothing: engines have no part in checkpoints."""

    def changes(self, group: Any, task: Any) -> int:
        """Takes changes; returns the bytes received."""
        from yatt_core.engines.sync.delta import received_changes

        return self._take(task, received_changes(group, task, lambda: None))

    def _take(self, task: Any, buckets: Iterator[WeightBucket]) -> int:
        received = 0
        for bucket in buckets:
            if not bucket.number:
                self._engine.begin_update(task.version)
            self._engine.take(bucket)
            received += bucket.nbytes
        self._engine.end_update()
        return received


def _model_bytes(folder: Path) -> int:
    """Returns the bytes of the model in the engine's type; its file is in float32."""
    from yatt_core.engines.rollout.tensor_layout import read_layout

    return sum(2 * int(np.prod(shape)) for shape in read_layout(folder / "model").shapes.values())


def _broadcasts(rank: Rank, size: int) -> list[float]:
    """Returns the seconds of plain broadcasts of as many bytes between the same processes."""
    import torch
    from torch import distributed

    from yatt_core.engines.train.ranks.collective import Collective
    from yatt_core.engines.train.ranks.rendezvous import hold_address

    plain = Collective()
    plain.connect(rank.rank, RANKS + ENGINES, rank.shared(hold_address() if rank.rank == 0 else None))
    options = distributed.BroadcastOptions()
    options.rootRank = 0
    buffer, seconds = torch.ones(BUCKET, dtype=torch.uint8), list[float]()
    for _ in range(ROUNDS):
        plain.barrier()
        begun = time.perf_counter()
        for start in range(0, size, BUCKET):
            plain._groups["cpu"].broadcast([buffer[: min(BUCKET, size - start)]], options).wait()
        seconds.append(time.perf_counter() - begun)
    return seconds[1:]


def _spilled(folder: Path, spec: RunSpec, size: int) -> int:
    """Returns the bytes that a run's own store spills when weights of this size go through it, twice."""
    import ray

    from yatt_core.cluster.connect import connect_ray, disconnect_ray
    from yatt_core.cluster.metering import BytesMeter, metered_get
    from yatt_core.cluster.object_store import spilled_bytes, store_bytes
    from yatt_core.cluster.ray_head import SERVICE_NAME, ray_head_service
    from yatt_core.run_actors.sync_parties import SyncParties
    from yatt_core.run_actors.weight_sync import sync_through_store
    from yatt_core.supervisor.client import ensure_supervisor, stop_supervisor, wait_ready

    class Calls:
        def get(self, references: list[Any], what: str, names: list[str]) -> list[Any]:
            return metered_get(BytesMeter(), references, 600.0, what)

    through_store = spec.model_copy(update={"trainer": spec.trainer.model_copy(update={"sync_transport": "store"})})
    head = ray_head_service(folder, object_store_bytes=store_bytes(through_store))
    ensure_supervisor(folder, [head], grace=600)
    try:
        connect_ray(wait_ready(folder, [SERVICE_NAME], 120.0).service(SERVICE_NAME).address, "grow", folder)
        rank, *engines = (
            ray.remote(num_cpus=0)(kind).remote(size) for kind in (StoredRank, StoredEngine, StoredEngine)
        )
        for version in (1, 2):
            calls: Any = Calls()
            sync_through_store(calls, 1, version, SyncParties([rank], engines, ["rank"], ["engines"]))
        return spilled_bytes() or 0
    finally:
        disconnect_ray()
        stop_supervisor(folder, 30.0)


class StoredRank:
    """A rank that has only weights, which it sends in buckets of the default size."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._buckets: Any = None

    def export(self, term: int, version: int, number: int) -> tuple[bool, Any]:
        """Returns the next bucket, and whether it is the last."""
        from yatt_core.wire.buckets import buckets_of

        if number == 0:
            self._buckets = buckets_of((f"{place}", np.zeros(8 << 20, np.uint8)) for place in range(self._size >> 23))
        bucket = next(self._buckets)
        return bucket.last, bucket


class StoredEngine:
    """An engine that only checks its weights."""

    def __init__(self, size: int) -> None:
        self._size = size

    def begin_update(self, term: int, version: int) -> None:
        """Does nothing."""

    def take(self, term: int, bucket: Any) -> None:
        """Checks a bucket."""
        bucket.require_intact()

    def end_update(self, term: int) -> None:
        """Does nothing."""
