"""Trainers of the sharded workload, a process a rank: what each does with its engine, and what it found."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.engines.train.groups import DEADLINE, RANKS, broadcast, results_of
from yatt_core.engines.train.base.engine import WorkloadTrainEngine
from yatt_core.engines.train.ranks.process_group import close_process_group
from yatt_core.engines.train.ranks.rendezvous import LOOPBACK, hold_address
from yatt_core.engines.train.workload.own import OwnWorkload
from yatt_core.engines.train.workload.state import parts_of
from yatt_core.keys import WorkKey
from yatt_core.protocols.engines import RankContext
from yatt_core.protocols.receipts import BatchTask, PromptRef
from yatt_core.spec.run import RunSpec
from yatt_core.workloads.diffusion.sharded_drawing import ShardedDrawing
from yatt_core.workloads.saved import read_state


class BrightSharded(ShardedDrawing):
    """Rewards the mean of an image's numbers."""

    def rewards(self, images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
        """See `ShapeDrawing`."""
        return images.flatten(1).mean(1)


@dataclass(frozen=True)
class ShardedJob:
    """What a new trainer does.

    place: the run's folder, with inputs.
    name: of files of this job's own.
    restore: the checkpoint to start from, and its version.
    save: the folder for a checkpoint after the first iteration.
    rejoins: whether the ranks meet again after the second iteration.
    """

    spec: RunSpec
    place: Path
    name: str
    restore: tuple[Path, int] | None = None
    save: Path | None = None
    rejoins: bool = False


@dataclass
class ShardedResult:
    """What a rank found.

    digests: of the weights, after the beginning and each iteration.
    held: numbers of weights and moments that the rank holds.
    """

    digests: list[str] = field(default_factory=list)
    metrics: list[dict[str, float]] = field(default_factory=list)
    weights: dict[str, np.ndarray[Any, Any]] = field(default_factory=dict)
    held: int = 0


def run_sharded(ranks: int, jobs: Sequence[ShardedJob], folder: Path) -> list[list[Any]]:
    """Runs the jobs one after another on all ranks: rank -> job -> `ShardedResult`."""
    folder.mkdir()
    workers = [RANKS.Process(target=run_rank, args=(rank, ranks, jobs, folder)) for rank in range(ranks)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(DEADLINE)
        if worker.is_alive():
            worker.kill()
    return results_of([worker.exitcode for worker in workers], folder)


def run_rank(rank: int, ranks: int, jobs: Sequence[ShardedJob], folder: Path) -> None:
    """Runs one rank in this process, which leaves its results or its failure in the folder."""
    try:
        found = [learnt(rank, ranks, job, folder / job.name) for job in jobs]
        (folder / f"rank-{rank}.pickle").write_bytes(pickle.dumps(found))
    except BaseException:
        (folder / f"rank-{rank}.failed").write_text(f"rank {rank}\n{traceback.format_exc()}")
        raise
    finally:
        close_process_group()


def learnt(rank: int, ranks: int, job: ShardedJob, notes: Path) -> ShardedResult:
    """Learns three iterations, or those after a checkpoint."""
    notes.mkdir(exist_ok=True)
    found = ShardedResult()
    workload = OwnWorkload(job.spec, RankContext(job.place, job.place / "inputs", "", 0))
    engine = WorkloadTrainEngine(job.spec, workload)

    def meet(occasion: str) -> None:
        held = hold_address(LOOPBACK) if rank == 0 and ranks > 1 else None
        engine.connect(rank, ranks, broadcast(notes / occasion, held) if ranks > 1 else "")

    meet("first")
    if job.restore is None:
        engine.initialise()
    else:
        engine.restore(*job.restore)
    found.digests.append(engine.weights_digest())
    for iteration in range(engine.version + 1, 4):
        key = WorkKey(job.name, 0, iteration, "prepare")
        task = BatchTask(key, 1, (), rows=(PromptRef(iteration - 1, 0, iteration - 1),))
        prepared = broadcast(notes / f"{iteration}.prepared", engine.prepare(task))
        found.metrics.append(dict(engine.learn(task, prepared).metrics))
        found.digests.append(engine.weights_digest())
        if iteration == 1 and job.save is not None:
            job.save.mkdir(parents=True, exist_ok=True)
            engine.freeze_state()(job.save)
        if iteration == 2 and job.rejoins:
            meet("again")
    folder = notes / "last"
    folder.mkdir(exist_ok=True)
    engine.freeze_state()(folder)
    state = workload._state(workload._begun())
    for named in (state.weights, state.others):
        found.held += sum(part.values.numel() for part in parts_of(named, rank, ranks))
    engine.weights_digest()  # all ranks have written their parts
    if rank == 0:
        saved = read_state(folder).weights
        found.weights = {name: saved.whole(name).numpy() for name in saved.shapes}
    return found
