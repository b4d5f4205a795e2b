"""Runs the driver of a design in its own process, so that its memory is measured alone and designs can alternate."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType

import ray

from benchmarks.payload.actors import TERM, LookingEngine, LookingRank, actor
from benchmarks.payload.central import CentralIteration, Loader
from benchmarks.payload.images import Look
from benchmarks.payload.memory import Growth, PeakGrowth
from benchmarks.payload.pipelined import PipelinedIteration
from benchmarks.payload.sharded import ImageController, ShardedIteration
from yatt_core.actors.dispatcher import CONCURRENT_CALLS, Dispatcher
from yatt_core.cluster.connect import connect_ray, disconnect_ray
from yatt_core.cluster.driver_signs import DriverBeat
from yatt_core.cluster.metering import BytesMeter
from yatt_core.spec import RunSpec

SHARDED = "sharded"
CENTRAL = "central"
PIPELINED = "pipelined"
ACTORS = 2
"""Actors of each kind, in all designs."""


@dataclass(frozen=True, slots=True)
class Place:
    """The locations and the spec of an iteration. run_folder: also the Ray head's folder."""

    run_folder: Path
    images: Path
    address: str
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class Iteration:
    """The measurements of an iteration.

    growth: the growth of the driver's memory.
    controller_mb: the largest growth of a controller's memory.
    """

    seconds: float
    bytes_through_driver: int
    growth: Growth
    controller_mb: float
    engines: Look
    ranks: Look


class DriverProcess:
    """The parent's side of a driver process; a context manager."""

    def __init__(self, design: str, place: Place) -> None:
        methods = multiprocessing.get_context("spawn")
        self._pipe, there = methods.Pipe()
        self._process = methods.Process(target=_serve, args=(design, place, there), daemon=True)
        self._process.start()

    def iterate(self, iteration: int, addresses: Sequence[str]) -> Iteration:
        """Drives an iteration over these images in the driver process."""
        self._pipe.send((iteration, tuple(addresses)))
        answer: Iteration | Exception = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def __enter__(self) -> DriverProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.send(None)
        self._process.join(60)


def _serve(design: str, place: Place, pipe: Connection) -> None:
    connect_ray(place.address, design, place.run_folder)
    meter = BytesMeter()
    engines = [
        actor(LookingEngine, place.spec.model_dump_json(), str(place.run_folder), i, TERM, str(place.images))
        for i in range(ACTORS)
    ]
    ranks = [actor(LookingRank, str(place.run_folder), str(place.images), i, ACTORS) for i in range(ACTORS)]
    run, controller_growth = _runner(design=design, place=place, engines=engines, ranks=ranks, meter=meter)
    with DriverBeat(TERM):
        while (asked := pipe.recv()) is not None:
            iteration, addresses = asked
            before = meter.total
            with PeakGrowth() as memory:
                started = time.perf_counter()
                seen = run(iteration, addresses)
                seconds = time.perf_counter() - started
            looked = sum(ray.get([engine.seen.remote() for engine in engines]), Look())
            pipe.send(
                Iteration(
                    seconds=seconds,
                    bytes_through_driver=meter.total - before,
                    growth=memory.growth,
                    controller_mb=controller_growth(),
                    engines=looked,
                    ranks=seen,
                )
            )
    disconnect_ray()


Runner = tuple[Callable[[int, Sequence[str]], Look], Callable[[], float]]
Actors = list[ray.actor.ActorHandle]


def _runner(design: str, place: Place, engines: Actors, ranks: Actors, meter: BytesMeter) -> Runner:
    """Returns two functions: one drives an iteration of the design, the other returns its controllers' growth."""
    if design == SHARDED:
        return _sharded(place, engines, ranks, meter)
    loaders = [actor(Loader, str(place.images)) for _ in range(ACTORS)]
    kind = CentralIteration if design == CENTRAL else PipelinedIteration
    return kind(loaders, engines, ranks, meter).run, lambda: 0.0


def _sharded(place: Place, engines: Actors, ranks: Actors, meter: BytesMeter) -> Runner:
    dispatcher = (
        ray.remote(Dispatcher)
        .options(num_cpus=0, max_concurrency=CONCURRENT_CALLS)
        .remote(place.spec.model_dump_json(), str(place.run_folder), 0, TERM)
    )
    ray.get(dispatcher.engage.remote(TERM, engines))
    grace = place.spec.recovery.grace_seconds
    controllers = [actor(ImageController, str(place.run_folder), i, dispatcher, grace) for i in range(ACTORS)]
    iteration = ShardedIteration(place.run_folder, controllers, ranks, meter)
    return iteration.run, iteration.controller_growth
