"""Runs the iteration through one central controller in the classic design: phase by phase, every byte through the driver.

Consumes an iteration's image addresses. The driver fetches all images from the loaders and packs them into one batch,
puts a part for each engine into the object store, fetches the results, images included, packs the batch again, and
puts a part for each trainer rank into the store. The codec is packed buffers, which Ray passes on without copying them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray

from benchmarks.payload.actors import TERM
from benchmarks.payload.images import Look, Packed, UInt8, read_image
from benchmarks.payload.sharded import SHARD_SAMPLES, request_of, tasks_of
from yatt_core.cluster.metering import BytesMeter
from yatt_core.protocols.generation import GenerateResult


class Loader:
    """An actor that reads image files."""

    def __init__(self, images: str) -> None:
        self._images = Path(images)

    def load(self, addresses: Sequence[str]) -> list[UInt8]:
        """Returns the files' bytes, checked against their addresses."""
        return [read_image(self._images, address) for address in addresses]


class CentralIteration:
    """The central controller."""

    def __init__(self, loaders: Sequence[Any], engines: Sequence[Any], ranks: Sequence[Any], meter: BytesMeter) -> None:
        self._loaders = loaders
        self._engines = engines
        self._ranks = ranks
        self._meter = meter

    def run(self, iteration: int, addresses: Sequence[str]) -> Look:
        """Collects and learns; returns what the trainer ranks have read."""
        return self._learn(self._generate(iteration, addresses, self._load(addresses)))

    def _load(self, addresses: Sequence[str]) -> Packed:
        loading = [
            self._loaders[i % len(self._loaders)].load.remote(addresses[start : start + SHARD_SAMPLES])
            for i, start in enumerate(range(0, len(addresses), SHARD_SAMPLES))
        ]
        images = [image for part in ray.get(loading) for image in part]
        return self._fetched(Packed.of(images))

    def _generate(self, iteration: int, addresses: Sequence[str], batch: Packed) -> Packed:
        tasks = tasks_of(iteration, len(addresses))
        bounds = [len(tasks) * i // len(self._engines) for i in range(len(self._engines) + 1)]
        generating = []
        for i, engine in enumerate(self._engines):
            mine = tasks[bounds[i] : bounds[i + 1]]
            requests = [request_of(task, addresses) for task in mine]
            part = batch.part(SHARD_SAMPLES * bounds[i], min(SHARD_SAMPLES * bounds[i + 1], len(addresses)))
            generating.append(engine.generate_all.remote(TERM, requests, ray.put(part)))
        answers: list[tuple[list[GenerateResult], Packed]] = ray.get(generating)
        return self._fetched(Packed.joined([part for _, part in answers]))

    def _learn(self, batch: Packed) -> Look:
        count = len(batch.offsets) - 1
        ranks = len(self._ranks)
        bounds = [count * i // ranks for i in range(ranks + 1)]
        learning = [
            rank.learn_packed.remote(ray.put(batch.part(bounds[i], bounds[i + 1])))
            for i, rank in enumerate(self._ranks)
        ]
        return sum(ray.get(learning), Look())

    def _fetched(self, batch: Packed) -> Packed:
        self._meter.add(batch.data.nbytes)
        return batch
