"""A trainer's first updates from made-up experience, alone or as one of several ranks, each in a process of its own if need be.

Consumes a spec, a model's folder and the device of each rank. Produces the norms of the gradients, and the weights.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.work import Work, made_up_task
from benchmarks.grow.ranks import Rank, on_ranks
from yatt_core.engines.registry import build_train_engine
from yatt_core.protocols.engines import RankContext, TrainEngine
from yatt_core.spec import RunSpec

VISIBLE = "CUDA_VISIBLE_DEVICES"
CORES = ""
"""A device that is none of the GPUs."""
Weights = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Course:
    """The result of the updates. norms: of the gradients of each. weights: after the last, by name."""

    norms: tuple[float, ...]
    weights: Weights

    @property
    def digest(self) -> str:
        """A digest of all bits."""
        found = hashlib.sha256(np.asarray(self.norms).tobytes())
        for name in sorted(self.weights):
            found.update(name.encode() + self.weights[name].tobytes())
        return found.hexdigest()


class Seat(Protocol):
    """One rank's place among the others; `benchmarks.grow.ranks.Rank` is one."""

    rank: int

    def engine(self, spec: RunSpec, context: RankContext) -> TrainEngine:
        """Returns the spec's train engine, connected."""
        ...

    def shared(self, given: Any) -> Any:
        """Returns what rank 0 gives."""
        ...


class Alone:
    """The only rank, in this process."""

    rank = 0

    def engine(self, spec: RunSpec, context: RankContext) -> TrainEngine:
        """Returns the spec's train engine, connected."""
        engine = build_train_engine(spec, context)
        engine.connect(0, 1, "")
        return engine

    def shared(self, given: Any) -> Any:
        """Returns what is given."""
        return given


def started(seat: Seat, spec: RunSpec, folder: Path, model: Path) -> Any:
    """Returns a trainer at version 0, whose files are in the folder."""
    engine = seat.engine(spec, RankContext(folder, folder / "inputs", str(model), 0))
    engine.initialise()
    return engine


def updated(seat: Seat, engine: Any, folder: Path, work: Work, full: bool = False) -> float:
    """Takes an update; returns the norm of its gradients. full: as in `made_up_task`."""
    task = seat.shared(made_up_task(folder, engine.version + 1, work, full) if seat.rank == 0 else None)
    prepared = seat.shared(engine.prepare(task))
    return float(engine.learn(task, prepared).metrics["grad_norm"])


def course_of(seat: Seat, spec: RunSpec, folder: Path, model: Path, work: Work, updates: int) -> Course:
    """Takes updates in this process, on its own device."""
    engine = started(seat, spec, folder, model)
    norms = tuple(updated(seat, engine, folder, work) for _ in range(updates))
    return Course(norms, {name: array.copy() for name, array in engine.stream_weights()})


def courses_on(
    devices: Sequence[str], spec: RunSpec, folder: Path, model: Path, work: Work, updates: int
) -> list[Course]:
    """Takes updates on a rank for each device, in fresh processes; returns what each rank has in the end."""
    return on_ranks(len(devices), _course, tuple(devices), spec, folder, model, work, updates)


def _course(
    rank: Rank, devices: Sequence[str], spec: RunSpec, folder: Path, model: Path, work: Work, updates: int
) -> Course:
    os.environ[VISIBLE] = devices[rank.rank]  # before anything touches a GPU
    return course_of(seat=rank, spec=spec, folder=folder, model=model, work=work, updates=updates)
