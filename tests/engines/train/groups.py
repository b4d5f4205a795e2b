"""Trainers of several ranks, a process each: scenarios that every rank goes through, and what rank 0 found."""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.engines.train.support import random_task
from yatt_core.cluster.runner import free_port
from yatt_core.engines.protocol import RankContext
from yatt_core.engines.registry import build_train_engine
from yatt_core.errors import InfrastructureError
from yatt_core.receipts import BatchTask, PrepareReceipt, UpdateReceipt
from yatt_core.spec.run import RunSpec

DEADLINE = 150.0
START_METHOD = "spawn"


@dataclass(frozen=True)
class Job:
    """What a new trainer does. iterations: to be learnt, in order. restore: a snapshot, and its version, to begin with.

    save: where to put a snapshot once the iteration `save_at` is learnt. rejoin_at: the ranks meet anew behind that iteration.
    vocabulary: of the experience.
    """

    spec: RunSpec
    model: Path
    iterations: Sequence[int]
    restore: tuple[Path, int] | None = None
    save: Path | None = None
    save_at: int = 0
    rejoin_at: int = 0
    vocabulary: int = 24


@dataclass
class Found:
    """What came of a job on one rank. weights: behind the last iteration, on rank 0. refusal: of an iteration that was learnt."""

    receipts: list[UpdateReceipt] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    refusal: str = ""


def run_ranks(ranks: int, jobs: Sequence[Job], folder: Path) -> list[list[Found]]:
    """The jobs one after another in processes of their own: rank -> job -> what was found. folder: for all files."""
    methods = multiprocessing.get_context(START_METHOD)
    places = [folder / f"job-{number}" for number in range(len(jobs))]
    tasks = [
        [random_task(place, iteration, vocabulary=job.vocabulary) for iteration in job.iterations]
        for place, job in zip(places, jobs, strict=True)
    ]
    work = [
        _Work(job, given, place, (free_port(), free_port()))
        for job, given, place in zip(jobs, tasks, places, strict=True)
    ]
    workers = [methods.Process(target=_run, args=(rank, ranks, work, folder)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
        if worker.is_alive():
            worker.kill()
    failures = [path.read_text() for path in sorted(folder.glob("rank-*.failed"))]
    assert not failures, "\n".join(failures)
    assert [worker.exitcode for worker in workers] == [0] * ranks
    return [pickle.loads((folder / f"rank-{rank}.pickle").read_bytes()) for rank in range(ranks)]


@dataclass(frozen=True)
class _Work:
    """A job with its experience, its run folder, and ports to meet at."""

    job: Job
    tasks: list[BatchTask]
    place: Path
    ports: tuple[int, int]


def _run(rank: int, ranks: int, work: Sequence[_Work], folder: Path) -> None:
    from yatt_core.engines.train.process_group import close_process_group

    try:
        found = [_learn(rank, ranks, one) for one in work]
        close_process_group()
        (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(found))
    except BaseException:
        (folder / f"rank-{rank}.failed").write_text(f"rank {rank}\n{traceback.format_exc()}")
        raise


def _learn(rank: int, ranks: int, work: _Work) -> Found:
    job, found = work.job, Found()
    engine: Any = build_train_engine(job.spec, RankContext(work.place, work.place / "inputs", str(job.model), 0))
    engine.connect(rank, ranks, f"tcp://127.0.0.1:{work.ports[0]}")
    if job.restore is None:
        engine.initialise()
    else:
        engine.restore(*job.restore)
    for task in work.tasks:
        prepared = _handed(engine, work.place / f"{task.key.iteration}.prepared", engine.prepare(task))
        found.receipts.append(engine.learn(task, prepared))
        assert engine.learn(task, prepared) is found.receipts[-1], "a second time the receipt comes back"
        if job.save is not None and task.key.iteration == job.save_at:
            frozen = engine.freeze_state()
            assert (frozen is None) == (rank > 0)
            if frozen is not None:
                job.save.mkdir(parents=True)
                frozen(job.save)
        if task.key.iteration == job.rejoin_at:
            engine.connect(rank, ranks, f"tcp://127.0.0.1:{work.ports[1]}")
    try:
        engine.prepare(work.tasks[0])
    except InfrastructureError as error:
        found.refusal = str(error)
    weights = engine.export_weights()
    if rank == 0:
        found.weights = {name: array.copy() for name, array in weights.items()}
    return found


def _handed(engine: Any, path: Path, receipt: PrepareReceipt | None) -> PrepareReceipt:
    """What rank 0 prepared, as the driver hands it to all."""
    if receipt is not None:
        path.write_bytes(pickle.dumps(receipt))
    engine._world.barrier()
    handed: PrepareReceipt = pickle.loads(path.read_bytes())
    return handed
