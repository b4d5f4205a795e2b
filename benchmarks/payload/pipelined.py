"""An idealised central controller: it fetches every image and puts it back, but batch by batch and without waiting.

Consumes an iteration's image addresses. Enough batches are in flight to keep all actors busy, and the iteration's
batch is never assembled as a whole. This shows the difference that remains on this machine if only the path of the
bytes differs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from benchmarks.payload.actors import TERM
from benchmarks.payload.images import Look, UInt8
from benchmarks.payload.sharded import request_of, tasks_of
from yatt_core.cluster.metering import BytesMeter
from yatt_core.protocols.generation import GenerateResult
from yatt_core.protocols.receipts import ShardTask

UNDER_WAY = 2
"""Batches in flight for each actor: one being processed, one on the way."""


class PipelinedIteration:
    """The driver's side of the pipelined design."""

    def __init__(self, loaders: Sequence[Any], engines: Sequence[Any], ranks: Sequence[Any], meter: BytesMeter) -> None:
        self._loaders = loaders
        self._engines = engines
        self._ranks = ranks
        self._meter = meter

    def run(self, iteration: int, addresses: Sequence[str]) -> Look:
        """Collects and learns; returns what the trainer ranks have read."""
        tasks = tasks_of(iteration, len(addresses))
        return self._learn(self._collect(tasks, addresses))

    def _collect(self, tasks: Sequence[ShardTask], addresses: Sequence[str]) -> list[list[UInt8]]:
        """Returns the images of all batches as they came back from the engines, in the order of their tasks."""
        waiting = list(enumerate(tasks))
        loading = dict[Any, int]()
        generating = dict[Any, int]()
        whole: dict[int, list[UInt8]] = {}
        while waiting or loading or generating:
            while waiting and len(loading) + len(generating) < UNDER_WAY * (len(self._loaders) + len(self._engines)):
                index, task = waiting.pop(0)
                wanted = [addresses[ref.ordinal] for ref in task.prompts]
                loading[self._loaders[index % len(self._loaders)].load.remote(wanted)] = index
            (ready,), _ = ray.wait([*generating, *loading], num_returns=1)
            if ready in loading:
                index = loading.pop(ready)
                request = request_of(tasks[index], addresses)
                put = ray.put(self._fetched(ray.get(ready)))
                generating[self._engines[index % len(self._engines)].generate_from.remote(TERM, request, put)] = index
            else:
                answer: tuple[GenerateResult, list[UInt8]] = ray.get(ready)
                whole[generating.pop(ready)] = self._fetched(answer[1])
        return [whole[index] for index in sorted(whole)]

    def _learn(self, parts: list[list[UInt8]]) -> Look:
        """Gives each rank its share, and releases a part as soon as it is in the object store."""
        seen = Look()
        learning = list[Any]()
        for index in range(len(parts)):
            put = ray.put(parts[index])
            parts[index] = []
            learning.append(self._ranks[index % len(self._ranks)].learn_from.remote(put))
            del put
            if len(learning) == UNDER_WAY * len(self._ranks):
                (ready,), learning = ray.wait(learning, num_returns=1)
                seen += ray.get(ready)
        return sum(ray.get(learning), seen)

    def _fetched(self, images: list[UInt8]) -> list[UInt8]:
        self._meter.add(sum(image.nbytes for image in images))
        return images
