"""Trainers of one or several ranks: jobs that every rank runs, and what each rank found.

Several ranks run in a process each; a single one runs in this process.
"""

from __future__ import annotations

import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from tests.engines.train.support import level_task, random_task, weights_of
from yatt_core.engines import offload
from yatt_core.engines.registry import build_train_engine
from yatt_core.engines.train.base.batch_reader import BatchReader
from yatt_core.engines.train.base.policy_engine import PolicyTrainEngine
from yatt_core.engines.train.model.optimizer import MOMENTS
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
from yatt_core.errors import InfrastructureError
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.protocols.receipts import BatchTask, UpdateReceipt
from yatt_core.spec.run import RunSpec
from yatt_core.wire.part_files import PartFiles
from yatt_core.wire.parts import Box, TensorPart

DEADLINE = 600.0
RANKS = multiprocessing.get_context("forkserver")
# Imports the libraries once instead of in each rank.
RANKS.set_forkserver_preload(["tests.engines.train.preloaded"])


@dataclass(frozen=True)
class Job:
    """What a new trainer does.

    iterations: the iterations to learn, in order.
    restore: the checkpoint to start from, and its version.
    skips: the iterations to skip.
    level: the iterations whose samples all have the same reward.
    save: the folder for a checkpoint after the iteration `save_at`.
    rejoin_at: the iteration after which the ranks connect again.
    offloads: the iterations after which it offloads, each with whether it does so as it would on an accelerator. The
        engine is told to reload after the first one and has to reload by itself after the others.
    vocabulary: the vocabulary size of the experience.
    make_task: writes an iteration's experience.
    ahead: with streamed learning, the numbers of an iteration's first shards that are learnt from before it is prepared.
    host: rank 0's address, where the ranks meet.
    reader: reads what ranks with a model learn from.
    records_sent: whether to record what the ranks would send to rollout engines, at first and after each iteration.
    """

    spec: RunSpec
    model: Path
    iterations: Sequence[int]
    restore: tuple[Path, int] | None = None
    skips: Sequence[int] = ()
    level: Sequence[int] = ()
    save: Path | None = None
    save_at: int = 0
    rejoin_at: int = 0
    offloads: Mapping[int, bool] = field(default_factory=dict)
    vocabulary: int = 24
    make_task: Callable[..., BatchTask] = random_task
    ahead: Sequence[int] = ()
    host: str = LOOPBACK
    reader: type[BatchReader] = BatchReader
    records_sent: bool = False


@dataclass
class Offloaded:
    """Sizes in bytes of a rank's lasting and temporary tensors, before and after an offload.

    before: the sizes before the offload.
    after: the sizes after it.
    whole: True if a reload restored all of these tensors.
    """

    before: tuple[int, int]
    after: tuple[int, int]
    whole: bool = False


@dataclass
class Found:
    """The results of a job on one rank.

    weights: the weights after the last iteration, on rank 0.
    refusal: the error raised when an iteration that was already learned is prepared again.
    parts: the rank's parts of weights, moments and reference after the last iteration, by kind.
    sent: what the rank would send of each version.
    """

    versions: list[int] = field(default_factory=list)
    receipts: list[UpdateReceipt] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    refusal: str = ""
    offloaded: list[Offloaded] = field(default_factory=list)
    parts: dict[str, list[TensorPart[np.ndarray[Any, Any]]]] = field(default_factory=dict)
    sent: list[list[TensorPart[np.ndarray[Any, Any]]]] = field(default_factory=list)


