"""Runs an iteration through the product's data plane: images stay files, and the driver sees receipts.

Consumes an iteration's image addresses; uses the product's dispatcher, generation streams, shard logs and batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from ray import cloudpickle

from benchmarks.payload.actors import TERM, VERSION
from benchmarks.payload.images import Look, batches
from benchmarks.payload.memory import Growth, PeakGrowth
from yatt_core.actors.presence import Presence
from yatt_core.cluster.metering import BytesMeter, metered_get
from yatt_core.dispatch.generation import GenerationStream
from yatt_core.dispatch.in_flight import BytesInFlight
from yatt_core.experience.shard_log import ShardLog
from yatt_core.experience.table import experience_schema
from yatt_core.keys import WorkKey
from yatt_core.protocols.generation import GenerateRequest, GenerateResult
from yatt_core.protocols.receipts import PromptRef, ShardReceipt, ShardRef, ShardTask
from yatt_core.spec.sections.controllers import ControllerSpec

SHARD_SAMPLES = 4
WAIT_SECONDS = 600.0
PART = "seen"
BYTES_IN_FLIGHT = ControllerSpec().bytes_in_flight
Message = TypeVar("Message")


class ImageController:
    """Owns logical shards as the product's controllers do; it knows the prompts' images by address only."""

    def __init__(self, run_folder: str, index: int, dispatcher: Any, grace: float) -> None:
        self._folder = Path(run_folder)
        self._name = f"controller-{index}"
        self._dispatcher = dispatcher
        self._presence = Presence(self._name, TERM, grace)
        self._growth = Growth(0.0, 0.0)

    def collect(self, prompts: str, tasks: Sequence[ShardTask]) -> Iterator[ShardReceipt]:
        """Generates each shard's responses, seals them and yields the receipt. prompts: the file of `write_prompts`."""
        addresses = Path(prompts).read_text().split()
        in_flight = BytesInFlight(BYTES_IN_FLIGHT)
        with (
            PeakGrowth() as memory,
            GenerationStream[ShardTask](self._dispatcher, self._name, self._presence.fence, in_flight) as stream,
        ):
            for task in tasks:
                stream.submit(task, request_of(task, addresses))
            for task, result in stream.results():
                log = ShardLog(self._folder, task.key, task.term)
                table = _table(task, addresses, result)
                log.append_responses(0, table)
                yield log.seal(table, {"generate": result.seconds})
        self._growth = memory.growth

    def growth(self) -> Growth:
        """Returns how far its memory grew in the last collection."""
        return self._growth


def write_prompts(folder: Path, addresses: Sequence[str]) -> Path:
    """Writes the prompts in the format of a run's inputs, each with its image's address, in order of their ordinals."""
    path = folder / f"prompts-{len(addresses)}.txt"
    path.write_text("\n".join(addresses))
    return path


class ShardedIteration:
    """The driver's side of the data plane.

    controllers, ranks: handles of actors.
    meter: counts the bytes that the driver sends and receives.
    """

    def __init__(self, run_folder: Path, controllers: Sequence[Any], ranks: Sequence[Any], meter: BytesMeter) -> None:
        self._folder = run_folder
        self._controllers = controllers
        self._ranks = ranks
        self._meter = meter

    def run(self, iteration: int, addresses: Sequence[str]) -> Look:
        """Collects and learns; returns what the trainer ranks have read."""
        prompts = str(write_prompts(self._folder, addresses))
        tasks = tasks_of(iteration, len(addresses))
        count = len(self._controllers)
        streams = [
            controller.collect.options(num_returns="streaming").remote(prompts, self._sent(tasks[i::count]))
            for i, controller in enumerate(self._controllers)
        ]
        receipts: list[ShardReceipt] = []
        for stream in streams:
            for reference in stream:
                receipts += metered_get(self._meter, [reference], WAIT_SECONDS, "a shard")
        receipts.sort(key=lambda receipt: receipt.key)
        shards = tuple(ShardRef(receipt.folder, receipt.manifest_sha256) for receipt in receipts)
        learning = [rank.learn.remote(self._sent(shards)) for rank in self._ranks]
        return sum(metered_get(self._meter, learning, WAIT_SECONDS, "the ranks"), Look())

    def _sent(self, message: Message) -> Message:
        self._meter.add(len(cloudpickle.dumps(message)))
        return message

    def controller_growth(self) -> float:
        """Returns the largest growth of a controller's memory in the last iteration, in MB."""
        grown: list[Growth] = metered_get(
            BytesMeter(), [c.growth.remote() for c in self._controllers], WAIT_SECONDS, "controllers"
        )
        return max(growth.total for growth in grown)


def tasks_of(iteration: int, prompts: int) -> list[ShardTask]:
    """Returns an iteration's shards, one response to each prompt."""
    return [
        ShardTask(
            WorkKey("payload", 0, iteration, "collect", shard=shard),
            TERM,
            tuple(PromptRef(ordinal, 0, ordinal) for ordinal in rows),
            VERSION,
        )
        for shard, rows in enumerate(batches(prompts, SHARD_SAMPLES))
    ]


def request_of(task: ShardTask, addresses: Sequence[str]) -> GenerateRequest:
    """Returns the request for a shard's samples, one image each."""
    return GenerateRequest(
        prompts=[np.array([ref.ordinal + 1], np.int32) for ref in task.prompts],
        seeds=np.array([[ref.ordinal] for ref in task.prompts], dtype=np.uint64),
        max_new_tokens=32,
        stop_tokens=(0,),
        weight_version=task.weight_version,
        media=[(addresses[ref.ordinal],) for ref in task.prompts],
    )


def _table(task: ShardTask, addresses: Sequence[str], result: GenerateResult) -> pa.Table:
    """Builds the experience table of the responses, with the images' addresses."""
    count = len(task.prompts)
    offsets = np.concatenate([[0], np.cumsum(result.lengths)]).astype(np.int32)
    ordinals = [ref.ordinal for ref in task.prompts]
    columns = {
        "prompt_ordinal": ordinals,
        "sample": np.zeros(count, np.int32),
        "prompt_id": [f"image/{ordinal}" for ordinal in ordinals],
        "source": np.zeros(count, np.int32),
        "prompt": [""] * count,
        "prompt_tokens": [[ordinal + 1] for ordinal in ordinals],
        "response": [""] * count,
        "response_tokens": pa.ListArray.from_arrays(offsets, result.tokens),
        "log_probs_sampler": pa.ListArray.from_arrays(offsets, result.log_probs),
        "loss_mask": pa.ListArray.from_arrays(offsets, pa.array(np.ones(len(result.tokens), dtype=bool))),
        "finish": ["stop"] * count,
        "truncated": np.zeros(count, dtype=bool),
        "weight_version": np.full(count, result.weight_version, np.int32),
        "reward": np.zeros(count),
        "correct": np.zeros(count, dtype=bool),
        "reward_error": [None] * count,
        "media": [addresses[ordinal] for ordinal in ordinals],
        f"reward/{PART}": np.zeros(count),
    }
    schema = experience_schema([PART], ["media"])
    return pa.table({name: columns[name] for name in schema.names}, schema=schema)