def run_ranks(ranks: int, jobs: Sequence[Job], folder: Path) -> list[list[Found]]:
    """Runs the jobs one after another on all ranks: rank -> job -> results.

    folder: holds all files.
    """
    work = work_of(jobs, folder)
    if ranks == 1:
        return [_jobs(0, 1, work)]
    workers = [RANKS.Process(target=run_rank, args=(rank, ranks, work, folder)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
        if worker.is_alive():
            worker.kill()
    return results_of([worker.exitcode for worker in workers], folder)


def results_of(exit_codes: Sequence[int | None], folder: Path) -> list[list[Found]]:
    """Returns what ranks that have ended left in the folder: rank -> job -> results."""
    failures = [path.read_text() for path in sorted(folder.glob("rank-*.failed"))]
    assert not failures, "\n".join(failures)
    assert set(exit_codes) == {0}
    return [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(len(exit_codes))]


@dataclass(frozen=True)
class Work:
    """A job with its experience and its run folder."""

    job: Job
    tasks: list[BatchTask]
    place: Path


def work_of(jobs: Sequence[Job], folder: Path) -> list[Work]:
    """Writes the experience of the jobs into folders of their own."""
    places = [folder / f"job-{number}" for number in range(len(jobs))]
    tasks = [
        [
            (level_task if iteration in job.level else job.make_task)(place, iteration, vocabulary=job.vocabulary)
            for iteration in job.iterations
        ]
        for place, job in zip(places, jobs, strict=True)
    ]
    return [Work(job, given, place) for job, given, place in zip(jobs, tasks, places, strict=True)]


def run_rank(rank: int, ranks: int, work: Sequence[Work], folder: Path) -> None:
    """Runs one rank in this process, which leaves its results or its failure in the folder."""
    try:
        (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(_jobs(rank, ranks, work)))
    except BaseException:
        (folder / f"rank-{rank}.failed").write_text(f"rank {rank}\n{traceback.format_exc()}")
        raise


def _jobs(rank: int, ranks: int, work: Sequence[Work]) -> list[Found]:
    from yatt_core.engines.train.ranks.process_group import close_process_group

    try:
        return [_learn(rank, ranks, one) for one in work]
    finally:
        close_process_group()


def _learn(rank: int, ranks: int, work: Work) -> Found:
    job = work.job
    found = Found()
    context = RankContext(work.place, work.place / "inputs", str(job.model), 0)
    engine = build_train_engine(job.spec, context)
    if isinstance(engine, PolicyTrainEngine):
        engine.workload.batches = job.reader(job.spec, context)
    _meet(engine, rank, ranks, work, "first")
    if job.restore is None:
        engine.initialise()
    else:
        _restore(engine, *job.restore)
    found.versions.append(engine.version)
    found.sent += _sent(job, engine)
    for task in work.tasks:
        found.receipts.append(_learn_or_skip(engine, work, task))
        found.versions.append(engine.version)
        found.sent += _sent(job, engine)
        if job.save is not None and task.key.iteration == job.save_at:
            _save(engine, job.save)
        if task.key.iteration in job.offloads and job.spec.trainer.engine.kind != "virtual":
            found.offloaded.append(_offload(engine, task.key.iteration, job.offloads))
        elif task.key.iteration in job.offloads:
            engine.offload()
        if task.key.iteration == job.rejoin_at:
            _meet(engine, rank, ranks, work, "again")
    try:
        engine.prepare(work.tasks[0])
    except InfrastructureError as error:
        found.refusal = str(error)
    if isinstance(engine, PolicyTrainEngine) and engine.policy.reference is not None:
        found.parts = {kind: _copied(engine.policy.parts(kind)) for kind in ("weights", *MOMENTS, "reference")}
    weights = weights_of(engine)
    if rank == 0:
        found.weights = weights
    return found


def _sent(job: Job, engine: TrainEngine) -> list[list[TensorPart[np.ndarray[Any, Any]]]]:
    """Returns what the rank would send of the engine's version, in a list; nothing unless the job asks for it."""
    return [_copied(engine.sync_parts())] if job.records_sent else []


def _restore(engine: TrainEngine, checkpoint: Path, version: int) -> None:
    """Restores a checkpoint; what is read of tensors must be what the engine says that it needs."""
    needed = [(each.name, each.box) for each in engine.needed(checkpoint)]
    read: list[tuple[str, Box | None]] = []
    real = PartFiles.read

    def recorded(self: PartFiles, name: str, box: Box | None = None) -> Any:
        read.append((name, box))
        return real(self, name, box)

    with mock.patch.object(PartFiles, "read", recorded):
        engine.restore(checkpoint, version)
    assert sorted(read, key=repr) == sorted(needed, key=repr)


def _copied(parts: Iterable[TensorPart[torch.Tensor]]) -> list[TensorPart[np.ndarray[Any, Any]]]:
    return [
        TensorPart(part.name, part.shape, part.offsets, part.values.cpu().numpy().copy(), part.holders)
        for part in parts
    ]


def _meet(engine: TrainEngine, rank: int, ranks: int, work: Work, occasion: str) -> None:
    """Connects the ranks at the address that rank 0 writes to a file."""
    held = hold_address(work.job.host) if rank == 0 else None
    engine.connect(rank, ranks, broadcast(work.place / occasion, held))


def _learn_or_skip(engine: TrainEngine, work: Work, task: BatchTask) -> UpdateReceipt:
    """Learns or skips an iteration, and repeats the call."""
    if task.key.iteration in work.job.skips:
        receipt = engine.skip(task)
        again = engine.skip(task)
    else:
        for count in work.job.ahead:
            engine.accumulate(replace(task, shards=task.shards[:count]))
        prepared = broadcast(work.place / f"{task.key.iteration}.prepared", engine.prepare(task))
        receipt = engine.learn(task, prepared)
        again = engine.learn(task, prepared)
    assert again is receipt, "a repeated call returns the same receipt"
    assert engine.applied == task.key
    return receipt


def _offload(engine: Any, iteration: int, offloads: Mapping[int, bool]) -> Offloaded:
    """Offloads the engine, with host memory in place of an accelerator's if the job requests it."""
    held = engine.policy.memory()

    def sizes() -> tuple[int, int]:
        return _bytes_of(held.lasting), _bytes_of(held.passing)

    before = sizes()
    real = offload.is_on_device
    version = engine.version
    # Memory shared with numpy, like the torch trainer's weights, cannot be resized.
    offload.is_on_device = lambda memory: offloads[iteration] and memory.resizable()
    try:
        engine.offload()
        engine.offload()
    finally:
        offload.is_on_device = real
    found = Offloaded(before, sizes())
    if iteration == min(offloads):
        engine.reload()
        engine.reload()
        found.whole = sizes() == before
    assert engine.version == version
    return found


def _bytes_of(tensors: Sequence[torch.Tensor]) -> int:
    memories = [tensor.untyped_storage() for tensor in tensors]
    return sum({memory.data_ptr(): memory.nbytes() for memory in memories}.values())


def _save(engine: TrainEngine, folder: Path) -> None:
    """Writes this rank's share of a checkpoint."""
    folder.mkdir(parents=True, exist_ok=True)
    engine.freeze_state()(folder)


def broadcast(path: Path, given: Any) -> Any:
    """Passes a value from rank 0 to all ranks, as the driver would."""
    if given is not None:
        hidden = path.with_suffix(".writing")
        hidden.write_bytes(pickle.dumps(given))
        hidden.rename(path)
    begun = time.monotonic()
    while not path.exists():
        assert time.monotonic() < begun + DEADLINE, "rank 0 gave nothing"
        time.sleep(0.005)
    return pickle.loads(path.read_bytes())
